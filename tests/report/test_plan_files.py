"""A plan's files: what they say fits together, and each line of them does what it claims."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capacity.answers.deployment_run import run_service
from capacity.answers.engine_setup import make_workload
from capacity.cli.main import main
from capacity.deployment import Pool, Service, Traffic
from capacity.deployment.launch_command import read_line as read_vllm_command
from capacity.deployment.launch_command import read_servers
from capacity.planning.plan import plan
from capacity.planning.records import Plan
from capacity.planning.search.ranking import pin_defaults
from capacity.pool.resolve import resolve
from capacity.report.plan_files import select_busiest_part, write_plan_files
from capacity.report.tables import render
from capacity.workload import random_requests

EQUAL: dict[str, Any] = {"random_range_ratio": 0.0}
TRAFFIC: dict[str, Any] = {
    "request_rate": 60.0,
    "input_len": 400,
    "output_len": 40,
    "num_prompts": 80,
    **EQUAL,
}
SPACE: dict[str, Any] = {
    "gpus": "h100", "tensor_parallel_sizes": (1,), "quantizations": ("fp8",), "kv_cache_dtypes": ("auto",),
    "max_num_batched_tokens": (None,), "replications": 1, "price": "2", "slo": "ttft:p95:500ms tpot:p95:9ms",
}  # fmt: skip
DRAFTS = {"speculators": "eagle3", "num_speculative_tokens": (3,), "serving": "aggregated"}
PLAIN = {"speculators": "none", "serving": "aggregated"}
APART = {"speculators": "none", "serving": "disaggregated", "slo": "ttft:p95:1s tpot:p95:15ms", "max_gpus": 6}


def written(folder: Path, **options: Any) -> Plan:
    asked = TRAFFIC | options
    answer = plan("llama-3.1-8b", **(SPACE | asked))
    arrivals = Traffic(**{name: value for name, value in asked.items() if name in Traffic.model_fields})
    write_plan_files(answer, folder, model="llama-3.1-8b", traffic=arrivals)
    return answer


def command(text: str, program: str) -> list[str]:
    """The words of the command of a script that begins with `program`."""
    lines = text.replace("\\\n", " ").splitlines()
    return shlex.split(next(line for line in lines if line.startswith(program)))


@pytest.mark.parametrize("space", [PLAIN, DRAFTS, APART])
def test_the_launch_commands_of_a_plan_read_back_as_its_pools(space: dict[str, Any], tmp_path: Path) -> None:
    answer = written(tmp_path, **space)
    assert answer.best is not None
    for pool in answer.best.candidate.pools:
        kind = "" if pool.role == "both" else f"-{pool.role}"
        read = read_vllm_command((tmp_path / f"launch-vllm{kind}.sh").read_text())
        assert read.pool(pool.gpu) == pin_defaults(resolve("llama-3.1-8b", pool)).model_copy(
            update={"replicas": 1}
        )
        for engine in ("sglang", "tensorrt-llm"):
            assert (tmp_path / f"launch-{engine}{kind}.sh").exists()
    several = answer.best.candidate.prefill is not None
    service = read_servers((tmp_path / "deploy" / "kserve-llminferenceservice.yaml").read_text())
    read_pools = (server.pool(str(server.gpu)) for server in service)
    assert {pool.role: pool.model_copy(update={"engine": "vllm"}) for pool in read_pools} == {
        pool.role: pin_defaults(resolve("llama-3.1-8b", pool)) for pool in answer.best.candidate.pools
    }
    assert (tmp_path / "deploy" / "ray-serve.yaml").exists() != several
    assert (
        "ray-serve.yaml" in (tmp_path / "report.html").read_text()
    )  # how to apply each file, or why it is missing
    assert (tmp_path / "launch-vllm-proxy.sh").exists() == several
    assert (tmp_path / "compare.sh").exists() != several


def test_a_closed_loop_is_benchmarked_as_one(tmp_path: Path) -> None:
    loop = {"slo": "e2el:p95:60s", "concurrency": 8, "request_rate": None, "quantizations": (None,)}
    answer = written(tmp_path, **PLAIN, **loop)
    assert "8 in flight" in render(answer, "table")
    words = command((tmp_path / "benchmark.sh").read_text(), "vllm bench")
    assert words[words.index("--max-concurrency") + 1] == "8"


def test_benchmark_of_varying_lengths_sends_the_requests_of_the_plan(tmp_path: Path) -> None:
    """`vllm bench serve` draws no lognormal lengths: a file has them."""
    loop = {"slo": "e2el:p95:60s", "concurrency": 8, "request_rate": None, "quantizations": (None,)}
    answer = written(tmp_path, **PLAIN, **loop, length_distribution="lognormal", random_range_ratio=0.0)
    words = command((tmp_path / "benchmark.sh").read_text(), "vllm bench")
    said = dict(pairwise(words))
    assert (said["--dataset-name"], said["--max-concurrency"]) == ("timed_trace", "8")
    rows = [json.loads(line) for line in (tmp_path / said["--dataset-path"]).read_text().splitlines()]
    assert len(rows) == 80
    assert sum(row["output_length"] for row in rows) / 80 == pytest.approx(answer.output_tokens)
    assert len({row["output_length"] for row in rows}) > 10


@pytest.mark.parametrize(
    ("engine", "files"),
    [
        ("tgi", {"launch-tgi.sh", "kubernetes.yaml", "benchmark.sh", "compare.sh", "deploy"}),
        ("llama.cpp", {"launch-llama.cpp.sh", "kubernetes.yaml", "benchmark.sh", "compare.sh", "deploy"}),
        ("ollama", {"launch-ollama.sh", "kubernetes.yaml", "benchmark.sh", "compare.sh", "deploy"}),
        ("transformers", {"launch-hf-transformers.sh"}),
        ("static", set()),
    ],
)
def test_every_engine_has_the_files_that_it_is_started_with(
    engine: str, files: set[str], tmp_path: Path
) -> None:
    easy = {"engines": engine, "slo": "e2el:p95:60s", "request_rate": 1.0, "quantizations": (None,)}
    answer = written(tmp_path, **PLAIN, **easy)
    assert answer.best is not None
    assert {path.name for path in tmp_path.iterdir()} - {"router.sh"} == files | {"plan.json", "report.html"}
    for path in tmp_path.glob("*.sh"):
        assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0
    plan_json = json.loads((tmp_path / "plan.json").read_text())
    assert len(plan_json["ranked"][0]["launch"]) == (engine != "static")


def test_arrivals_of_a_long_trace_are_its_busiest_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour of one request each 4 s; from 1,200 s on, for ten minutes, four times as many."""
    slow, fast = np.arange(0.0, 3600.0, 4.0), np.arange(1201.0, 1801.0, 1.0)
    arrival_s = np.sort(np.concatenate((slow, fast)))
    trace, folder = tmp_path / "hour.csv", tmp_path / "answer"
    rows = "\n".join(f"{at},300,20" for at in arrival_s)
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    space = "--gpus h100 --tensor-parallel-sizes 1 --quantizations default --kv-cache-dtypes auto --speculators none"
    words = f"plan llama-3.1-8b --trace {trace} {space} --serving aggregated --slo ttft:p95:1s --price 2 --workers 1"
    monkeypatch.setattr(sys, "argv", ["capacity", *words.split(), "--output", str(folder)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    shown = capsys.readouterr()
    lines = [json.loads(line) for line in (folder / "arrivals.jsonl").read_text().splitlines()]
    times = np.array([line["timestamp"] for line in lines])
    assert times[0] == 0
    assert times[-1] <= 900
    assert (np.diff(times) <= 1).sum() > 590  # the ten minutes are among them
    assert len(lines) == max(int(((arrival_s >= at) & (arrival_s < at + 900)).sum()) for at in arrival_s)
    script = (folder / "benchmark.sh").read_text()
    assert f"the busiest 15 minutes of the trace, {len(lines):,} of {len(arrival_s):,} requests" in script
    assert f"--num-prompts {len(lines)}" in script.replace(" \\\n   ", "")
    said = shown.out + shown.err
    size = (folder / "arrivals.jsonl").stat().st_size
    assert f"{folder / 'arrivals.jsonl'} ({size / 1e3:.0f} kB)" in said.replace("\n", "")


def test_arrivals_of_a_short_trace_are_all_of_it() -> None:
    short = random_requests(num_requests=50, input_len=10, output_len=2, request_rate_per_s=1.0)
    assert select_busiest_part(short) is short


def test_the_compare_line_reads_what_the_benchmark_line_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is the simulator itself, in the words of `vllm bench serve`: then the line finds no gap."""
    answer = written(tmp_path, **PLAIN)
    assert answer.best is not None
    replicas = answer.best.candidate.replicas
    assert replicas > 1
    text = (tmp_path / "compare.sh").read_text()
    bench = command(text, "vllm bench")
    said = dict(pairwise(bench))
    assert float(said["--request-rate"]) == pytest.approx(answer.requests_per_s / replicas, rel=0.1)
    assert said["--burstiness"] == str(replicas)
    share = Traffic(
        input_len=int(said["--random-input-len"]),
        output_len=int(said["--random-output-len"]),
        request_rate=float(said["--request-rate"]),
        burstiness=float(said["--burstiness"]),
        num_prompts=int(said["--num-prompts"]),
        random_range_ratio=0.0,
    )
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100", quantization="fp8"))
    run = run_service([resolved], Service(), make_workload(share))
    table = run.records
    header = {
        "date": "20261121-190000", "backend": "vllm", "model_id": said["--model"], "num_prompts": share.num_prompts,
        "request_rate": share.request_rate, "burstiness": share.burstiness, "max_concurrency": None,
    }  # fmt: skip
    arrays = {
        "input_lens": table.prompt_tokens.tolist(),
        "output_lens": table.output_tokens.tolist(),
        "ttfts": ((table.first_token_ps - table.arrival_ps) * 1e-12).tolist(),
        "start_times": (table.arrival_ps * 1e-12).tolist(),
        "errors": [""] * len(table),
    }
    written_by_vllm = tmp_path / said["--result-filename"]
    written_by_vllm.write_text(json.dumps(header | run.summary.to_dict() | arrays))
    words = command(text, "capacity compare")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*words, "--format", "json"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    errors = {row["name"]: row["error"] for row in found["metrics"]}
    assert errors["mean_tpot_ms"] == pytest.approx(0, abs=0.02)
    assert errors["mean_ttft_ms"] == pytest.approx(0, abs=0.02)
