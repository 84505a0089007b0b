"""The report of `capacity watch`: its records, the comparison of windows with their predictions, and its page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from statistics import fmean, pstdev
from typing import ClassVar

from capacity.answers.interval_parts import Z_90
from capacity.base.quantity import Quantity
from capacity.base.record import AnswerRecord, WrittenRecord
from capacity.hardware.measured_loads import REPEATED
from capacity.report.display import rate_and_interval, seconds_and_interval, text_and_interval
from capacity.report.figures.chart import four_digits
from capacity.report.views import units
from capacity.report.views.view import Block, Column, Curves, Fact, Facts, Table, View
from capacity_validate.comparison import MetricRow, coverage_text, error_text, metric_title
from capacity_validate.drift_test import FALSE_ALARMS, find_drift
from capacity_validate.rate_growth import MIN_DAYS, Growth
from capacity_validate.scrape_history import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLevel(WrittenRecord):
    """One SLO at the present load, in seconds: measured in the last window, the bounds of the histogram's bucket that
    contains this value (None if the server does not export it), and predicted."""

    LAST: ClassVar[tuple[str, ...]] = ("headroom",)

    slo: str
    limit_s: float
    measured_s: float | None
    bucket_s: tuple[float, float] | None
    predicted_s: Quantity

    @property
    def headroom(self) -> Quantity:
        """Return 1 - predicted / limit; negative if the SLO is missed."""
        low, high = self.predicted_s.low or 0.0, self.predicted_s.high or 0.0
        value, worst, best = (1 - each / self.limit_s for each in (self.predicted_s.value, high, low))
        return Quantity(value=value, low=worst, high=best)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A deployment at the present load: the highest rate (requests/s) and number of requests in flight within the SLO,
    and each SLO's metric (s). The SLO is met up to `safe_rate_per_s` and `safe_concurrency` with 90 % confidence.
    `load_ratio`: requests in flight of a replica at the highest rate, divided by those of the nearest measured load."""

    name: str
    highest_rate_per_s: Quantity
    safe_rate_per_s: float
    highest_concurrency: Quantity
    safe_concurrency: float
    load_ratio: float | None
    levels_s: dict[str, Quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChange:
    """A change that the drift test found: the metric, since when (seconds since 1970), and the factor on measured /
    predicted. `outside`: the factor is outside the 90 % interval of repeated runs, which raises the alarm."""

    metric: str
    since_s: float
    factor: float
    outside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedWindow:
    """A window: its end (seconds since 1970), length, arrivals per second, and metrics as measured and as predicted for
    the server before any change."""

    end_s: float
    seconds: float
    request_rate_per_s: float
    metrics: tuple[MetricRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReport(AnswerRecord):
    """The state of a server: SLO headroom, limits, growth, scenarios, changes, and its latest windows.

    `growth` is None with too few windows, `hours_to_saturation` without significant growth.
    """

    SCHEMA: ClassVar[str] = "capacity/watch/v1"
    ROWS: ClassVar[str] = "windows"
    LAST: ClassVar[tuple[str, ...]] = ("healthy",)

    source: str
    model: str
    gpu: str
    num_gpus: int
    engine: str
    request_rate_per_s: float
    growth: Growth | None
    hours_to_saturation: Quantity | None
    levels: tuple[WatchedLevel, ...]
    scenarios: tuple[Scenario, ...]
    changes: tuple[ServerChange, ...]
    windows: tuple[WatchedWindow, ...]
    notes: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Return whether no change is outside the 90 % interval of repeated runs."""
        return not any(change.outside for change in self.changes)


def compare_windows(
    found: Sequence[tuple[Window, tuple[MetricRow, ...]]],
) -> tuple[tuple[WatchedWindow, ...], tuple[ServerChange, ...]]:
    """Return the windows with corrected predictions, and the changes of the server that the drift test finds in mean
    TTFT and TPOT.

    Predictions are multiplied by the mean of measured / predicted before a change. Their intervals contain the scatter
    of repeated runs of one server, and for percentiles also the scatter of the windows before a change.
    """
    changes: list[ServerChange] = []
    rows: dict[float, list[MetricRow]] = {window.end_s: [] for window, _ in found}
    changed_s = dict.fromkeys(REPEATED, math.inf)
    for statistic, metric in product(("mean", "p95"), REPEATED):
        pairs = [
            (window, row) for window, each in found for row in each if row.name == f"{statistic}_{metric}_ms"
        ]
        logs = [math.log(row.measured / row.predicted) for _, row in pairs if row.predicted]
        scatter = REPEATED[metric]
        if statistic == "mean":
            deviations = [math.log(row.high / row.low) / 2 / Z_90 for _, row in pairs if row.low and row.high]
            drift = find_drift(
                [log / deviation for log, deviation in zip(logs, deviations, strict=True)],
                [math.log(row.predicted) for _, row in pairs if row.predicted],
            )
            start = len(logs) if drift is None else max(drift.start, 1)
            if drift is not None:
                changed_s[metric] = pairs[start][0].end_s - pairs[start][0].seconds
                changes.append(_server_change(pairs[0][1].name, changed_s[metric], logs, start, scatter))
        else:
            start = sum(window.end_s - window.seconds / 2 < changed_s[metric] for window, _ in pairs)
            scatter = math.hypot(scatter, pstdev(logs[:start] or [0.0]))
        bias = fmean(logs[:start] or [0.0])
        for window, row in pairs:
            value = (row.predicted or 0.0) * math.exp(bias)
            low, high = (value * math.exp(sign * Z_90 * scatter) for sign in (-1, 1))
            rows[window.end_s].append(replace(row, predicted=value, low=low, high=high))
    points = tuple(
        WatchedWindow(
            end_s=window.end_s,
            seconds=window.seconds,
            request_rate_per_s=window.offered_per_s,
            metrics=tuple(rows[window.end_s]),
        )
        for window, _ in found
    )
    return points, tuple(changes)


def _server_change(
    metric: str, since_s: float, logs: Sequence[float], start: int, scatter: float
) -> ServerChange:
    """Return the change of `logs`, ln(measured / predicted), at index `start`; `scatter`: between repeated runs."""
    moved = fmean(logs[start:]) - fmean(logs[:start])
    outside = abs(moved) > Z_90 * scatter
    return ServerChange(metric=metric, since_s=since_s, factor=math.exp(moved), outside=outside)


def report_notes(growth: Growth | None, changes: Sequence[ServerChange]) -> Iterator[str]:
    if growth is not None and growth.is_known and not growth.by_day:
        yield f"The growth includes the time of day, because the history is shorter than {MIN_DAYS} days."
    for change in changes:
        if not change.outside:
            yield (
                f"{change.metric} changed by {change.factor - 1:+.1%}, within the 90 % interval of repeated runs."
            )
    if changes:
        yield (
            f"On average, at most one window in {FALSE_ALARMS[0.0]:,} gives a false alarm, or one in "
            f"{FALSE_ALARMS[0.6]:,} if neighbouring windows have a correlation of 0.6. Limits use only the windows "
            "since the change. To accept the change as normal, remove the --state file."
        )


def _text_with_interval(texts: tuple[str, str]) -> str:
    return f"{texts[0]} ({texts[1]})" if texts[1] else texts[0]


def _time_text(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, tz=UTC):%Y-%m-%d %H:%M} UTC"


def change_text(change: ServerChange) -> str:
    """Return a sentence on a change that the drift test found."""
    return (
        f"{'ALARM' if change.outside else 'change'}: {metric_title(change.metric).removesuffix(', ms')} is "
        f"{change.factor - 1:+.0%} from its prediction since {_time_text(change.since_s)}"
    )


def growth_text(answer: WatchReport) -> str:
    """Return the growth of the rate, the forecast, and the hours until saturation."""
    growth = answer.growth
    if growth is None:
        return "unknown: too few windows"
    if not growth.is_known:
        return f"unknown: the history of {2 * growth.horizon_h:.2g} h is too short or too irregular"
    trend = f"{_text_with_interval(text_and_interval(growth.per_hour, digits=3))} requests/s per hour"
    if not growth.is_significant:
        trend += ", not significant"
    forecast = (
        f"in the next {growth.horizon_h:.2g} h {rate_and_interval(growth.forecast_per_s)[1]} on average"
    )
    if answer.hours_to_saturation is not None:
        hours = answer.hours_to_saturation
        latest = "or later" if hours.high is None else f"to {hours.high:.2g} h"
        forecast = f"saturation in {hours.value:.2g} h ({hours.low or 0.0:.2g} h {latest})"
    return f"{trend}; {forecast}"


def status_line(answer: WatchReport) -> str:
    """Return one line: time, rate, limit, growth and changes."""
    parts = [f"{_time_text(answer.windows[-1].end_s)}: {answer.request_rate_per_s:.2f} requests/s"]
    for scenario in answer.scenarios[:1]:
        parts.append(
            f"highest within the SLO {_text_with_interval(rate_and_interval(scenario.highest_rate_per_s))}"
        )
    return "; ".join([*parts, f"growth {growth_text(answer)}", *map(change_text, answer.changes)])


def watch_view(answer: WatchReport) -> View:
    """Return the view of a report: changes, SLO headroom, limits by scenario, growth, and measured and predicted
    latencies."""
    title = (
        f"[bold]{answer.model}[/bold] on {answer.num_gpus} x {answer.gpu}, {answer.engine}; {answer.source}"
    )
    return View(title, _blocks(answer), notes=answer.notes)


def _blocks(answer: WatchReport) -> Iterator[Block]:
    yield from map(change_text, answer.changes)
    rate = f"{answer.request_rate_per_s:.2f} requests/s"
    hours = (answer.windows[-1].end_s - answer.windows[0].end_s + answer.windows[0].seconds) / 3600
    rows = [row for window in answer.windows for row in window.metrics]
    windows = f"{len(answer.windows)} in {hours:,.3g} h.{coverage_text(rows)}"
    facts = [Fact("request rate", rate), Fact("growth", growth_text(answer)), Fact("windows", windows)]
    yield Facts("Load", facts)
    yield _headroom_table(answer)
    yield _limits_table(answer)
    newest = answer.windows[-1]
    for row in newest.metrics:
        yield _latency_chart(answer, row.name)
    for row in newest.metrics:
        values = (row.measured, row.predicted or 0.0, row.low or 0.0, row.high or 0.0)
        measured, predicted, low, high = map(four_digits, values)
        yield (
            f"{metric_title(row.name)}: measured {measured}, predicted {predicted} ({low} to {high}), "
            f"{error_text(row.error)}"
        )


def _headroom_table(answer: WatchReport) -> Table:
    levels = [
        Column("SLO", "slo", units.TEXT),
        Column("measured (bucket), s", _measured_text, units.TEXT),
        Column(
            "predicted, s",
            lambda level: _text_with_interval(seconds_and_interval(level.predicted_s)),
            units.TEXT,
        ),
        Column("headroom", _headroom_text, units.TEXT),
    ]
    return Table("SLO headroom at this rate", answer.levels, levels)


def _limits_table(answer: WatchReport) -> Table:
    limits = [
        Column("deployment", "name", units.TEXT),
        Column(
            "requests/s",
            lambda each: _text_with_interval(rate_and_interval(each.highest_rate_per_s)),
            units.TEXT,
        ),
        Column("with 90 % confidence", "safe_rate_per_s", units.Unit(significant=3)),
        Column("requests in flight", _in_flight_text, units.TEXT),
        Column("with 90 % confidence", "safe_concurrency", units.Unit(significant=3)),
    ]
    return Table("Highest load within the SLO", answer.scenarios, limits)


def _measured_text(level: WatchedLevel) -> str:
    if level.measured_s is None or level.bucket_s is None:
        return "not exported"
    return f"{level.measured_s:.3g} ({level.bucket_s[0]:g} to {level.bucket_s[1]:g})"


def _headroom_text(level: WatchedLevel) -> str:
    found = level.headroom
    low, high = (found.low or 0.0, found.high or 0.0)
    return f"{found.value:.0%} ({low:.0%} to {high:.0%})"


def _in_flight_text(scenario: Scenario) -> str:
    return _text_with_interval(text_and_interval(scenario.highest_concurrency))


def _latency_chart(answer: WatchReport, name: str) -> Curves:
    """Return the chart of a metric over time, as measured and as predicted with its interval."""
    measured: dict[float, float] = {}
    predicted: dict[float, Quantity] = {}
    for window in answer.windows:
        hours = round((window.end_s - answer.windows[-1].end_s) / 3600, 4)
        for row in window.metrics:
            if row.name == name and row.predicted is not None:
                measured[hours] = row.measured
                predicted[hours] = Quantity(value=row.predicted, low=row.low, high=row.high)
    return Curves(
        name=name,
        title=f"{metric_title(name)}: measured and predicted",
        alt=f"{len(measured)} windows.",
        data={"measured": measured, "predicted": predicted},
        labels="hours before the last window",
        axis=metric_title(name),
        linear=True,
        rows=[_chart_row(window, name) for window in answer.windows],
    )


def _chart_row(window: WatchedWindow, name: str) -> dict[str, object]:
    found = {"end": _time_text(window.end_s), "requests/s": window.request_rate_per_s}
    rows = [row for row in window.metrics if row.name == name]
    return found | {
        key: getattr(row, key) for row in rows for key in ("measured", "predicted", "low", "high")
    }
