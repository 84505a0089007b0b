"""Latencies of a simulated run with intervals and time breakdown, and the service levels that the run meets."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from capacity.answers.records import Quantity, Simulation
from capacity.base.latency_metrics import METRICS, REQUEST_METRICS
from capacity.base.record import make_from
from capacity.report.display import last_supported_place, number_text, phrase, text_and_interval
from capacity.report.views import units
from capacity.report.views.units import Unit
from capacity.report.views.view import Block, Column, Fact, Table
from capacity.simulator.distribution import flatten_latencies
from capacity.simulator.intervals import Interval
from capacity.simulator.levels import Goodput, SloLevel

PERCENTILES = ("p50", "p90", "p95", "p99")
STATISTICS = ("mean", *PERCENTILES)
PRIORITY_STATISTICS = ("mean", "p95")
LATENCY_COLUMNS = (Column("", "metric"), *(Column(name, name, units.TEXT) for name in STATISTICS))
MEANS = {"TTFT": "mean_ttft_ms", "TPOT": "mean_tpot_ms"}  # means whose intervals are shown
MANY_REQUESTS = 1_000  # requests from which p99 has both bounds if they are independent


def latency_table(title: str, cell: Callable[[str], str | None]) -> Table:
    """Return a table of latencies by metric and statistic; `cell` maps names such as `p99_ttft_ms` to texts."""
    rows = [
        {"metric": metric.label, **{name: cell(f"{name}_{key}_ms") for name in STATISTICS}}
        for key, metric in METRICS.items()
    ]
    return Table(title, rows, LATENCY_COLUMNS)


def latency_text(answer: Simulation, name: str, value_ms: float | None) -> str:
    """Return the latency `name` of a run (such as `p99_ttft_ms`) as text; "-" if `value_ms` is None.

    The interval of the predicted latency, or else of its mean, limits the digits; ITL uses TPOT's interval. All
    percentiles of a metric are rounded to the same digit, so that rounding keeps their order.
    """
    if value_ms is None:
        return "-"
    statistic, _, metric = name.replace("_itl_", "_tpot_").partition("_")
    row = PERCENTILES if statistic in PERCENTILES else (statistic,)
    known = answer.predicted_ms
    found = [known.get(f"{one}_{metric}") or known.get(f"mean_{metric}") for one in row]
    places = {place: each for each in found if each and (place := last_supported_place(each)) is not None}
    return number_text(value_ms, places[min(places)] if places else None)


def predicted_facts(predicted_ms: Mapping[str, Quantity], labels: Iterable[str]) -> Iterator[Fact]:
    """Return predicted latencies with their intervals as facts; a label is `Mean TTFT`, or a percentile: `p95 TPOT`."""
    keys = {metric.label: key for key, metric in METRICS.items()}
    for label in labels:
        statistic, _, metric = label.partition(" ")
        known = predicted_ms.get(f"{statistic.lower()}_{keys[metric]}_ms")
        yield Fact(label, known and known.scale(1e-3), units.LATENCY, first=label)


def mean_intervals(known: Mapping[str, Quantity], what: str) -> Iterator[str]:
    """Return a line with the 90 % intervals of mean TTFT and mean TPOT, if they are known."""
    shown = (
        f"mean {label} {text_and_interval(known[name], unit=' ms')[1]}"
        for label, name in MEANS.items()
        if name in known
    )
    yield phrase("90 % interval {}: {}", what, ", ".join(shown))


def priority_table(answer: Simulation) -> Table:
    """Return the latencies of each priority class; the table is empty if there is only one class."""
    heads = {
        f"{of}_{key}_ms": METRICS[key].label if of == "mean" else of
        for key in REQUEST_METRICS
        for of in PRIORITY_STATISTICS
    }
    rows = [
        {
            "class": f"priority {each.priority}",
            "requests": each.requests,
            "failed": each.requests - each.completed,
            "preempted": each.preemptions,
            **{
                name: latency_text(answer, name, value)
                for name, value in flatten_latencies(each.latencies_ms, PRIORITY_STATISTICS).items()
            },
        }
        for each in answer.priorities
    ]
    counts = [Column(name, name, units.COUNT) for name in ("requests", "failed", "preempted")]
    latencies = [Column(head, name, units.TEXT) for name, head in heads.items()]
    return Table("By priority, ms", rows, [Column("", "class"), *counts, *latencies])


def time_parts_table(answer: Simulation) -> Table:
    """Return a table of the components of mean latency, for all requests and for the slowest 5 %."""
    unit = Unit(text=partial(number_text, like=answer.mean_ttft_ms))
    parts = answer.time_parts or {}
    groups = {"all requests": parts.get("mean_ms", {}), "slowest 5 %": parts.get("slowest_mean_ms", {})}
    names = [name for name in groups["all requests"] if any(part[name] for part in groups.values())]
    columns = [Column("", "0"), *(Column(name, f"1.{name}", unit) for name in names)]
    return Table("Where the time goes, ms", list(groups.items()) if names else [], columns)


def steady_state_blocks(answer: Simulation) -> Iterator[Block]:
    """Return the steady-state means and percentiles with intervals, and the reason for bounds shown as `?`."""
    verdict = answer.verdict
    if verdict is None or not verdict.is_stable:
        return
    means = {} if verdict.steady is None else verdict.steady.to_dict()
    texts = {name: _interval_text(interval) for name, interval in verdict.intervals_ms.items()}
    yield latency_table(
        "Steady state, ms (percentiles: 95 % interval)",
        lambda name: texts[name] if name in texts else latency_text(answer, name, means.get(name)),
    )
    requests = verdict.measured_requests
    reason = f"?: {requests:,} requests are too few to estimate that bound"
    if requests >= MANY_REQUESTS:
        reason = (
            f"?: the slow requests among {requests:,} are clustered in a few periods, for example because the load "
            "drifts, so they count as few independent observations. Increase --num-prompts to estimate that bound."
        )
    if any("?" in text for text in texts.values()):
        yield reason


def plus_minus_text(interval: Interval | None) -> str:
    """Return a mean with half the width of its interval: `46.2 ± 3.4`."""
    if interval is None:
        return "-"
    if interval.high is None:
        return f"{interval.value:,.1f} ± ?"
    spread = make_from(Quantity, interval)
    return f"{number_text(interval.value, spread)} ± {number_text(interval.high - interval.value, spread)}"


def _interval_text(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if interval.low is None and interval.high is None:
        return "too few requests"
    return _ends_text(make_from(Quantity, interval), 1)


def _ends_text(spread: Quantity, digits: int, after: str = "") -> str:
    """Return the bounds of an interval: `1.2 to 3.4`, with `?` for a bound that the data do not determine."""
    ends = (spread.low, spread.high)
    return " to ".join("?" if end is None else number_text(end, spread, digits) + after for end in ends)


def goodput_table(goodput: Goodput | None) -> Table:
    """Return a table of the requests per second within all limits, and the share of requests within each limit."""
    rate = Column("requests/s", lambda level: getattr(level, "requests_per_s", None), Unit(2, none=""))
    columns = [Column("", lambda level: getattr(level, "slo", "all")), rate, *ATTAINED_COLUMNS]
    return Table("Goodput", [] if goodput is None else [*goodput.limits, goodput], columns)


def level_table(answer: Simulation) -> Table:
    """Return the service levels of the run, and whether it meets them."""

    def value(level: SloLevel) -> str:
        metric, *percentile, _ = level.slo.split(":")
        return latency_text(answer, f"{[*percentile, 'max'][0]}_{metric}_ms", level.value_ms)

    when = phrase(" in the worst window: {.text}", answer.slo_window)
    met = Column("", lambda level: "[green]met[/green]" if level.met else "[red]missed[/red]")
    columns = [Column("", "slo"), Column("value, ms", value, units.TEXT), *ATTAINED_COLUMNS, met]
    return Table(f"Service levels{when}", answer.slos, columns)


def _attainment(level: SloLevel | Goodput) -> Quantity | None:
    """Return the percentage of requests within a limit, with its interval; None if unknown."""
    if level.attained_fraction is None:
        return None
    share = Quantity(value=level.attained_fraction, low=level.attained_low, high=level.attained_high)
    return share.scale(100)


ATTAINED_COLUMNS = (
    Column(
        "attained", _attainment, Unit(show=lambda share, _: (f"{number_text(share.value, share, 2)}%", ""))
    ),
    Column(
        "95 % interval", _attainment, Unit(none="", show=lambda share, _: (_ends_text(share, 2, "%"), ""))
    ),
)
