"""`capacity fleet` as a command: the answer, the file that it writes, its exit codes and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from capacity.cli.main import app
from capacity.deployment import read_deployment

ASKED = (
    "fleet llama-3.1-8b --gpus h100 --input-len 1500 --output-len 20 --num-prompts 60 --length-distribution lognormal "
    "--request-rate 12 --price 4 --split-at 800 --tensor-parallel-sizes 1 --quantizations none --kv-cache-dtypes auto "
    "--max-num-batched-tokens none --speculators none --replications 1 --workers 1"
)


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [*ASKED.split(), *arguments])
    return done.exit_code, done.stdout, done.stderr or str(done.exception)


def test_the_answer_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    code, out, err = run("--slo", "ttft:p95:600ms", "--format", "json", "--output", str(path))
    assert code == 0, err
    answer = json.loads(out)
    assert answer["schema"] == "capacity/fleet/v1"
    assert answer["best"]["usd_per_hour"] == 4.0
    written = read_deployment(path)
    assert [pool.gpu for pool in written.pools] == ["h100-sxm-80gb"]
    assert (written.traffic.request_rate, written.cost.price) == (12, "4")


def test_what_nothing_meets_is_exit_code_1() -> None:
    code, out, _ = run("--slo", "ttft:p95:1ms")
    assert code == 1
    assert "no fleet meets the SLO" in out


@pytest.mark.parametrize("flag", ["--routers", "--serving", "--latency-tolerance"])
def test_what_is_no_choice_is_no_flag(flag: str) -> None:
    code, _, err = run("--slo", "ttft:p95:1s", flag, "1")
    assert code == 2
    assert "no such option" in err.lower()


def test_what_means_nothing_alone_is_refused() -> None:
    code, _, err = run("--slo", "ttft:p95:1s", "--recovery", "60")
    assert code
    assert "has no effect without --mean-time-between-failures-s" in err
