"""Pictures of simulated runs: the numbers are the summary's, parts add up."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.figures.runs import bounds_chart, latency_chart, time_parts_chart, timeline_chart

SIMULATED = {
    "gpu": "h100-sxm-80gb",
    "input_len": 1024,
    "output_len": 256,
    "num_prompts": 120,
    "length_distribution": "lognormal",
    "request_rate": 4.0,
}


def test_the_latency_chart_ends_at_the_summarys_percentiles() -> None:
    answer = capacity.simulate("llama-3.1-8b", **SIMULATED)
    shown = latency_chart({"run": answer}, "e2el").rows[0]
    assert shown["p95, ms"] == pytest.approx(answer.to_dict()["p95_e2el_ms"])


def test_the_parts_of_a_request_add_up_to_its_life() -> None:
    runs = {"run": capacity.simulate("llama-3.1-8b", **SIMULATED)}
    everyone, slowest = time_parts_chart(runs).rows
    parts = [value for name, value in everyone.items() if name != "requests"]
    assert sum(parts) == pytest.approx(runs["run"].to_dict()["mean_e2el_ms"])
    assert sum(value for name, value in slowest.items() if name != "requests") > sum(parts)
    assert sum(row["share of busy time"] for row in bounds_chart(runs).rows) == pytest.approx(1)
    assert sum(row["share of steps"] for row in bounds_chart(runs).rows) == pytest.approx(1)


def test_every_step_is_as_wide_as_it_lasted() -> None:
    steps = [
        {"ts": 0.0, "dur": 2e3, "name": "prefill", "args": {"rows": 1, "tokens": 8, "prefill_tokens": 8}},
        {"ts": 2e3, "dur": 1e3, "name": "decode", "args": {"rows": 1, "tokens": 1, "prefill_tokens": 0}},
    ]
    chart = timeline_chart(steps)
    assert [(list(bar.x), list(bar.width)) for bar in chart.figure.data] == [
        ([1], [2]),
        ([], []),
        ([2.5], [1]),
    ]
    assert chart.alt == "2 steps: 1 prefill, 0 mixed and 1 decode."


def test_nothing_to_show_is_said() -> None:
    assert time_parts_chart({}).alt == "No request completed."
    assert bounds_chart({}).alt == "No step was taken."
