"""Result files of load generators: which one it is, and how what is none is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_files import changed, vllm_result, write
from capacity_validate import calibrate, compare
from capacity_validate.benchmark_results import read_results

from capacity.base.errors import MalformedFile

KNOWN: dict[str, Any] = {
    "vllm": vllm_result(),
    "sglang": {"input_throughput": 3.0, "duration": 1.0, "input_lens": [1, 2], "output_lens": [3, 4], "completed": 2},
    "aiperf": {
        "request_latency": {"unit": "ms", "avg": 9.0},
        "input_config": {"phases": [{"name": "profiling", "concurrency": 2}], "endpoint": {"model_names": ["m"]}},
    },
    "aiperf requests": {
        "metadata": {"request_start_ns": 1, "request_end_ns": 2},
        "metrics": {"input_sequence_length": {"value": 5, "unit": "tokens"}},
    },
    "guidellm": {
        "benchmarks": [
            {
                "config": {"strategy": {"type_": "constant", "rate": 2.0}},
                "metrics": {"request_totals": {"successful": 1}, "request_latency": {"successful": {"count": 1}}},
                "requests": {"successful": [{"request_start_time": 1.0, "prompt_tokens": 5, "output_tokens": 3}]},
                "duration": 3.0,
            }
        ]
    },
    "inference-perf": {
        "load_summary": {"requested_rate": 1.0},
        "successes": {"count": 1, "latency": {"request_latency": {"mean": 1.0}}, "throughput": {}},
    },
    "inference-perf requests": [
        {"start_time": 1.0, "end_time": 2.0,
         "info": {"input_tokens": 5, "output_tokens": 2, "output_token_times": [1.5, 2.0]}}
    ],
    "llmperf": {
        "model": "m", "num_concurrent_requests": 5, "results_end_to_end_latency_s_mean": 1.2,
        "results_ttft_s_quantiles_p99": 0.5, "results_num_completed_requests": 50,
    },
    "llmperf requests": [
        {"error_code": None, "ttft_s": 0.1, "end_to_end_latency_s": 1.0, "number_input_tokens": 5,
         "number_output_tokens": 3},
    ],
    "inferencex": [
        {"hw": "b200", "tp": 4, "ep": 1, "dp_attention": "false", "conc": 4, "model": "m", "framework": "trt",
         "precision": "fp4", "tput_per_gpu": 9.0, "median_ttft": 0.12, "isl": 1024, "osl": 1024},
    ],
    "vllm list": [vllm_result()],
}  # fmt: skip
HOSTILE = (
    None,
    -1,
    1e308,
    10**30,
    float("nan"),
    float("inf"),
    True,
    "x",
    "",
    [],
    [None],
    {},
    {"a": []},
    [[1]],
)


@pytest.mark.parametrize("tool", KNOWN)
def test_no_value_of_a_wrong_kind_gets_further_than_one_line(tmp_path: Path, tool: str) -> None:
    """Each value replaced by each of a dozen hostile ones: a result or MalformedFile, nothing else."""
    path = tmp_path / "r.json"
    read = complaints = 0
    for bad in HOSTILE:
        for document in changed(KNOWN[tool], bad):
            write(path, document)
            try:
                runs = read_results(path)
            except MalformedFile as error:
                text = str(error)
                complaints += "\n" in text
                continue
            read += 1
            for run in runs:
                assert all(np.isfinite(v) for values in run.latencies_ms.values() for v in values.values())
    assert read > 10
    assert not complaints


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("{", "not JSON"),
        ("INFO 11-20 10:02:11 [config.py:42] serving", "compare with --server-log FILE"),
        ("42", "a value of type int, not a benchmark result"),
        ("{}", "not a supported benchmark result"),
        ("[[" * 100_000, "not JSON"),
        ('[{"a": 1}]', "not a supported benchmark result"),
        ('[{"start_time": 1.0, "end_time": 2.0}, 3]', "not requests of inference-perf"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(MalformedFile, match=problem) as caught:
        read_results(write(tmp_path / "bad.json", text))
    assert "\n" not in str(caught.value)


ZERO = {
    **dict.fromkeys(
        ("request_throughput", "output_throughput", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms"), 0.0
    ),
    **{name: [] for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times")},
}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"benchmarks": []}, "contains no run of guidellm"),
        (
            vllm_result(**ZERO),
            "contains no measurement: every latency and throughput of a vllm bench serve run is 0",
        ),
        (vllm_result(**ZERO, completed=0, failed=3), r"\(0 requests completed, 3 failed\)"),
    ],
)
def test_result_file_without_a_measurement_is_refused(tmp_path: Path, document: object, words: str) -> None:
    file = write(tmp_path / "r.json", document)
    with pytest.raises(MalformedFile, match=words):
        compare([file], gpu="h100", model="llama-3.1-8b")
    with pytest.raises(MalformedFile, match=words):
        calibrate([file], gpu="h100", model="llama-3.1-8b")
