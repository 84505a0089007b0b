"""One deployment over rising load: in closed form with where its engine is full, and by simulation with the knee, the
highest rate within the SLO, and the replicas of a day."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from capacity.answers.records import Quantity
from capacity.report.display import as_sure, join_words, number_text, rate_and_interval
from capacity.report.figures.chart import digits
from capacity.report.figures.loads import FIGURES, Figure
from capacity.report.plan import level_text
from capacity.report.views import units
from capacity.report.views.layout import table_records
from capacity.report.views.units import Unit
from capacity.report.views.view import Block, Column, Curves, Fact, Facts, Panels, Table, View

if TYPE_CHECKING:
    from capacity.answers.load_sweep import LoadSweep
    from capacity.planning.load.curve import Curve, CurvePoint
    from capacity.planning.load.day import Day

LOAD_WORDS = {
    "batch_size": "requests in the batch",
    "concurrency": "requests in flight",
    "request_rate": "requests/s that arrive",
}
LOGARITHMIC = ("ttft", "price")


def load_sweep_view(answer: LoadSweep, chosen: float | None = None) -> View:
    """Return a line for each load, where the engine is full, and each figure over the load with the `chosen` one."""
    place = f"{answer.num_gpus} x {answer.gpu}" if answer.num_gpus > 1 else answer.gpu
    title = (
        f"[bold]{answer.model}[/bold] on [bold]{place}[/bold], {answer.engine}, {answer.input_len:,} tokens in, "
        f"{answer.output_len:,} out, over {LOAD_WORDS[answer.over]}"
    )
    return View(title, _blocks(answer, chosen), notes=[answer.price_note] if answer.price_note else [])


def _blocks(answer: LoadSweep, chosen: float | None) -> Iterator[Block]:
    yield full_sentence(answer)
    columns = [
        Column(LOAD_WORDS[answer.over], "load", Unit(significant=4)),
        Column("TTFT", "ttft_s", units.BARE_LATENCY),
        Column("TPOT", "tpot_s", units.BARE_LATENCY),
        Column("tokens/s", "output_tokens_per_s", units.BARE_RATE),
        Column("$/1M out", "usd_per_million_output_tokens", units.USD_PER_MILLION),
        Column("", lambda point: point.reason or point.verdict or ""),
    ]
    yield Table("", answer.points, columns, name="load_sweep", numbered=True)
    loads = [point.load for point in answer.points]
    marks = {full_text(answer): answer.full_from, "chosen": chosen}
    shown = {words: at for words, at in marks.items() if at is not None and at <= max(loads)}
    for of in FIGURES.values():
        yield _chart(answer, of, shown)


def _chart(answer: LoadSweep, of: Figure, marks: dict[str, float]) -> Curves:
    rate, words = answer.over == "request_rate", LOAD_WORDS[answer.over]
    points = {point.load if rate else int(point.load): of.value_of(point) for point in answer.points}
    known = {load: value for load, value in points.items() if value is not None}
    ends = [f"{of.text(known[load])} at {digits(load)}" for load in (*list(known)[:1], *list(known)[-1:])]
    said = f"{of.label}: {' and '.join(ends)} {words}." if known else f"No load has a {of.title}."
    return Curves(
        name=f"{of.name}_over_{answer.over}",
        title=f"{of.title} against {words}",
        alt=f"{said} {full_sentence(answer)}",
        data={of.title: known} if known else {},
        unit=of.unit,
        labels=words,
        axis=of.axis,
        log=of.name in LOGARITHMIC,
        marks=marks,
        linear=rate,
    )


def full_text(sweep: LoadSweep) -> str:
    """Where the engine is full, in a few words."""
    if sweep.over == "request_rate":
        return "no steady state" if sweep.full_from is None else f"full from {digits(sweep.full_from)}/s"
    return f"{sweep.limit} full: {sweep.at_once:,}"


def full_sentence(sweep: LoadSweep) -> str:
    """The same for those who read."""
    holds = (
        f"The KV cache holds {sweep.kv_requests:,} requests of {sweep.input_len + sweep.output_len:,} tokens at once, "
        f"and the engine runs {sweep.seats:,}: the {sweep.limit} is full first"
    )
    if sweep.over == "batch_size":
        return f"{holds}; a larger batch does not fit."
    if sweep.over == "concurrency":
        return f"{holds}; the others wait."
    if sweep.full_from is None:
        return f"{holds}."
    return f"{holds}; from {digits(sweep.full_from)} requests/s on queues do not empty."


def curve_view(answer: Curve) -> View:
    """Return latency against rate, the knee, the highest rate within the SLO, users, and replicas by the hour."""
    title = f"[bold]{answer.deployment}[/bold], {answer.workload}"
    return View(title, _curve_blocks(answer))


def _curve_blocks(answer: Curve) -> Iterator[Block]:
    priced = any(point.cost is not None for point in answer.points)
    price = Column("$/1M out", "cost.usd_per_million_output_tokens", units.USD_3)
    columns = [
        Column("requests/s", lambda point: _rate_text(answer, point), units.TEXT),
        Column("served", "requests_per_s", Unit(significant=3)),
        Column("out tok/s", "output_tokens_per_s", units.COUNT),
        Column("mean E2E, s", "mean_e2e_s", units.SECONDS),
        Column("tok/s/user", "tokens_per_s_per_user", units.TENTHS),
        Column("batch", "mean_batch_size", units.TENTHS),
        *([price] if priced else []),
        *(Column(slo, partial(_level, index), units.TEXT) for index, slo in enumerate(answer.slos)),
    ]
    load = Table("Load, at step times as predicted", answer.points, columns, numbered=True)
    yield load
    if answer.points:
        yield _latency_chart(answer, load)
        yield _throughput_chart(answer)
    yield Facts("Highest rate within the SLO", _highest_facts(answer))
    if answer.day is not None:
        hours = [
            Column("hour", "hour", units.COUNT),
            Column("requests/s", "request_rate_per_s", Unit(2)),
            Column("replicas", "replicas", units.COUNT),
        ]
        yield Table("Replicas by the hour", answer.day.hours, hours, numbered=True)
        yield _day_chart(answer.day)
        yield day_text(answer.day)


def _rate_text(answer: Curve, point: CurvePoint) -> str:
    knee = " knee" if point.request_rate_per_s == answer.knee_per_s else ""
    return f"{point.request_rate_per_s:,.3g}{knee}"


def _level(index: int, point: CurvePoint) -> str:
    level = point.levels[index]
    return f"{level_text(level)}{'' if level.met else ' x'}"


def _highest_facts(answer: Curve) -> list[Fact]:
    highest = answer.highest
    if highest is None:
        return []
    predicted = Quantity(value=highest.predicted, low=highest.low, high=highest.high)
    rate, band = rate_and_interval(predicted)
    confident = number_text(highest.at_confidence, as_sure(highest.at_confidence, predicted), digits=2)
    band_note = f"{band} over the 90 % band of the step model's error"
    rows = [
        Fact("as predicted", f"{rate} requests/s", note=band_note),
        Fact(f"with {highest.confidence:.0%} confidence", f"{confident} requests/s"),
    ]
    if highest.sampling_low is not None and highest.sampling_high is not None:
        interval = f"{highest.sampling_low:,.3g} to {highest.sampling_high:,.3g}"
        of = f"90 % interval of the rate as predicted, over {highest.replications} draws of the traffic"
        rows.append(Fact("another draw", interval, note=of))
    if answer.users is not None:
        rows.append(
            Fact("users", answer.users, note=f"of {answer.requests_per_user_hour:g} requests an hour each")
        )
    return rows


def _latency_chart(answer: Curve, load: Table) -> Curves:
    """Each level of the SLO over the request rate, as a share of its limit (1: met); knee and highest rate marked."""
    knee, highest = answer.knee_per_s, answer.highest
    marks = {} if knee is None else {"knee": knee}
    at_knee = "where throughput over latency is greatest"
    said = [] if knee is None else [f"knee at {knee:,.2f} requests/s, {at_knee}"]
    if highest is not None:
        marks["highest rate within the SLO"] = highest.at_confidence
        band = f"of its 90 % band from {highest.low:,.3g} to {highest.high:,.3g}"
        said.append(f"highest rate within the SLO at {highest.at_confidence:,.2f} requests/s, {band}")
    return Curves(
        name="latency_against_load",
        title="Latency against load",
        alt=f"{join_words(said)}.",
        data={
            level.slo: {point.request_rate_per_s: point.levels[index].ratio for point in answer.points}
            for index, level in enumerate(answer.points[0].levels)
        },
        labels="requests/s offered",
        axis="level / limit",
        reference=(1.0, "limit"),
        marks=marks,
        linear=True,
        top=3.0,
        rows=table_records(load),
    )


def _throughput_chart(answer: Curve) -> Curves:
    rates = {point.request_rate_per_s: point.output_tokens_per_s for point in answer.points}
    return Curves(
        name="throughput_over_load",
        title="Throughput against load",
        alt=f"At most {max(rates.values()):,.0f} output tokens/s over the rates tried.",
        data={"output tokens/s": rates},
        labels="requests/s offered",
        axis="output tokens/s",
        linear=True,
    )


def _day_chart(day: Day) -> Panels:
    """Replicas by the hour against as many as the peak needs around the clock."""
    scaled, fixed = day.autoscaled_replica_hours, day.fixed_replica_hours
    return Panels(
        name="replicas_by_hour",
        title="Replicas by the hour",
        alt=f"Autoscaled {scaled:,} replica-hours a day, fixed {fixed:,}: {fixed - scaled:,} fewer.",
        data={"replicas": {hour.hour: hour.replicas for hour in day.hours}},
        labels="hour of the day",
        reference=(day.peak_replicas, "fixed"),
    )


def day_text(day: Day) -> str:
    """Autoscaled against fixed, in replica-hours and $."""
    hours = f"{day.autoscaled_replica_hours} replica-hours autoscaled, {day.fixed_replica_hours} fixed"
    if day.fixed_usd_per_month is None or day.autoscaled_usd_per_month is None:
        return hours
    return f"{hours}; ${day.autoscaled_usd_per_month:,.0f} against ${day.fixed_usd_per_month:,.0f} a month"
