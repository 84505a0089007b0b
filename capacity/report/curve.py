"""What `curve` answers, as tables: latency against rate, the knee, the highest rate, users and the day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.answers.records import Quantity
from capacity.report.display import as_sure, number_text, rate_and_interval, shown
from capacity.report.layout import Part, facts, grid, listed, notes
from capacity.report.plan import level_text

if TYPE_CHECKING:
    from capacity.planning.load.curve import Curve, CurvePoint
    from capacity.planning.load.day import Day
    from capacity.planning.load.highest_rate import HighestRate


def curve_tables(curve: Curve) -> list[Part]:
    """The load, the highest rate within the SLO, and replicas by the hour."""
    return [
        f"[bold]{curve.deployment}[/bold], {curve.workload}",
        _load_table(curve),
        *_highest_facts(curve),
        *_day_parts(curve.day),
        *notes(curve.warnings),
    ]


def _load_table(curve: Curve) -> Part:
    priced = any(point.cost is not None for point in curve.points)
    dollars = ("$/1M out",) if priced else ()
    heads = ("requests/s", "served", "out tok/s", "mean E2E, s", "tok/s/user", "batch", *dollars)
    slos = (level.slo for level in curve.points[0].levels)
    title = "Load, at step times as predicted"
    table = grid(title, *((head, "right") for head in (*heads, *slos)))
    for point in curve.points:
        knee = " knee" if point.request_rate_per_s == curve.knee_per_s else ""
        table.add_row(
            f"{point.request_rate_per_s:,.3g}{knee}",
            f"{point.requests_per_s:,.3g}",
            f"{point.output_tokens_per_s:,.0f}",
            f"{point.mean_e2e_s:,.2f}",
            shown(point.tokens_per_s_per_user, ",.1f"),
            f"{point.mean_batch_size:,.1f}",
            *([_dollars(point)] if priced else []),
            *(f"{level_text(level)}{'' if level.met else ' x'}" for level in point.levels),
        )
    return table


def _dollars(point: CurvePoint) -> str:
    return shown(None if point.cost is None else point.cost.usd_per_million_output_tokens, ",.3f")


def highest_texts(highest: HighestRate) -> tuple[str, str, str]:
    """The highest rate as predicted, its band, and with the confidence that was asked for."""
    predicted = Quantity(value=highest.predicted, low=highest.low, high=highest.high)
    confident = number_text(highest.at_confidence, as_sure(highest.at_confidence, predicted), digits=2)
    return *rate_and_interval(predicted), confident


def _highest_facts(curve: Curve) -> list[Part]:
    highest = curve.highest
    if highest is None:
        return []
    rate, band, confident = highest_texts(highest)
    rows = [
        ("as predicted", f"{rate} requests/s", f"{band} over the 90 % band of the step model's error"),
        (f"with {highest.confidence:.0%} confidence", f"{confident} requests/s", ""),
    ]
    if highest.sampling_low is not None and highest.sampling_high is not None:
        interval = f"{highest.sampling_low:,.3g} to {highest.sampling_high:,.3g}"
        of = f"90 % interval of the rate as predicted, over {highest.replications} draws of the traffic"
        rows.append(("another draw", interval, of))
    if curve.users is not None:
        each = f"of {curve.requests_per_user_hour:g} requests an hour each"
        rows.append(("users", f"{curve.users:,.0f}", each))
    return [facts("Highest rate within the SLO", rows)]


def _day_parts(day: Day | None) -> list[Part]:
    if day is None:
        return []
    table = listed(
        "Replicas by the hour",
        day.hours,
        ("hour", "right", lambda hour: f"{hour.hour}"),
        ("requests/s", "right", lambda hour: f"{hour.request_rate_per_s:,.2f}"),
        ("replicas", "right", lambda hour: f"{hour.replicas}"),
    )
    return [table, day_text(day)]


def day_text(day: Day) -> str:
    """Autoscaled against fixed, in replica-hours and $."""
    hours = f"{day.autoscaled_replica_hours} replica-hours autoscaled, {day.fixed_replica_hours} fixed"
    if day.fixed_usd_per_month is None or day.autoscaled_usd_per_month is None:
        return hours
    return f"{hours}; ${day.autoscaled_usd_per_month:,.0f} against ${day.fixed_usd_per_month:,.0f} a month"
