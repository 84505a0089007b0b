"""The page of `capacity watch`, and its line for a terminal."""

from collections.abc import Iterator
from datetime import UTC, datetime

from capacity.base.quantity import Quantity
from capacity.report.display import rate_and_interval, seconds_and_interval, text_and_interval
from capacity.report.views import units
from capacity.report.views.view import Block, Column, Curves, Fact, Facts, Table, View
from capacity_validate.comparison import coverage_text
from capacity_validate.comparison_page import error_text, metric_title
from capacity_validate.watch_report import Scenario, ServerChange, WatchedLevel, WatchedWindow, WatchReport


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
    trend = f"{_text_with_interval(text_and_interval(growth.per_hour, digits=3))} requests/s per hour"
    if not growth.is_significant:
        trend += ", not significant"
    forecast = (
        f"in the next {growth.horizon_h:.2g} h {rate_and_interval(growth.forecast_per_s)[1]} on average"
    )
    if not growth.is_known:
        forecast = f"the history of {2 * growth.horizon_h:.2g} h is too short or too irregular for a forecast"
    elif answer.hours_to_saturation is not None:
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
    return View(title, _blocks(answer))


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
        yield (
            f"{metric_title(row.name)}: measured {row.measured:,.4g}, predicted {row.predicted:,.4g} "
            f"({row.low:,.4g} to {row.high:,.4g}), {error_text(row.error)}"
        )


def _headroom_table(answer: WatchReport) -> Table:
    levels = [
        Column("SLO", "slo", units.TEXT),
        Column("measured, s", "measured_s", units.Unit(significant=3)),
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
