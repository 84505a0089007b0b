"""A real engine beside the harness, with an executable on PATH in its place: started, asked, compared, always ended."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from capacity_validate import harness, real_engine
from capacity_validate.html_report import summary_lines
from capacity_validate.real_engine import (
    EngineFailed,
    bench_words,
    measure_engine,
    require_engine,
    serve_words,
)
from validation_reports import bare_report

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, build
from capacity.hardware import load_profile
from capacity.report.benchmark import RandomArrivals

FAKE = Path(__file__).parent.parent / "fake_engine.py"
MODEL = "llama-3.1-8b"


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `vllm` on PATH; the file that its processes write their numbers to."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "vllm"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_PIDS", str(tmp_path / "pids"))
    monkeypatch.setattr(real_engine, "POLL_S", 0.05)
    monkeypatch.setattr(real_engine, "STOP_S", 2.0)
    monkeypatch.setattr(real_engine, "INPUT_TOKENS", 100)
    monkeypatch.setattr(real_engine, "OUTPUT_TOKENS", 8)
    return tmp_path / "pids"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def nothing_is_left(pids: Path) -> bool:
    started = [int(line) for line in pids.read_text().split()]
    assert started
    ends = time.monotonic() + 5
    while any(alive(pid) for pid in started) and time.monotonic() < ends:
        time.sleep(0.02)
    return not any(alive(pid) for pid in started)


def measured(tmp_path: Path, **options: Any) -> Any:
    return measure_engine(
        "vllm",
        MODEL,
        gpu="h100",
        folder=tmp_path / "out",
        loads=((1, 2), (4, 8)),
        **{"start_s": 30.0, **options},
    )


def test_it_is_started_asked_compared_and_ended(tmp_path: Path, pids: Path) -> None:
    said: list[str] = []
    found = measured(tmp_path, announce=said.append)
    answer = found.comparison
    assert [path.name for path in found.files] == ["vllm-1.json", "vllm-4.json", "vllm.log"]
    assert said == ["starting vllm", "vllm with 1 requests in flight", "vllm with 4 requests in flight"]
    assert (answer.model, answer.gpu, len(answer.runs)) == (MODEL, "h100-sxm-80gb", 2)
    assert answer.kv_capacity_measured  # of its log
    assert answer.kv_capacity_tokens == 422_112
    for run, requests in zip(answer.runs, (2, 8), strict=True):
        assert run.requests == requests
        assert run.workload == "replayed request by request"
        assert {row.name for row in run.metrics} >= {"mean_ttft_ms", "mean_tpot_ms", "output_throughput"}
        (tpot,) = (row for row in run.metrics if row.name == "mean_tpot_ms")
        assert tpot.measured >= 2.0
        assert tpot.predicted is not None
    assert json.loads((tmp_path / "out" / "vllm-4.json").read_text())["max_concurrency"] == 4
    assert nothing_is_left(pids)


@pytest.mark.parametrize(
    ("play", "start_s", "told"),
    [
        ("dies", 30.0, r"exited with code 1 before it was ready: .*No available memory for the cache blocks"),
        ("hangs", 1.0, r"was not ready within 1 s: .*GPU KV cache size"),
        (
            "dies-later",
            30.0,
            r"(exited with code 1 under load: .*illegal memory access|client exited with code 1)",
        ),
    ],
)
def test_what_goes_wrong_is_told_with_its_last_words_and_nothing_is_left(
    tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch, play: str, start_s: float, told: str
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", play)
    with pytest.raises(EngineFailed, match=told):
        measured(tmp_path, start_s=start_s)
    assert nothing_is_left(pids)


def test_one_that_will_not_end_is_killed_with_its_workers(
    tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "stubborn")
    monkeypatch.setattr(real_engine, "STOP_S", 0.2)
    assert len(measured(tmp_path).comparison.runs) == 2
    assert len(pids.read_text().split()) == 4  # server, its worker, two clients
    assert nothing_is_left(pids)


def test_ctrl_c_ends_it_too(tmp_path: Path, pids: Path) -> None:
    def interrupt(stage: str) -> None:
        if "in flight" in stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, announce=interrupt)
    assert nothing_is_left(pids)


def test_commands_are_the_projects_own_on_loopback(tmp_path: Path) -> None:
    pool = build(Pool, {"gpu": "h100", "max_model_len": 4096, "tensor_parallel_size": 2})
    load = RandomArrivals(
        requests=8, request_rate_per_s=float("inf"), input_tokens=1000, output_tokens=128, max_concurrency=4
    )
    for engine in ("vllm", "sglang"):
        dummy = serve_words(engine, "some/checkpoint", pool, port=12345, dummy_weights=True)
        assert dummy[dummy.index("--load-format") + 1] == "dummy"
        words = serve_words(engine, "some/checkpoint", pool, port=12345)
        assert "--load-format" not in words
        serve = " ".join(words)
        assert "--port 12345 --host 127.0.0.1" in serve
        assert "2" in words[words.index("--tensor-parallel-size" if engine == "vllm" else "--tp-size") + 1]
        bench = " ".join(bench_words(engine, "some/checkpoint", load, port=12345, result=tmp_path / "r.json"))
        assert "12345" in bench
        assert "localhost" not in bench
        assert "--max-concurrency 4" in bench
        assert "r.json" in bench


def test_what_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidInput, match="--engine vllm is not installed"):
        require_engine("vllm")
    with pytest.raises(InvalidInput, match="must be one of vllm, sglang"):
        require_engine("tgi")


def test_a_version_is_asked_of_the_log(tmp_path: Path, pids: Path) -> None:
    """The stand-in prints 0.33.0."""
    assert require_engine("vLLM@0.17") == "vllm"
    options = {"folder": tmp_path / "out", "gpu": "h100", "loads": ((1, 2),), "start_s": 30.0}
    found = measure_engine("vllm@0.33", MODEL, **options)
    assert found.comparison.engine == "vllm@0.33"
    with pytest.raises(InvalidInput, match=r"--engine is vllm@0.17, but .*vllm.log states vllm@0.33"):
        measure_engine("vllm@0.17", MODEL, **options)
    assert nothing_is_left(pids)


@pytest.mark.parametrize(
    "flag", [{"tensor_parallel_size": 2}, {"quantization": "fp8"}, {"dummy_weights": True}]
)
def test_settings_of_an_engine_need_one(tmp_path: Path, flag: dict[str, Any]) -> None:
    (name,) = flag
    with pytest.raises(InvalidInput, match=f"--{name.replace('_', '-')} needs --engine"):
        harness.validate("cpu", "quick", out=tmp_path / "out", **flag)
    assert not (tmp_path / "out").exists()


def test_it_stands_in_the_report_beside_the_profile_just_calibrated(
    tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_engine, "LOADS", ((2, 4),))
    asked: list[str] = []

    def known(engine: str, model: str, *, gpu: str, profiles: Path, **options: Any) -> Any:
        assert profiles == tmp_path
        asked.append(gpu)
        return measure_engine(engine, model, gpu="h100", loads=((2, 4),), start_s=30.0, **options)

    monkeypatch.setattr(harness, "measure_engine", known)
    (tmp_path / "h200-sxm-141gb@mine.toml").write_text("")
    report = harness._add_engine_comparison(
        bare_report(), "vllm", MODEL, tmp_path, None, {"tensor_parallel_size": 2}, dummy_weights=True
    )
    assert asked == ["h200-sxm-141gb@mine"]
    assert report.broken == ()
    learnt = load_profile("h100-sxm-80gb@mine-vllm", [tmp_path])  # the engine's runs calibrate too
    assert learnt.adjustment is not None
    assert learnt.adjustment.rows > 0
    (remark,) = report.remarks
    assert remark.startswith("the engine's benchmarks calibrated h100-sxm-80gb@mine-vllm")
    assert "with random weights" in remark
    assert report.engine is not None
    assert report.engine.num_gpus == 2
    assert report.broken == ()
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["engine"]["runs"][0]["metrics"][0]["error"] is not None
    assert "A real engine on the same device" in (tmp_path / "report.html").read_text()
    assert any("mean TPOT, ms" in line for line in summary_lines(report))
    assert nothing_is_left(pids)


def test_a_failing_engine_costs_nothing_of_what_was_measured(
    tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "dies")
    report = harness._add_engine_comparison(bare_report(), "vllm", MODEL, tmp_path, None)
    (told,) = report.broken
    assert told.startswith("engine vllm: the engine exited with code 1 before it was ready")
    assert report.exit_code == 1
    assert (tmp_path / "report.html").is_file()
    assert nothing_is_left(pids)


def test_an_engine_that_is_not_here_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidInput, match="is not installed"):
        harness.validate("cpu", "quick", out=tmp_path / "out", engine="vllm")
    assert not (tmp_path / "out").exists()
