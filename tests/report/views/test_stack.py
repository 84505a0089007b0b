"""What `stack` shows: each technique with its place, factors and reasons, bars from one deployment to the next."""

from __future__ import annotations

from itertools import pairwise

import pytest

import capacity
from capacity import stack
from capacity.planning.variations.stack import Stack
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.drawing import draw_charts
from capacity.report.tables import render
from capacity.report.views.stack import charted_figures, factor_text, stack_view


def test_a_stack_as_tables() -> None:
    answer = stack(
        "llama-3.1-8b", gpu="h100", input_len=200, output_len=20, concurrency=4, num_prompts=8, price="2",
        order=["bf16", "kv-cache", "prefix-caching", "cuda-graphs"],
    )  # fmt: skip
    text = render(answer, "table")
    for words in (
        "1 BF16 instead",
        "4 CUDA graphs",
        "not applicable: prefix caching",
        "together",
        "$/1M out",
        "assumed",
    ):
        assert words in text
    assert "3 prefix" not in text
    assert text.index("naive:") < text.index("with all techniques:")


@pytest.mark.parametrize(("factor", "text"), [(0.456, "0.46x"), (12.34, "12.3x"), (1234.5, "1,234x")])
def test_factors_have_the_digits_that_they_bear(factor: float, text: str) -> None:
    assert factor_text(factor) == text


@pytest.fixture(scope="module")
def answer() -> Stack:
    """Techniques that help, one that harms TTFT or TPOT, and one that this traffic has no use for."""
    order = ("bf16", "kv-cache", "static-batching", "continuous-batching", "prefix-caching")
    return capacity.stack(
        "llama-3.1-8b",
        gpu="h100",
        input_len=200,
        output_len=40,
        concurrency=8,
        num_prompts=20,
        order=order,
    )


def test_each_bar_goes_from_the_deployment_before_to_its_own(answer: Stack) -> None:
    chart, _ = draw_charts(stack_view(answer, "TPOT"), answer)
    *bars, whole = chart.figure.data
    steps = [answer.naive, *(step.figures for step in answer.taken if step.figures is not None)]
    ends = [1e3 * step.tpot_s.value for step in steps if step.tpot_s is not None]
    assert list(whole.x) == pytest.approx(ends)
    spans = {
        name: (base, base + x) for bar in bars for name, base, x in zip(bar.y, bar.base, bar.x, strict=True)
    }
    assert [spans[name] for name in whole.y[1:]] == [pytest.approx(pair) for pair in pairwise(ends)]
    better, worse = bars
    assert all(spans[name][1] <= spans[name][0] for name in better.y)
    assert all(spans[name][1] > spans[name][0] for name in worse.y)
    assert worse.y  # a batch is slower for each of its requests
    last = steps[-1].tpot_s
    assert last is not None
    assert whole.x[-1] + whole.error_x.array[-1] == pytest.approx(1e3 * last.high)
    assert whole.x[-1] - whole.error_x.arrayminus[-1] == pytest.approx(1e3 * last.low)


def test_factors_stand_beside_those_of_each_alone(answer: Stack) -> None:
    _, chart = draw_charts(stack_view(answer, "Output tokens/s"), answer)
    own, alone = chart.figure.data
    steps = answer.taken
    assert [1 + x for x in own.x] == pytest.approx(
        [*(s.own.throughput for s in steps if s.own), answer.together.throughput]
    )
    assert [1 + x for x in alone.x] == pytest.approx(
        [*(s.alone.throughput for s in steps if s.alone), answer.product_of_single.throughput]
    )
    assert [row["cumulative"] for row in chart.rows] == [
        pytest.approx(step.cumulative.throughput, rel=5e-3) for step in steps if step.cumulative
    ]
    refused = next(step for step in answer.steps if step.refused)
    assert f"not applicable: {refused.title}: {refused.refused}" in " ".join(render(answer, "table").split())


def test_without_a_price_none_is_drawn_and_a_page_has_every_picture(answer: Stack) -> None:
    assert charted_figures(answer) == ("Output tokens/s", "TTFT", "TPOT")
    drawn = answer_charts(answer)
    assert [chart.name for chart in drawn] == [
        "stack_throughput",
        "stack_ttft",
        "stack_tpot",
        "stack_factors_throughput",
    ]
    assert all("<svg" in chart.svg() for chart in drawn)
