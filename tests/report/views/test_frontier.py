"""The frontier as a table: the answer's numbers, the limit, and why a deployment has none."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.report.display import rate_and_interval
from capacity.report.layout import render_text
from capacity.report.views.frontier import frontier_view
from capacity.report.views.layout import view_parts


@pytest.fixture(scope="module")
def frontier() -> Any:
    return capacity.frontier(
        "llama-3.1-70b",
        gpus=("h100-sxm-80gb", "l4"),
        loads=(1, 32),
        input_len=512,
        output_len=64,
        max_model_len=2048,
        tensor_parallel_sizes=(None, 8),
        price="2",
    )


def text_of(answer: Any, **asked: Any) -> str:
    return render_text(view_parts(frontier_view(answer, **asked), answer))


def test_the_best_of_each_within_the_limit(frontier: Any) -> None:
    fast, slow = frontier.lines[0], frontier.lines[2]
    assert [line.num_gpus for line in frontier.lines] == [2, 8, 8]  # the fewest L4 are 8 too
    limit_s = fast.points[0].tpot_s.value * 1.001
    text = text_of(frontier, tpot_s=limit_s)
    lines = text.splitlines()
    (row,) = [line for line in lines if line.strip().startswith(fast.label)]
    cells = row.split(fast.label)[1].split()
    rate = fast.points[0].output_tokens_per_s_per_gpu
    assert cells[0] == "1"
    assert cells[1] == rate_and_interval(fast.points[0].tpot_s.inverse(1.0))[0]
    assert cells[2] == rate_and_interval(rate)[0]
    assert rate_and_interval(rate)[1] in lines[lines.index(row) + 1]
    assert f"{slow.label}: no load is within a TPOT of {1e3 * limit_s:g} ms" in " ".join(text.split())


def test_every_point_and_what_none_beats(frontier: Any) -> None:
    lines = text_of(frontier, every=True).splitlines()
    rows = [line for line in lines if ", as published, vllm " in line]
    assert len(rows) == sum(len(line.points) for line in frontier.lines)
    assert sum(row.endswith("*") for row in rows) == len(frontier.pareto_points())
    points = [point for line in frontier.lines for point in line.points]
    for number, place in frontier.pareto_points():
        own = frontier.lines[number].points[place]
        assert not [
            other
            for other in points
            if other.tpot_s.value < own.tpot_s.value
            and other.output_tokens_per_s_per_gpu.value > own.output_tokens_per_s_per_gpu.value
        ]
    best = max(points, key=lambda point: point.output_tokens_per_s_per_gpu.value)
    assert best in [frontier.lines[number].points[place] for number, place in frontier.pareto_points()]


def test_what_does_not_fit_says_why() -> None:
    found = capacity.frontier(
        "llama-3.1-70b",
        gpus=("h100", "l4"),
        tensor_parallel_sizes=(4,),
        loads=(1,),
        input_len=64,
        output_len=8,
    )
    text = " ".join(text_of(found).split())
    assert found.lines[1].reason is not None
    assert found.lines[1].reason in text
