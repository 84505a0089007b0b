"""Views of comparisons: GPUs that fit a model, and GPUs or engines at one load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from capacity.answers.load_point import ORDERS, LoadPoint
from capacity.base.money import money_text
from capacity.base.quantity import Quantity
from capacity.report.display import count_noun, join_phrases, phrase
from capacity.report.figures.drawing import to_quantity
from capacity.report.figures.loads import BARS, FIGURES, Figure
from capacity.report.subject import load_text
from capacity.report.views import units
from capacity.report.views.view import Bars, Block, Column, Rejections, Table, View

if TYPE_CHECKING:
    from capacity.answers.engine_comparison import EngineComparison, EngineOnLoad
    from capacity.answers.fit_comparison import FitComparison
    from capacity.planning.sizing.gpu_comparison import GpuComparison

LOG_AXIS_FROM = 20.0  # largest / smallest value from which the axis is logarithmic
STEADY = (None, "stable")  # verdicts that need no remark
ENGINE_FIGURES = ("throughput", "ttft", "tpot")
pool_text = "{0.num_gpus} x {0.gpu}".format  # of a point: `2 x h200-sxm-141gb`


def fit_comparison_view(answer: FitComparison) -> View:
    """Return the GPUs that fit the model, cheapest first, then those that fit shorter requests, then all other GPUs."""
    columns = [
        Column("GPUs", pool_text),
        Column("weights", "weights_bytes", units.MEMORY),
        Column("KV tokens", "kv_capacity_tokens", units.COUNT),
        Column("longest request", "max_context_tokens", units.COUNT),
        Column("concurrency", "max_concurrency", units.TENTHS),
        Column("$/h", "usd_per_hour", units.usd(2)),
    ]
    held = [point for point in answer.rows if point.fits or point.max_context_tokens]
    without = [point.gpu for point in held if point.usd_per_hour is None]
    tier = answer.price_tier
    note = phrase(
        "no {} price for {}: choose another --price-tier or set your own --price", tier, ", ".join(without)
    )
    return View(
        f"[bold]{answer.model}[/bold] with {answer.engine}: the fewest of each GPU that fit, by {tier} price",
        [
            Table("Fits", [point for point in held if point.fits], columns),
            Table(
                "Fits with shorter requests: set --max-model-len",
                [point for point in held if not point.fits],
                columns,
            ),
            Rejections({point.gpu: str(point.reason) for point in answer.rows if point not in held}),
        ],
        notes=[note],
    )


def gpu_comparison_view(answer: GpuComparison) -> View:
    """Return the GPUs that serve the load, best first, then the other GPUs, each with the reason."""
    served = [point for point in answer.rows if point.fits]
    pools = (
        "with the replicas it needs"
        if answer.load_field == "request_rate"
        else "with the fewest GPUs that fit"
    )
    levels = phrase("; SLO {}", " and ".join(answer.slos))
    title = (
        f"[bold]{answer.model}[/bold], {load_text(answer)}, {answer.input_len:,} tokens in, {answer.output_len:,} out"
        f"{levels}: each GPU {pools}, by {ORDERS[answer.order].words}{_cheapest_text(answer)}"
    )
    columns = [
        Column("GPUs", pool_text),
        Column("replicas", "{0.replicas} x TP{0.tensor_parallel_size}".format),
        Column("TTFT", "ttft_s", units.BARE_LATENCY),
        Column("TPOT", "tpot_s", units.BARE_LATENCY),
        Column("tokens/s", "output_tokens_per_s", units.BARE_RATE),
        Column("$/1k req", "usd_per_thousand_requests", units.USD_PER_MILLION),
        Column("$/month", "usd_per_month", units.usd(0)),
        Column("", _status_text),
    ]
    notes = [point.price_note or "" for point in served]
    return View(
        title,
        [
            _gpu_chart(answer),
            Table("", served, columns, name="gpu_comparison"),
            Rejections({point.gpu: str(point.reason) for point in answer.rows if not point.fits}),
        ],
        notes=[*notes, *answer.notes],
    )


def _cheapest_text(answer: GpuComparison) -> str:
    """Return a line with the cheapest GPUs that serve the request rate within the SLO; empty if there are none."""
    bills = [
        point
        for point in answer.rows
        if point.usd_per_month is not None and point.verdict == "stable" and point.misses is None
    ]
    if answer.load_field != "request_rate" or not bills:
        return ""
    best = min(bills, key=lambda point: point.usd_per_month or 0.0)
    replicas = f"{count_noun(best.replicas or 1, 'replica')} of TP{best.tensor_parallel_size}"
    return (
        f"\ncheapest:  {replicas}, {pool_text(best)}, {money_text(best.usd_per_month or 0.0, ',.0f')} a month"
    )


def _status_text(point: LoadPoint) -> str:
    """Return why a point is not acceptable: its verdict and `misses SLO`; empty if it is stable and meets the SLO."""
    verdict = None if point.verdict in STEADY else point.verdict
    return join_phrases(verdict, phrase("misses SLO", point.misses), separator=", ")


def _gpu_chart(answer: GpuComparison) -> Bars:
    figure = BARS[answer.order]
    bars = {
        pool_text(point): to_quantity(value)
        for point in answer.rows
        if point.steady and (value := figure.value_of(point)) is not None
    }
    ends = ", to ".join(f"{name} {figure.text(bars[name])}" for name in (*list(bars)[:1], *list(bars)[-1:]))
    alt = phrase("{}, best first: {}.", figure.label, ends) or "No GPU serves this load in a steady state."
    return _figure_bars(
        figure, bars, "gpu_comparison", f"{figure.title} on each GPU at this load", "GPUs", alt
    )


def _figure_bars(
    figure: Figure,
    bars: Mapping[str, Quantity],
    name: str,
    title: str,
    labels: str,
    alt: str,
    log: bool = False,
) -> Bars:
    """Return the chart of one metric, with a bar for each label."""
    data = {figure.title: bars}
    return Bars(
        name=name, title=title, alt=alt, data=data, unit=figure.unit, labels=labels, axis=figure.axis, log=log
    )


def engine_comparison_view(answer: EngineComparison, figures: Sequence[str] = ENGINE_FIGURES) -> View:
    """Return the view of an engine comparison; `figures` are the metrics that charts show.

    The engines that serve the load come first, sorted by tokens/s, in two tables: speed, then memory and features that
    are off by default. The other engines follow with the reasons.
    """
    title = (
        f"[bold]{answer.model}[/bold] on {answer.gpu}, {load_text(answer)}, {answer.input_len:,} tokens in, "
        f"{answer.output_len:,} out: each engine with its defaults, 90 % intervals"
    )
    serving = [row for row in answer.rows if row.point.fits]
    notes = [f"{row.engine}: {note}" for row in serving for note in row.notes]
    return View(title, _engine_blocks(answer, serving, figures), notes=[*notes, *answer.notes])


def _engine_blocks(
    answer: EngineComparison, serving: list[EngineOnLoad], figures: Sequence[str]
) -> Iterator[Block]:
    yield from (_engine_chart(answer, FIGURES[name]) for name in figures)
    speed = [
        Column("engine", "engine"),
        Column("tokens/s", "point.output_tokens_per_s", units.RATE),
        Column("TTFT", "point.ttft_s", units.LATENCY),
        Column("TPOT", "point.tpot_s", units.LATENCY),
        Column("E2E", "point.e2e_s", units.LATENCY),
        Column("$/1M out", "point.usd_per_million_output_tokens", units.USD, optional=True),
        Column("basis", lambda row: row.point.basis if row.point.verdict in STEADY else row.point.verdict),
    ]
    yield Table("Speed", serving, speed)
    memory = [
        Column("engine", "engine"),
        Column("GPUs", "point.num_gpus", units.COUNT),
        Column("weights", "weights_bytes", units.MEMORY),
        Column("KV tokens", "kv_capacity_tokens", units.COUNT),
        Column("max_num_seqs", "max_num_seqs", units.COUNT),
        Column("sourced", "sourced_fraction", units.PERCENT_0),
        Column("off by default", units.join_names("lacks", "-")),
    ]
    yield Table("Memory, and features that are off by default", serving, memory)
    yield Rejections({row.engine: str(row.point.reason) for row in answer.rows if not row.point.fits})


def _engine_chart(answer: EngineComparison, figure: Figure) -> Bars:
    known = {row.engine: value for row in answer.rows if (value := figure.value_of(row.point)) is not None}
    texts = "; ".join(f"{engine} {figure.text(value)}" for engine, value in known.items())
    middles = [value.value for value in known.values()]
    alt = phrase("{}: {}.", figure.label, texts) or "No engine serves this load."
    title = f"{figure.title} with each engine"
    log = max(middles, default=0) > LOG_AXIS_FROM * min(middles, default=0) > 0
    return _figure_bars(figure, known, f"engines_{figure.name}", title, "engine", alt, log)
