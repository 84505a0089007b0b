"""The cascade's chart: the answer's own figures, by the thousand requests."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.figures.cascades import cascade_chart, cascade_latency_chart
from capacity.report.figures.of_answer import charts_of

LOAD = {
    "input_len": 600,
    "output_len": 60,
    "request_rate": 20.0,
    "num_prompts": 60,
    "price": "2",
    "gpu": "h100",
}


def test_lines_are_the_answers_figures() -> None:
    answer = capacity.cascade("llama-3.1-8b", small="llama-3.2-1b", escalation_rate=0.3, **LOAD)
    bill, waits, chart = charts_of(answer)
    band, many, here, alone, alone_here = chart.figure.data
    assert many.x[0] == 0
    assert many.x[-1] == 100
    assert many.y[-1] == pytest.approx(1e3 * answer.rates[-1].usd_per_request_at_scale.value)
    assert set(alone.y) == {1e3 * answer.alone.usd_per_request_at_scale.value}
    assert set(alone_here.y) == {1e3 * answer.alone.usd_per_request.value}
    asked = next(n for n, row in enumerate(answer.rates) if row.escalation_rate == 0.3)
    assert here.y[asked] == pytest.approx(1e3 * answer.cascade.usd_per_request.value)
    assert len(band.x) == 2 * len(many.x)
    assert "up to" in chart.alt
    assert all("<svg" in each.svg() for each in (bill, waits, chart))
    *places, alone_bar, whole = bill.figure.data
    assert [bar.x[0] for bar in places] == [tier.usd_per_month.value for tier in answer.tiers]
    assert sum(bar.x[0] for bar in places) == pytest.approx(whole.x[0])
    assert (alone_bar.x[0], *whole.x[1:]) == (answer.alone.usd_per_month.value,) * 2
    both = {trace.name: trace for trace in waits.figure.data}
    for name, side in (("cascade", answer.cascade), ("large model alone", answer.alone)):
        at = both[name].y.index("p95 E2E")
        assert side.p95_e2e_s is not None
        assert both[name].x[at] == pytest.approx(1e3 * side.p95_e2e_s.value)
        assert both[name].x[at] + both[name].error_x.array[at] == pytest.approx(1e3 * side.p95_e2e_s.high)
        assert both[name].x[at] - both[name].error_x.arrayminus[at] == pytest.approx(1e3 * side.p95_e2e_s.low)


def test_a_run_of_the_whole_stands_beside_the_times_that_were_added_up() -> None:
    answer = capacity.cascade(
        "llama-3.1-8b", small="llama-3.2-1b", escalation_rate=0.3, simulate=True, **LOAD
    )
    assert answer.together is not None
    bars = {bar.name: bar for bar in cascade_latency_chart(answer).figure.data}
    assert list(bars) == ["cascade", "simulated together", "large model alone"]
    at = bars["simulated together"].y.index("p95 E2E")
    assert bars["simulated together"].x[at] == pytest.approx(1e3 * answer.together.p95_e2e_s.value)


def test_a_cache_alone_has_no_rates_to_draw() -> None:
    answer = capacity.cascade("llama-3.1-8b", cache_hit_rate=0.3, **LOAD)
    assert cascade_chart(answer).rows == ()
    assert [chart.name for chart in charts_of(answer)] == ["cascade_bill", "cascade_latency"]


def test_an_api_that_nobody_timed_has_a_bill_and_no_waiting() -> None:
    load = {name: value for name, value in LOAD.items() if name != "gpu"}
    answer = capacity.cascade(
        "llama-3.1-8b", cache_hit_rate=0.3, api_input_price=0.4, api_output_price=0.4, **load
    )
    assert [chart.name for chart in charts_of(answer)] == ["cascade_bill"]
