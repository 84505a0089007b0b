"""Summaries without requests: LLMPerf, InferenceX, MLPerf, lists of runs; figures as published, names changed."""

import math
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import vllm_result, write
from capacity_validate import compare
from capacity_validate.benchmark_results import read_results
from capacity_validate.evidence import read_evidence
from capacity_validate.rebuilt_load import alternative_workload, rebuild_workload

from capacity.base.errors import InvalidInput, MalformedFile

LLMPERF: dict[str, Any] = {
    "version": "2023-08-31",
    "name": "m_256_100_summary",
    "model": "llama-3.1-8b",
    "mean_input_tokens": 256,
    "num_concurrent_requests": 5,
    "results_inter_token_latency_s_mean": 0.011929198805297702,
    "results_ttft_s_quantiles_p50": 0.24166843249986414,
    "results_ttft_s_quantiles_p90": 0.4566385881018505,
    "results_ttft_s_mean": 0.25382229144015583,
    "results_end_to_end_latency_s_mean": 1.1840654935201018,
    "results_number_input_tokens_mean": 256.1,
    "results_number_output_tokens_mean": 99.44,
    "results_number_errors": 0,
    "results_mean_output_throughput_token_per_s": 335.40081105324157,
    "results_num_completed_requests": 50,
    "results_num_completed_requests_per_min": 202.3737797988183,
}
MLPERF = """================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : 264.90
Completed tokens per second: 74638.54
Result is : VALID
  Min duration satisfied : Yes

================================================
Additional Stats
================================================
Scheduled samples per second : 264.96
Mean latency (ns)               : 17499356575
99.00 percentile latency (ns)   : 62057076953

Mean First Token latency (ns)               : 200849949
50.00 percentile first token latency (ns)   : 187392125
99.00 percentile first token latency (ns)   : 674674289

Mean Time per Output Token (ns)               : 61403731
99.00 percentile time to output token (ns)   : 191656553

================================================
Test Parameters Used
================================================
min_query_count : 24576
"""


def test_llmperf_summary_has_no_tpot_because_its_itl_includes_the_first_token(tmp_path: Path) -> None:
    (run,) = read_results(write(tmp_path / "s.json", LLMPERF))
    assert run.latencies_ms.keys() == {"ttft", "e2el"}
    assert run.latencies_ms["ttft"]["p90"] == pytest.approx(456.6385881)
    assert (run.concurrency, run.completed) == (5, 50)
    assert run.request_throughput == pytest.approx(3.37289633)
    assert run.output_throughput == pytest.approx(335.40081105)
    workload, how = rebuild_workload(run, {})
    assert (workload.prompt_tokens[0], workload.output_tokens[0]) == (256, 99)
    assert how.startswith("mean lengths in the file")
    other = alternative_workload(run, {})
    assert other is not None
    assert other.prompt_tokens.std() > 50


def test_llmperf_responses_give_lengths(tmp_path: Path) -> None:
    entry = {"error_code": None, "error_msg": "", "ttft_s": 0.2, "end_to_end_latency_s": 1.0,
             "number_total_tokens": 300, "number_output_tokens": 90, "number_input_tokens": 210}  # fmt: skip
    rows = [entry, {**entry, "number_input_tokens": 250}, {**entry, "error_code": 500}]
    (run,) = read_results(write(tmp_path / "r.json", rows))
    assert run.requests is not None
    assert list(run.requests.prompt_tokens) == [210, 250]
    assert (run.completed, run.failed) == (2, 1)


def inferencex(**changes: Any) -> dict[str, Any]:
    return {
        "hw": "b200", "tp": 4, "ep": 4, "dp_attention": "false", "conc": 8, "model": "gpt-oss-120b",
        "framework": "trt", "precision": "fp8", "tput_per_gpu": 3086.42, "output_tput_per_gpu": 2225.31,
        "median_ttft": 0.12, "mean_ttft": 0.16645, "mean_tpot": 0.05369, "p99_tpot": 0.05926, "isl": 1024, "osl": 1024,
        **changes,
    }  # fmt: skip


def test_inferencex_rows(tmp_path: Path) -> None:
    first, second = read_results(write(tmp_path / "agg.json", [inferencex(), inferencex(conc=16)]))
    assert (first.concurrency, second.concurrency) == (8, 16)
    assert first.latencies_ms["tpot"] == {"mean": pytest.approx(53.69), "p99": pytest.approx(59.26)}
    assert first.output_throughput == pytest.approx(4 * 2225.31)
    assert first.server is not None
    assert first.server.settings == {
        "engine": "tensorrt-llm", "tensor_parallel_size": 4, "enable_expert_parallel": True, "quantization": "fp8",
    }  # fmt: skip
    workload, _ = rebuild_workload(first, {})
    assert 0.8 * 1024 - 1 <= workload.prompt_tokens.min() < workload.prompt_tokens.max() <= 1025
    assert alternative_workload(first, {}) is None  # the lengths are known
    nested = inferencex()
    metrics = {name: nested.pop(name) for name in ("tput_per_gpu", "output_tput_per_gpu", "mean_tpot")}
    (stored,) = read_results(write(tmp_path / "db.json", {**nested, "metrics": metrics}))
    assert stored.latencies_ms["tpot"]["mean"] == pytest.approx(53.69)
    with pytest.raises(MalformedFile, match="separate prefill and decode"):
        read_results(write(tmp_path / "d.json", inferencex(disagg="true")))


def test_rows_of_different_servers_are_refused(tmp_path: Path) -> None:
    rows = write(tmp_path / "agg.json", [inferencex(), inferencex(tp=8)])
    with pytest.raises(InvalidInput, match=r"different servers: tensor parallel size is 4 .* and 8"):
        compare([rows], gpu="b200")


def test_mlperf_summary(tmp_path: Path) -> None:
    (run,) = read_results(write(tmp_path / "mlperf_log_summary.txt", MLPERF))
    assert run.latencies_ms["ttft"] == {
        "mean": pytest.approx(200.849949), "p50": pytest.approx(187.392125), "p99": pytest.approx(674.674289),
    }  # fmt: skip
    assert run.latencies_ms["tpot"]["p99"] == pytest.approx(191.656553)
    assert read_evidence([tmp_path / "mlperf_log_summary.txt"]).runs == (run,)
    assert run.latencies_ms["e2el"]["mean"] == pytest.approx(17_499.356575)
    assert run.request_rate == 264.96
    assert run.mean_output_tokens == pytest.approx(74638.54 / 264.90)
    offline = MLPERF.replace(": Server", ": Offline").replace("Completed samples", "Samples")
    (run,) = read_results(write(tmp_path / "offline.txt", offline))
    assert run.request_rate == math.inf
    with pytest.raises(MalformedFile, match="scenario SingleStream"):
        read_results(write(tmp_path / "s.txt", MLPERF.replace(": Server", ": SingleStream")))


def test_list_of_vllm_runs_is_several_runs(tmp_path: Path) -> None:
    runs = read_results(write(tmp_path / "summary.json", [vllm_result(), vllm_result(request_rate=4.0)]))
    assert [run.request_rate for run in runs] == [2.0, 4.0]


def test_sglang_file_without_requests_has_the_range_of_its_lengths(tmp_path: Path) -> None:
    line = {
        "backend": "sglang", "dataset_name": "random", "request_rate": "inf", "max_concurrency": 16,
        "random_input_len": 1000, "random_output_len": 200, "random_range_ratio": 0.5, "duration": 10.0,
        "completed": 40, "total_input_tokens": 30_000, "total_output_tokens": 6_000, "input_throughput": 3000.0,
        "mean_ttft_ms": 40.0, "mean_tpot_ms": 10.0,
    }  # fmt: skip
    (run,) = read_results(write(tmp_path / "s.jsonl", line))
    workload, _ = rebuild_workload(run, {})
    assert 500 <= workload.prompt_tokens.min() < 600 < 900 < workload.prompt_tokens.max() <= 1000
    (unknown,) = read_results(write(tmp_path / "g.jsonl", {**line, "dataset_name": "sharegpt"}))
    assert unknown.range_ratio is None
