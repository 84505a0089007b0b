"""A simulation on a terminal and as charts: what stands at the start, what draining leaves out, parts add up."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.drawing import draw_block
from capacity.report.tables import render
from capacity.report.views.one_run import run_charts

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
    assert "including drain; offered and completed: 4." in " ".join(text.split())
    busy = render(
        capacity.simulate("llama-3.1-8b", **(load | {"request_rate": 90.0, "num_prompts": 900})), "table"
    )
    assert "including drain" not in busy


def test_the_parts_of_a_request_add_up_to_its_life() -> None:
    answer = capacity.simulate("llama-3.1-8b", **(LOAD | {"length_distribution": "lognormal"}))
    rows = {chart.name: chart.rows for chart in answer_charts(answer)}
    everyone, slowest = rows["where_time_went"]
    parts = [value for name, value in everyone.items() if name != "requests"]
    assert sum(parts) == pytest.approx(answer.to_dict()["mean_e2el_ms"])
    assert sum(value for name, value in slowest.items() if name != "requests") > sum(parts)
    assert sum(row["share of busy time"] for row in rows["what_bound_the_steps"]) == pytest.approx(1)
    assert sum(row["share of steps"] for row in rows["what_bound_the_steps"]) == pytest.approx(1)


def test_a_run_without_requests_has_no_parts_to_show() -> None:
    parts, bounds = (draw_block(block, None) for block in run_charts({}, ()))
    assert (parts.alt, parts.rows) == ("No request completed.", ())
    assert (bounds.alt, bounds.rows) == ("No step was executed.", ())
