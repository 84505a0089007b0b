"""A simulation on a terminal and as charts: what stands at the start, levels that are met or not, parts add up."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.report.figures.drawing import draw_block
from capacity.report.figures.of_answer import charts_of
from capacity.report.tables import render
from capacity.report.views.one_run import run_charts
from capacity.report.views.run_latencies import PERCENTILES, latency_text

LOAD: dict[str, Any] = {
    "gpu": "h100", "input_len": 200, "output_len": 20, "request_rate": 8.0, "num_prompts": 60, "seed": 3,
}  # fmt: skip


def text_of(**options: Any) -> str:
    return render(capacity.simulate("llama-3.1-8b", **LOAD, **options), "table")


def test_one_engine_is_its_gpus_and_several_are_counted() -> None:
    assert "on 1 x h100-sxm-80gb, " in text_of()
    several = text_of(replicas=3)
    assert "3 replicas of " in several
    assert "requests each" in several


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
    text = text_of(slo=("ttft:p95:10s", "tpot:p95:1ms"))
    lines = {line.split()[0]: line.split()[-1] for line in text.splitlines() if line.split()[-1:] != []}
    assert lines["ttft:p95:10s"] == "met"
    assert lines["tpot:p95:1ms"] == "unmet"


def test_a_rate_that_draining_makes_less_says_so() -> None:
    """Beside what arrives, the whole run's rate is less by its last requests' stay, in a run that keeps up."""
    load: dict[str, Any] = {
        "gpu": "h100",
        "input_len": 300,
        "output_len": 400,
        "request_rate": 4.0,
        "num_prompts": 150,
    }
    text = render(capacity.simulate("llama-3.1-8b", **load), "table")
    assert "its draining included; 4." in text
    busy = render(
        capacity.simulate("llama-3.1-8b", **(load | {"request_rate": 90.0, "num_prompts": 900})), "table"
    )
    assert "its draining included" not in busy


def test_the_parts_of_a_request_add_up_to_its_life() -> None:
    answer = capacity.simulate("llama-3.1-8b", **(LOAD | {"length_distribution": "lognormal"}))
    rows = {chart.name: chart.rows for chart in charts_of(answer)}
    everyone, slowest = rows["where_time_went"]
    parts = [value for name, value in everyone.items() if name != "requests"]
    assert sum(parts) == pytest.approx(answer.to_dict()["mean_e2el_ms"])
    assert sum(value for name, value in slowest.items() if name != "requests") > sum(parts)
    assert sum(row["share of busy time"] for row in rows["what_bound_the_steps"]) == pytest.approx(1)
    assert sum(row["share of steps"] for row in rows["what_bound_the_steps"]) == pytest.approx(1)


def test_a_run_without_requests_has_no_parts_to_show() -> None:
    parts, bounds = (draw_block(block, None) for block in run_charts({}, ()))
    assert (parts.alt, parts.rows) == ("No request completed.", ())
    assert (bounds.alt, bounds.rows) == ("No step was taken.", ())
