"""Results of llama.cpp's own benchmark."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import write
from capacity_validate.benchmark_results import read_results

from capacity.base.errors import MalformedFile


def entry(n_prompt: int, n_gen: int, avg_ts: float, **changes: Any) -> dict[str, Any]:
    return {
        "build_commit": "8cf427ff", "build_number": 5163, "backends": "CUDA", "model_filename": "m.gguf",
        "model_type": "llama 8B Q4_K - Medium", "n_ubatch": 512, "n_batch": 2048, "n_gpu_layers": 99,
        "n_prompt": n_prompt, "n_gen": n_gen, "n_depth": 0, "avg_ns": 1, "avg_ts": avg_ts, "stddev_ts": 1.0, **changes,
    }  # fmt: skip


def test_a_prompt_is_a_first_token_and_generation_is_tokens(tmp_path: Path) -> None:
    tests = [entry(512, 0, 7168.0), entry(0, 128, 125.0), entry(0, 64, 100.0, n_depth=4096)]
    prefill, decode, deep = read_results(write(tmp_path / "l.json", tests))
    assert prefill.latencies_ms == {"ttft": {"mean": pytest.approx(512 / 7.168)}}
    assert decode.latencies_ms == {"tpot": {"mean": pytest.approx(8.0)}}
    for run, prompt, output in ((prefill, 512, 1), (decode, 1, 129), (deep, 4096, 65)):
        workload = run.workload()
        assert workload is not None
        assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([prompt], [output])
        assert run.in_process
        assert run.server is not None
        assert run.server.max_num_batched_tokens == 512


def test_json_lines_and_mixed_tests(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(e) for e in (entry(512, 0, 1000.0), entry(512, 128, 400.0)))
    (run,) = read_results(write(tmp_path / "l.jsonl", lines))
    assert "ttft" in run.latencies_ms


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ([entry(512, 128, 400.0)], "no test that times only prompts"),
        ([entry(512, 0, 400.0, n_gpu_layers=0)], "on the CPU"),
        ([entry(512, 0, 0.0)], "no test that times only prompts"),
        ([entry(512, 0, 400.0), 7], "has another structure"),
    ],
)
def test_what_says_nothing_is_refused_in_one_line(tmp_path: Path, tests: list[Any], said: str) -> None:
    with pytest.raises(MalformedFile, match=said) as refused:
        read_results(write(tmp_path / "l.json", tests))
    assert "\n" not in str(refused.value)
