"""Results of inference-perf."""

from pathlib import Path

import pytest
from benchmark_files import write
from capacity_validate.benchmark_results import read_results


def test_inference_perf_summary_is_in_seconds(tmp_path: Path) -> None:
    summary = {
        "load_summary": {"count": 10, "requested_rate": 5.0},
        "successes": {
            "count": 9,
            "latency": {
                "time_to_first_token": {"mean": 0.05, "median": 0.04, "p99": 0.2},
                "time_per_output_token": {"mean": 0.01},
                "request_latency": {"mean": 1.2},
            },
            "throughput": {"requests_per_sec": 4.5, "output_tokens_per_sec": 450.0},
            "prompt_len": {"mean": 800.0},
            "output_len": {"mean": 100.0},
        },
        "failures": {"count": 1},
    }
    (run,) = read_results(write(tmp_path / "summary_lifecycle_metrics.json", summary))
    assert run.latencies_ms["ttft"] == {"mean": 50.0, "p50": 40.0, "p99": 200.0}
    assert (run.failed, run.duration_s, run.request_rate) == (1, 2.0, 5.0)


def test_inference_perf_requests_have_the_instant_of_every_token(tmp_path: Path) -> None:
    requests = [
        {"start_time": 5.0, "end_time": 6.0, "error": None,
         "info": {"input_tokens": 10, "output_tokens": 3, "output_token_times": [5.2, 5.6, 6.0]}},
        {"start_time": 4.0, "end_time": 4.1, "error": {"error_type": "x"}, "info": {}},
    ]  # fmt: skip
    (run,) = read_results(write(tmp_path / "per_request_lifecycle_metrics.json", requests))
    assert run.latencies_ms["ttft"]["mean"] == pytest.approx(200)
    assert run.latencies_ms["tpot"]["mean"] == pytest.approx(400)
    assert (run.completed, run.failed) == (1, 1)


def test_newer_inference_perf_nests_its_tokens(tmp_path: Path) -> None:
    request = {
        "start_time": 5.0,
        "end_time": 6.0,
        "error": None,
        "info": {
            "request_metrics": {"text": {"input_tokens": 10}},
            "response_metrics": {"output_tokens": 3, "output_token_times": [5.2, 5.6, 6.0]},
        },
    }
    (run,) = read_results(write(tmp_path / "per_request_lifecycle_metrics.json", [request]))
    assert run.requests is not None
    assert (list(run.requests.prompt_tokens), list(run.requests.output_tokens)) == ([10], [3])
    assert run.latencies_ms["tpot"]["mean"] == pytest.approx(400)
