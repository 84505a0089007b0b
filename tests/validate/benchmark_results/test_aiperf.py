"""Results of AIPerf."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_files import write
from capacity_validate.benchmark_results import read_results


def test_aiperfs_inter_token_latency_is_our_tpot(tmp_path: Path) -> None:
    aggregate = {
        "request_latency": {"unit": "ms", "avg": 900.0, "p50": 880.0, "p99": 1200.0},
        "time_to_first_token": {"unit": "ms", "avg": 80.0, "p99": 120.0},
        "inter_token_latency": {"unit": "ms", "avg": 9.0},
        "request_throughput": {"unit": "requests/sec", "avg": 3.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 300.0},
        "request_count": {"unit": "requests", "avg": 60.0},
        "input_sequence_length": {"unit": "tokens", "avg": 550.0},
        "output_sequence_length": {"unit": "tokens", "avg": 100.0},
        "input_config": {"endpoint": {"model_names": ["m"]}, "loadgen": {"concurrency": 4}},
    }
    (run,) = read_results(write(tmp_path / "profile_export_aiperf.json", aggregate))
    assert run.latencies_ms["tpot"] == {"mean": 9.0}
    assert (run.concurrency, run.model, run.completed) == (4, "m", 60)


def test_aiperf_records_are_replayed_and_units_converted(tmp_path: Path) -> None:
    def record(start_ns: int, ttft: float, unit: str) -> dict[str, Any]:
        return {
            "metadata": {"request_start_ns": start_ns, "request_end_ns": start_ns + 10**9},
            "metrics": {
                "input_sequence_length": {"value": 550, "unit": "tokens"},
                "output_sequence_length": {"value": 9, "unit": "tokens"},
                "time_to_first_token": {"value": ttft, "unit": unit},
                "inter_token_latency": {"value": 5.0, "unit": "ms"},
            },
            "error": None,
        }

    failed = {"metadata": {"request_start_ns": 0, "request_end_ns": 1}, "metrics": {}, "error": {"code": 499}}
    rows = [record(2 * 10**9, 0.25, "s"), record(10**9, 250.0, "ms"), failed]
    (run,) = read_results(write(tmp_path / "profile_export.jsonl", "\n".join(map(json.dumps, rows))))
    workload = run.workload()
    assert workload is not None
    np.testing.assert_allclose(workload.arrival_s, [0.0, 1.0])
    assert run.latencies_ms["ttft"]["p99"] == pytest.approx(250)
    assert run.failed == 1


@pytest.mark.parametrize(
    ("config", "rate", "concurrency", "model"),
    [
        ({"loadgen": {"concurrency": 4}, "endpoint": {"model_names": ["m"]}}, None, 4, "m"),
        ({"perf_analyzer": {"stimulus": {"concurrency": 8}}, "model_names": ["m"]}, None, 8, "m"),
        (
            {
                "models": {"items": [{"name": "m"}]},
                "phases": [
                    {"name": "warmup", "type": "concurrency", "concurrency": 1},
                    {"name": "profiling", "type": "poisson", "rate": 3.5},
                ],
            },
            3.5,
            None,
            "m",
        ),
        (
            {"phases": {"profiling": {"type": "concurrency", "concurrency": 40}}, "models": ["m"]},
            None,
            40,
            "m",
        ),
        ({"phases": {"type": "concurrency", "concurrency": 2}}, None, 2, None),
        ({}, None, None, None),
    ],
)
def test_aiperf_has_said_its_load_in_three_ways(
    tmp_path: Path, config: dict[str, Any], rate: float | None, concurrency: int | None, model: str | None
) -> None:
    document = {"request_latency": {"unit": "ms", "avg": 900.0}, "input_config": config}
    (run,) = read_results(write(tmp_path / "profile_export_aiperf.json", document))
    assert (run.request_rate, run.concurrency, run.model) == (rate, concurrency, model)
