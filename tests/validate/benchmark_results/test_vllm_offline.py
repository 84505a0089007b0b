"""Results of vLLM's benchmarks without a server."""

import math
from pathlib import Path

import pytest
from benchmark_files import write
from capacity_validate.benchmark_results import read_results
from capacity_validate.rebuilt_load import rebuild_workload

from capacity.base.errors import InvalidInput


def test_throughput(tmp_path: Path) -> None:
    document = {
        "elapsed_time": 20.0,
        "num_requests": 100,
        "total_num_tokens": 30_000,
        "requests_per_second": 5.0,
        "tokens_per_second": 1500.0,
    }
    (run,) = read_results(write(tmp_path / "t.json", document))
    assert (run.tool, run.request_throughput, run.duration_s) == ("vllm bench throughput", 5.0, 20.0)
    assert run.request_rate == math.inf
    with pytest.raises(InvalidInput, match="give --input-len and --output-len"):
        rebuild_workload(run, {})
    workload, _ = rebuild_workload(run, {"input_len": 200, "output_len": 100})
    assert len(workload) == 100
    assert workload.client_latency_s == 0.0  # nobody is between the requests and the engine


def test_latency_is_of_a_batch_that_has_to_be_named(tmp_path: Path) -> None:
    document = {
        "avg_latency": 1.5,
        "latencies": [1.4, 1.6],
        "percentiles": {"10": 1.41, "50": 1.5, "90": 1.59, "99": 1.6},
    }
    (run,) = read_results(write(tmp_path / "l.json", document))
    assert run.latencies_ms == {"e2el": {"mean": 1500.0, "p50": 1500.0, "p90": 1590.0, "p99": 1600.0}}
    with pytest.raises(InvalidInput, match="--request-rate or --concurrency"):
        rebuild_workload(run, {"input_len": 32, "output_len": 128})
    workload, _ = rebuild_workload(run, {"input_len": 32, "output_len": 128, "concurrency": 8})
    assert len(workload) == 8
