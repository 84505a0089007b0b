"""One deployment over rising load: its figures at each load, and where the engine is full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from capacity.report.figures.chart import digits
from capacity.report.figures.loads import FIGURES, Figure
from capacity.report.views import units
from capacity.report.views.units import Unit
from capacity.report.views.view import Block, Column, Curves, Table, View

if TYPE_CHECKING:
    from capacity.answers.load_sweep import LoadSweep

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
    yield Table("", answer.points, columns, name="load_sweep")
    loads = [point.load for point in answer.points]
    marks = {full_text(answer): answer.full_from, "chosen": chosen}
    shown = {words: at for words, at in marks.items() if at is not None and at <= max(loads)}
    for of in FIGURES.values():
        yield _chart(answer, of, shown)


def _chart(answer: LoadSweep, of: Figure, marks: dict[str, float]) -> Curves:
    rate, words = answer.over == "request_rate", LOAD_WORDS[answer.over]
    points = {point.load if rate else int(point.load): of.of(point) for point in answer.points}
    known = {load: value for load, value in points.items() if value is not None}
    ends = [f"{of.text(known[load])} at {digits(load)}" for load in (*list(known)[:1], *list(known)[-1:])]
    said = f"{of.label()}: {' and '.join(ends)} {words}." if known else f"No load has a {of.title}."
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
