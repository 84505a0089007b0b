"""The cascade's tables and charts: the answer's own figures, intervals where there are any, words for open rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

import capacity
from capacity.base.quantity import Quantity
from capacity.planning.cascades.cascade_answer import CascadeAnswer
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.drawing import draw_chart
from capacity.report.tables import render
from capacity.report.views import units
from capacity.report.views.cascade import cascade_facts, escalation_chart

LOAD = {
    "input_len": 600,
    "output_len": 60,
    "request_rate": 20.0,
    "num_prompts": 60,
    "price": "2",
    "gpu": "h100",
}
BOTH = {"small": "llama-3.2-1b", "escalation_rate": 0.3, **LOAD}


@pytest.fixture(scope="module")
def hosted() -> CascadeAnswer:
    """Before an API."""
    return capacity.cascade(
        "llama-3.3-70b", api="DeepInfra", api_ttft_s=0.5, small="llama-3.2-1b", small_gpu="l4", escalation_rate=0.25,
        price="0.5", input_len=600, output_len=60, request_rate=4.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def answer() -> CascadeAnswer:
    return capacity.cascade("llama-3.1-8b", simulate=True, **BOTH)


def line(answer: CascadeAnswer, start: str) -> str:
    return next(text for text in render(answer, "table").splitlines() if text.startswith(start))


def test_every_place_and_the_whole_are_shown(hosted: CascadeAnswer) -> None:
    text = render(hosted, "table")
    assert "llama-3.2-1b in front of llama-3.3-70b: 4 requests/s of 600 tokens in, 60 out" in text
    assert "API of DeepInfra" in text
    assert "25.0%" in text
    assert f"{hosted.cascade.usd_per_month.value:,.0f}" in text
    assert f"{hosted.cascade.billed_gpus}" in text
    alone = line(hosted, " mean TTFT")
    assert "500.0 ms" in alone  # as measured: without an interval
    assert alone.count(" to ") == 1


def test_rates_without_an_end_are_words(hosted: CascadeAnswer) -> None:
    even = replace(hosted.break_even, escalation_rate_at_scale=None, escalation_rate_here=1.0)
    rates = line(replace(hosted, break_even=even), " escalation rate, pays up to")
    assert "never" in rates
    assert " any " in rates


def test_a_figure_says_how_far_it_is_from_the_large_model_alone(hosted: CascadeAnswer) -> None:
    dear = Quantity(value=100.0, low=90.0, high=110.0)
    ours = replace(hosted.cascade, usd_per_month=dear, billed_gpus=3)
    alone = replace(hosted.alone, usd_per_month=dear.scale(0.25), billed_gpus=0)
    facts = {fact.label: fact for fact in cascade_facts(replace(hosted, cascade=ours, alone=alone))}
    assert facts["$ a month"].note == "alone $25.0, x 4"
    assert facts["GPUs"].note == "alone 0, "
    assert facts["Pays up to"].note.endswith("your rate is 25.0%")
    same = replace(hosted.alone, usd_per_month=dear.scale(1.25))
    facts = {fact.label: fact for fact in cascade_facts(replace(hosted, cascade=ours, alone=same))}
    assert facts["$ a month"].note.endswith(", -20%")


def test_bars_and_lines_are_the_answers_figures(answer: CascadeAnswer) -> None:
    bill, waits, chart = answer_charts(answer)
    many, here, alone, alone_here = chart.figure.data
    assert many.x[0] == 0
    assert many.x[-1] == 1
    assert many.y[-1] == pytest.approx(1e3 * answer.rates[-1].usd_per_request_at_scale.value)
    assert set(alone.y) == {1e3 * answer.alone.usd_per_request_at_scale.value}
    assert set(alone_here.y) == {1e3 * answer.alone.usd_per_request.value}
    asked = next(n for n, row in enumerate(answer.rates) if row.escalation_rate == 0.3)
    assert here.y[asked] == pytest.approx(1e3 * answer.cascade.usd_per_request.value)
    assert "at no escalation rate" in chart.alt or "up to" in chart.alt
    assert all("<svg" in each.svg() for each in (bill, waits, chart))
    *places, alone_bar, whole, alone_whole = bill.figure.data
    assert [bar.x[0] for bar in places] == [tier.usd_per_month.value for tier in answer.tiers]
    assert sum(bar.x[0] for bar in places) == pytest.approx(whole.x[0])
    assert (alone_bar.x[1], *alone_whole.x) == (answer.alone.usd_per_month.value,) * 2
    both = {trace.name: trace for trace in waits.figure.data}
    assert list(both) == ["cascade", "simulated together", "large model alone"]
    for name, side in (("cascade", answer.cascade), ("large model alone", answer.alone)):
        at = both[name].y.index("p95 E2E")
        assert side.p95_e2e_s is not None
        assert both[name].x[at] == pytest.approx(1e3 * side.p95_e2e_s.value)
        assert both[name].x[at] + both[name].error_x.array[at] == pytest.approx(1e3 * side.p95_e2e_s.high)
        assert both[name].x[at] - both[name].error_x.arrayminus[at] == pytest.approx(1e3 * side.p95_e2e_s.low)


def test_a_run_of_the_whole_stands_beside_the_times_that_were_added_up(answer: CascadeAnswer) -> None:
    assert answer.together is not None
    text = render(answer, "table").partition("Simulated as one deployment")[2]
    own = answer.together.p95_e2e_s
    assert all(words in text for words in units.LATENCY.texts(own))
    assert f"{answer.together.completed} of {answer.together.requests} requests answered" in text
    (_, waits, _) = answer_charts(answer)
    bars = {bar.name: bar for bar in waits.figure.data}
    at = bars["simulated together"].y.index("p95 E2E")
    assert bars["simulated together"].x[at] == pytest.approx(1e3 * own.value)


def test_a_cache_alone_has_no_rates_to_draw() -> None:
    answer = capacity.cascade("llama-3.1-8b", cache_hit_rate=0.3, **LOAD)
    assert draw_chart(escalation_chart(answer)).rows == ()
    assert [chart.name for chart in answer_charts(answer)] == ["cascade_bill", "cascade_latency"]
    assert [fact.label for fact in cascade_facts(answer)][-1] == "Pays from"


def test_an_api_that_nobody_timed_has_a_bill_and_no_waiting() -> None:
    load = {name: value for name, value in LOAD.items() if name != "gpu"}
    answer = capacity.cascade(
        "llama-3.1-8b", cache_hit_rate=0.3, api_input_price=0.4, api_output_price=0.4, **load
    )
    assert [chart.name for chart in answer_charts(answer)] == ["cascade_bill"]
