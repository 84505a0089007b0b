"""Latencies of a run as tables: rounding keeps their order, and service levels are met or not."""

from __future__ import annotations

import capacity
from capacity.report.tables import render
from capacity.report.views.run_latencies import PERCENTILES, latency_text


def test_percentiles_of_a_latency_never_fall_by_rounding() -> None:
    """Each percentile has an interval of its own; p95 of this E2E was printed as 60,000 ms and p90 as 81,000 ms."""
    answer = capacity.simulate(
        "deepseek-r1", gpu="h200", tensor_parallel_size=8, engine="sglang@0.5.9", input_len=8192, output_len=1024,
        concurrency=64, num_prompts=128, max_model_len=10240,
    )  # fmt: skip
    values = answer.to_dict()
    for metric in ("ttft", "tpot", "e2el"):
        shown = [
            float(latency_text(answer, f"{p}_{metric}_ms", values[f"{p}_{metric}_ms"]).replace(",", ""))
            for p in PERCENTILES
        ]
        assert shown == sorted(shown), metric


def test_a_service_level_is_met_or_unmet() -> None:
    answer = capacity.simulate(
        "llama-3.1-8b", gpu="h100", input_len=200, output_len=20, request_rate=8.0, num_prompts=60,
        slo=("ttft:p95:10s", "tpot:p95:1ms"),
    )  # fmt: skip
    text = render(answer, "table")
    lines = {line.split()[0]: line.split()[-1] for line in text.splitlines() if line.split()[-1:] != []}
    assert lines["ttft:p95:10s"] == "met"
    assert lines["tpot:p95:1ms"] == "missed"
