"""Views of one deployment over rising load: the closed-form load sweep of `estimate`, and the simulated `curve`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from capacity.answers.records import Quantity
from capacity.report.display import (
    join_words,
    money_phrase,
    number_text,
    phrase,
    rate_and_interval,
    with_relative_interval,
)
from capacity.report.figures.chart import four_digits
from capacity.report.figures.loads import FIGURES, Figure
from capacity.report.plan import level_text_path
from capacity.report.views import units
from capacity.report.views.layout import table_records
from capacity.report.views.units import Unit, mark_unless
from capacity.report.views.view import Block, Column, Curves, Fact, Facts, Panels, Table, View, known_facts

if TYPE_CHECKING:
    from capacity.answers.load_sweep import LoadSweep
    from capacity.planning.load.curve import Curve, CurvePoint
    from capacity.planning.load.day import Day, Hour

LOAD_WORDS = {
    "batch_size": "requests in the batch",
    "concurrency": "requests in flight",
    "request_rate": "requests/s offered",
}
LOGARITHMIC = ("ttft", "price")


def load_sweep_view(answer: LoadSweep, chosen: float | None = None) -> View:
    """Return the view of a load sweep: table by load, saturation point, and charts that mark the load `chosen`."""
    place = f"{answer.num_gpus} x {answer.gpu}".removeprefix("1 x ")
    title = (
        f"[bold]{answer.model}[/bold] on [bold]{place}[/bold], {answer.engine}, {answer.input_len:,} tokens in, "
        f"{answer.output_len:,} out, over {LOAD_WORDS[answer.over]}"
    )
    return View(title, _blocks(answer, chosen), notes=[answer.price_note or ""])


def _blocks(answer: LoadSweep, chosen: float | None) -> Iterator[Block]:
    yield saturation_sentence(answer)
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
    full = f"{answer.limit} full: {answer.at_once:,}"
    if answer.over == "request_rate":
        full = f"full from {four_digits(answer.full_from or 0.0)}/s"
    marks = {full: answer.full_from, "chosen": chosen}
    shown = {words: at for words, at in marks.items() if at is not None and at <= max(loads)}
    for figure in FIGURES.values():
        yield _chart(answer, figure, shown)


def _chart(answer: LoadSweep, figure: Figure, marks: dict[str, float]) -> Curves:
    rate, words = answer.over == "request_rate", LOAD_WORDS[answer.over]
    points = {point.load if rate else int(point.load): figure.value_of(point) for point in answer.points}
    known = {load: value for load, value in points.items() if value is not None}
    ends = [
        f"{figure.text(known[load])} at {four_digits(load)}"
        for load in dict.fromkeys([*known][:1] + [*known][-1:])
    ]
    summary = f"{figure.label}: {' and '.join(ends)} {words}." if known else f"No load has a {figure.title}."
    return Curves(
        name=f"{figure.name}_over_{answer.over}",
        title=f"{figure.title} against {words}",
        alt=f"{summary} {saturation_sentence(answer)}",
        data={figure.title: known} if known else {},
        unit=figure.unit,
        labels=words,
        axis=figure.axis,
        log=figure.name in LOGARITHMIC,
        marks=marks,
        linear=rate,
    )


def saturation_sentence(sweep: LoadSweep) -> str:
    """Return the load at which the engine is full, and what happens beyond it."""
    holds = (
        f"The KV cache holds {sweep.kv_requests:,} requests of {sweep.input_len + sweep.output_len:,} tokens, "
        f"and the engine runs at most {sweep.seats:,}: the {sweep.limit} is full first"
    )
    full = four_digits(sweep.full_from or 0.0)
    beyond = {
        "batch_size": "; a larger batch does not fit",
        "concurrency": "; further requests wait",
        "request_rate": phrase(
            "; from {} requests/s the queue grows without bound", sweep.full_from and full
        ),
    }
    return f"{holds}{beyond[sweep.over]}."


def curve_view(answer: Curve) -> View:
    """Return the view of `curve`: latency by rate, knee, highest rate within the SLO, users, replicas by hour."""
    title = f"[bold]{answer.deployment}[/bold], {answer.workload}"
    return View(title, _curve_blocks(answer))


def _curve_blocks(answer: Curve) -> Iterator[Block]:
    columns = [
        Column("offered/s", partial(_rate_text, answer), units.TEXT),
        Column("completed/s", "requests_per_s", Unit(significant=3)),
        Column("out tok/s", "output_tokens_per_s", units.COUNT),
        Column("mean E2E, s", "mean_e2e_s", units.SECONDS),
        Column("tok/s/user", "tokens_per_s_per_user", units.TENTHS),
        Column("batch", "mean_batch_size", units.TENTHS),
        Column("$/1M out", "cost.usd_per_million_output_tokens", units.USD_3, optional=True),
        *(
            Column(
                slo, mark_unless(level_text_path(f"levels.{i}"), f"levels.{i}.met", " (missed)"), units.TEXT
            )
            for i, slo in enumerate(answer.slos)
        ),
    ]
    load = Table("Load (predicted step times)", answer.points, columns, numbered=True)
    yield load
    if answer.points:
        yield _latency_chart(answer, load)
        yield _throughput_chart(answer)
    yield Facts("Highest rate within the SLO", _highest_facts(answer))
    if answer.day is not None:
        yield from day_blocks({"replicas": answer.day})


def _rate_text(answer: Curve, point: CurvePoint) -> str:
    return f"{point.request_rate_per_s:,.3g}{' knee' * (point.request_rate_per_s == answer.knee_per_s)}"


def _highest_facts(answer: Curve) -> list[Fact]:
    highest = answer.highest
    if highest is None:
        return []
    predicted = Quantity(value=highest.predicted, low=highest.low, high=highest.high)
    rate, band = rate_and_interval(predicted)
    confident = number_text(
        highest.at_confidence, with_relative_interval(highest.at_confidence, predicted), digits=2
    )
    band_note = f"{band}: 90 % interval of the step model's error"
    rows = [
        Fact("predicted", f"{rate} requests/s", note=band_note),
        Fact(f"with {highest.confidence:.0%} confidence", f"{confident} requests/s"),
    ]
    if highest.sampling_low is not None and highest.sampling_high is not None:
        interval = f"{highest.sampling_low:,.3g} to {highest.sampling_high:,.3g}"
        note = f"90 % interval of the predicted rate, over {highest.replications} resampled arrival traces"
        rows.append(Fact("resampled traffic", interval, note=note))
    note = phrase("{:g} requests per hour and user", answer.requests_per_user_hour)
    return [*rows, *known_facts([Fact("users", answer.users, note=note)])]


def _latency_chart(answer: Curve, load: Table) -> Curves:
    """Return the chart of each service level / limit against request rate, with knee and highest rate marked."""
    knee, highest = answer.knee_per_s, answer.highest
    knee_text = phrase("knee at {:,.2f} requests/s (maximum of throughput / latency)", knee)
    highest_text = phrase(
        "highest rate within the SLO at {0.at_confidence:,.2f} requests/s "
        "(90 % interval {0.low:,.3g} to {0.high:,.3g})",
        highest,
    )
    return Curves(
        name="latency_against_load",
        title="Latency against load",
        alt=f"{join_words(list(filter(None, (knee_text, highest_text))))}.",
        data=units.read_series(
            answer.points,
            "request_rate_per_s",
            {level.slo: f"levels.{i}.ratio" for i, level in enumerate(answer.points[0].levels)},
        ),
        labels="requests/s offered",
        axis="level / limit",
        reference=(1.0, "limit"),
        marks={"knee": knee, "highest rate within the SLO": units.value_at(highest, "at_confidence")},
        linear=True,
        top=3.0,
        rows=table_records(load),
    )


def _throughput_chart(answer: Curve) -> Curves:
    rates = {point.request_rate_per_s: point.output_tokens_per_s for point in answer.points}
    return Curves(
        name="throughput_over_load",
        title="Throughput against load",
        alt=f"At most {max(rates.values()):,.0f} output tokens/s at the simulated rates.",
        data={"output tokens/s": rates},
        labels="requests/s offered",
        axis="output tokens/s",
        linear=True,
    )


def day_blocks(days: Mapping[str, Day]) -> Iterator[Block]:
    """Yield the replicas by hour of one deployment, or of several at the same load: a table, a chart and the bills.

    `days` by heading. The chart of one deployment has a line at the fixed number for the peak.
    """
    first = next(iter(days.values()))
    replicas = (Column(name, partial(_replicas_in_hour, day), units.COUNT) for name, day in days.items())
    columns = [
        Column("hour", "hour", units.COUNT),
        Column("requests/s", "request_rate_per_s", Unit(2)),
        *replicas,
    ]
    yield Table("Replicas by the hour", first.hours, columns, numbered=True)
    data = units.read_curves(days.items(), "0", "1.hours", x="hour", y="replicas")
    texts = [day_text(day) for day in days.values()]
    if len(days) > 1:
        texts = [f"{name}: {text}" for name, text in zip(days, texts, strict=True)]
    yield Panels(
        name="replicas_by_hour",
        title="Replicas by the hour",
        alt=f"{'. '.join(texts)}.",
        data=data,
        labels="hour of the day",
        reference=(first.peak_replicas if len(days) == 1 else None, "fixed"),
    )
    yield from texts


def _replicas_in_hour(day: Day, hour: Hour) -> int:
    return day.hours[hour.hour].replicas


def day_text(day: Day) -> str:
    """Return the replica-hours and the $ per month of an autoscaled and of a fixed deployment as text."""
    hours = f"{day.autoscaled_replica_hours} replica-hours autoscaled, {day.fixed_replica_hours} fixed"
    scaled = money_phrase("; {} against", day.autoscaled_usd_per_month, ",.0f")
    return hours + scaled + money_phrase(" {} a month", day.fixed_usd_per_month, ",.0f")
