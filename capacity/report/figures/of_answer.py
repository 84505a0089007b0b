"""The charts of an answer, whichever it is: those that the dashboard draws of it, for pages that are printed."""

from __future__ import annotations

from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

from capacity.base.record import AnswerRecord
from capacity.base.registry import ANSWERS
from capacity.hardware import profile_names
from capacity.report.figures import Chart
from capacity.report.figures.drawing import draw_charts
from capacity.report.subject import subject_of
from capacity.report.tables import schema_name


def charts_of(answer: AnswerRecord) -> tuple[Chart, ...]:
    """The charts of this answer; none for answers that have none."""
    shown = ANSWERS.get(schema_name(answer))
    if shown is not None and shown.view:
        return tuple(draw_charts(resolve_name(shown.view)(answer), answer))
    if shown is None or not shown.charts:
        return ()
    return tuple(chart for chart in resolve_name(shown.charts)(answer) if chart.rows)


def fit_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.memory import memory_chart

    yield memory_chart(answer)


def estimate_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.estimates import roofline_chart, step_chart, ttft_chart

    subject = subject_of(answer)
    if answer.ttft_parts_s is not None:
        yield ttft_chart(answer.ttft_parts_s, ttft_s=answer.ttft_s, subject=subject)
    if answer.breakdown.decode:
        yield step_chart(answer.breakdown.decode, "decode", like=answer.tpot_s, subject=subject)
    else:
        yield step_chart(answer.breakdown.prefill, "prefill", like=answer.ttft_s, subject=subject)
    if answer.gpu.name in profile_names():  # the roof is the profile's
        yield roofline_chart(answer)


def explain_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.estimates import responses_chart, shares_chart

    yield shares_chart(answer)
    yield responses_chart(answer)


def comparison_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.loads import comparison_chart

    yield comparison_chart(answer)


def frontier_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.frontiers import frontier_chart

    yield frontier_chart(answer)


def cascade_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.cascades import cascade_bill_chart, cascade_chart, cascade_latency_chart

    yield cascade_bill_chart(answer)
    yield cascade_latency_chart(answer)
    if answer.rates:
        yield cascade_chart(answer)


def engine_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.engines import engines_chart

    for name in ("throughput", "ttft", "tpot"):
        yield engines_chart(answer, name)


def fleet_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.fleets import fleet_day_chart, layouts_chart, levels_chart
    from capacity.report.figures.planning import windows_chart

    yield layouts_chart(answer)
    if answer.best is not None:
        yield levels_chart(answer.best, subject=subject_of(answer))
    if answer.proof is not None and answer.proof.windows:
        yield windows_chart(answer.proof.windows, subject=subject_of(answer))
    yield fleet_day_chart(answer)


def sweep_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.loads import FIGURES, sweep_chart

    priced = any(point.usd_per_million_output_tokens is not None for point in answer.points)
    for name in FIGURES:
        if name != "price" or priced:
            yield sweep_chart(answer, name)


def simulation_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures import runs

    only = {"this run": answer}
    yield runs.latency_chart(only, "ttft")
    yield runs.latency_chart(only, "tpot")
    if answer.run.series:
        yield runs.state_chart(only)
    yield runs.time_parts_chart(only)
    yield runs.bounds_chart(only)


def curve_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.costs import curve_chart, day_chart, served_chart

    yield curve_chart(answer)
    yield served_chart(answer)
    day = day_chart(answer)
    if day is not None:
        yield day


def plan_charts(answer: Any) -> Iterator[Chart]:
    from capacity.report.figures.planning import front_chart, speed_chart, windows_chart

    if answer.best is not None and answer.best.trial.windows:
        yield windows_chart(answer.best.trial.windows, subject=subject_of(answer))
    if answer.speed_front:
        yield speed_chart(answer)
    if answer.cost_front:
        yield front_chart(answer)
