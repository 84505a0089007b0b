"""A load as pictures: one pool over rising load, and every GPU at one load. Bands and whiskers are 90 % intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import NEUTRAL, Chart, colour, digits, layout, log_axis
from capacity.report.figures.drawing import draw_chart, to_quantity
from capacity.report.figures.drawing import whiskers as whiskers
from capacity.report.figures.drawing import with_interval as with_interval
from capacity.report.subject import subject_of
from capacity.report.views.units import Unit
from capacity.report.views.view import Bars

if TYPE_CHECKING:
    from capacity.answers.load_point import LoadPoint
    from capacity.answers.load_sweep import LoadSweep
    from capacity.answers.records import Quantity
    from capacity.planning.sizing.gpu_comparison import GpuComparison

BAND_OPACITY = 0.18
LOAD_WORDS = {
    "batch_size": "requests in the batch",
    "concurrency": "requests in flight",
    "request_rate": "requests/s that arrive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of merit of a load: the field of a `LoadPoint`, and its title. Fields in seconds end in `_s`."""

    field: str
    title: str
    is_time: bool = False

    def label(self, units: Units) -> str:
        """`TTFT, ms`."""
        return f"{self.title}, {units.time}" if self.is_time else self.title

    def scale(self, units: Units) -> float:
        """From the answer's unit to the shown one."""
        return units.of_seconds(1) if self.is_time else 1.0

    def of(self, point: LoadPoint) -> Quantity | None:
        """Of a point; None where it has none."""
        quantity: Quantity | None = getattr(point, self.field)
        return quantity


FIGURES: dict[str, Figure] = {
    "ttft": Figure(field="ttft_s", title="TTFT", is_time=True),
    "tpot": Figure(field="tpot_s", title="TPOT", is_time=True),
    "throughput": Figure(field="output_tokens_per_s", title="Output tokens/s"),
    "price": Figure(field="usd_per_million_output_tokens", title="$ per 1M output tokens"),
}
BARS: dict[str, Figure] = {  # by the orders of a comparison
    **FIGURES,
    "price": Figure(field="usd_per_thousand_requests", title="$ per 1k requests"),
    "month": Figure(field="usd_per_month", title="$ a month"),
    "throughput-per-gpu": Figure(field="output_tokens_per_s_per_gpu", title="Output tokens/s per GPU"),
    "gpus": Figure(field="num_gpus", title="GPUs"),
}
LOGARITHMIC = ("ttft", "price")


def sweep_chart(
    sweep: LoadSweep, figure_name: str, units: Units = STANDARD, *, chosen: float | None = None
) -> Chart:
    """One of `FIGURES` over the sweep's loads with its band, where the engine is full, and the `chosen` load."""
    import plotly.graph_objects as go

    of = FIGURES[figure_name]
    scale = of.scale(units)
    known = [(p.load, q) for p in sweep.points if (q := of.of(p)) is not None]
    figure = go.Figure()
    for low, high in _bands(known):
        loads = [load for load, _ in low]
        figure.add_scatter(
            x=[*loads, *reversed(loads)],
            y=[scale * value for _, value in (*low, *reversed(high))],
            fill="toself",
            mode="lines",
            fillcolor=faint(colour(0)),
            line={"width": 0},
            hoverinfo="skip",
            name="90 % interval",
            legendgroup="band",
            showlegend=not any(trace.name == "90 % interval" for trace in figure.data),
        )
    figure.add_scatter(
        x=[load for load, _ in known],
        y=[scale * quantity.value for _, quantity in known],
        mode="lines+markers",
        name=of.title,
        line={"color": colour(0), "width": 2.5},
        text=[with_interval(quantity, scale) for _, quantity in known],
        hovertemplate=f"%{{x:,.4r}} {LOAD_WORDS[sweep.over]}: %{{text}}<extra></extra>",
    )
    layout(figure, x=LOAD_WORDS[sweep.over], y=of.label(units), height=340)
    ends = [scale * end for _, q in known for end in (q.low, q.value, q.high) if end]
    _axes(figure, sweep, ends if figure_name in LOGARITHMIC else [])
    loads = [point.load for point in sweep.points]
    full = sweep.full_from
    if full is not None and full <= max(loads):
        _mark(figure, full, full_text(sweep), "dash", log=sweep.over != "request_rate", top=True)
    if chosen is not None and min(loads) <= chosen <= max(loads):
        _mark(figure, chosen, "chosen", "dot", log=sweep.over != "request_rate", top=False)
    return Chart(
        name=f"{figure_name}_over_{sweep.over}",
        title=f"{of.title} against {LOAD_WORDS[sweep.over]}",
        alt=_sweep_words(sweep, known, of, units),
        figure=figure,
        subject=subject_of(sweep),
        rows=tuple(_sweep_row(point, of, units) for point in sweep.points),
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
    if sweep.over != "request_rate":
        return (
            f"{holds}; {'a larger batch does not fit' if sweep.over == 'batch_size' else 'the others wait'}."
        )
    from_here = (
        ""
        if sweep.full_from is None
        else f"; from {digits(sweep.full_from)} requests/s on queues do not empty"
    )
    return f"{holds}{from_here}."


def _axes(figure: Any, sweep: LoadSweep, logarithmic: Sequence[float]) -> None:
    """Ticks that can be read; `logarithmic` holds the upright axis's values where that is one."""
    if sweep.over != "request_rate":
        loads = [point.load for point in sweep.points]
        figure.update_xaxes(type="log", tickvals=loads, ticktext=[f"{load:g}" for load in loads])
    if logarithmic:
        figure.update_yaxes(**log_axis(logarithmic))
    else:
        figure.update_yaxes(rangemode="tozero")


def _mark(figure: Any, at: float, text: str, dash: str, *, log: bool, top: bool) -> None:
    """A vertical line with its words, at the top or the foot of the plot."""
    figure.add_vline(x=at, line={"color": NEUTRAL, "dash": dash, "width": 2})
    figure.add_annotation(
        x=math.log10(at) if log else at,  # as annotations on a logarithmic axis want it
        y=1.0 if top else 0.0,
        yref="paper",
        text=text,
        showarrow=False,
        xanchor="right",
        yanchor="top" if top else "bottom",
        xshift=-3,
    )


Ends = list[tuple[float, float]]


def _bands(known: Sequence[tuple[float, Quantity]]) -> Iterable[tuple[Ends, Ends]]:
    """Runs of neighbouring points that have both ends of an interval."""
    low: Ends = []
    high: Ends = []
    for load, quantity in known:
        if quantity.low is None or quantity.high is None:
            if len(low) > 1:
                yield low, high
            low, high = [], []
            continue
        low.append((load, quantity.low))
        high.append((load, quantity.high))
    if len(low) > 1:
        yield low, high


def faint(hex_colour: str) -> str:
    """A colour for areas behind lines."""
    red, green, blue = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{BAND_OPACITY})"


def _sweep_row(point: LoadPoint, of: Figure, units: Units) -> dict[str, object]:
    quantity, scale = of.of(point), of.scale(units)
    ends = (None, None, None) if quantity is None else (quantity.value, quantity.low, quantity.high)
    names = (of.label(units), "low", "high")
    return {
        "load": point.load,
        **{name: None if v is None else v * scale for name, v in zip(names, ends, strict=True)},
        "state": point.reason or point.verdict,
    }


def _sweep_words(sweep: LoadSweep, known: Sequence[tuple[float, Quantity]], of: Figure, units: Units) -> str:
    if not known:
        return f"No load has a {of.title}. {full_sentence(sweep)}"
    (first, least), (last, most), scale = known[0], known[-1], of.scale(units)
    return (
        f"{of.label(units)}: {with_interval(least, scale)} at {digits(first)} and {with_interval(most, scale)} at "
        f"{digits(last)} {LOAD_WORDS[sweep.over]}. {full_sentence(sweep)}"
    )


# every GPU at one load


def comparison_chart(comparison: GpuComparison, units: Units = STANDARD) -> Chart:
    """A bar for each GPU that serves the load, by the figure that it is ordered by, with whiskers for its interval."""
    of = BARS[comparison.order]
    bars = [(place(p), v) for p in comparison.rows if p.steady and (v := getattr(p, of.field)) is not None]
    drawing = Bars(
        name="gpu_comparison",
        title=f"{of.title} on each GPU at this load",
        alt=_best_to_last(bars, of, units) if bars else "No GPU serves this load in a steady state.",
        data={of.title: dict(bars)},
        unit=Unit(0, of.scale(units)),
        axis=of.label(units),
        rows=comparison_rows(comparison, units),
    )
    return draw_chart(drawing, comparison)


def _best_to_last(bars: Sequence[tuple[str, Any]], of: Figure, units: Units) -> str:
    (best, most), (last, least) = (
        (name, with_interval(to_quantity(value), of.scale(units))) for name, value in (bars[0], bars[-1])
    )
    return f"{of.label(units)}, the best first: {best} {most}, to {last} {least}."


def place(point: LoadPoint) -> str:
    """`2 x h200-sxm-141gb`."""
    return point.gpu if point.num_gpus is None else f"{point.num_gpus} x {point.gpu}"


def comparison_rows(comparison: GpuComparison, units: Units = STANDARD) -> list[dict[str, object]]:
    """A row for each GPU as a table shows it: figures with their intervals, and why not."""
    return [_comparison_row(point, units) for point in comparison.rows]


def _comparison_row(point: LoadPoint, units: Units) -> dict[str, object]:
    scale = units.of_seconds(1)
    return {
        "GPU": point.gpu,
        "GPUs": point.num_gpus,
        "replicas": point.replicas,
        "serves it": served_words(point),
        f"TTFT, {units.time}": _value(point.ttft_s, scale),
        f"TPOT, {units.time}": _value(point.tpot_s, scale),
        "output tokens/s": _value(point.output_tokens_per_s, 1.0),
        "$ per 1k requests": _value(point.usd_per_thousand_requests, 1.0),
        "$ a month": point.usd_per_month,
        "why not": point.reason
        or point.misses
        or point.price_note
        or (None if point.steady else point.verdict_reason),
    }


def served_words(point: LoadPoint) -> str:
    """Whether the pool serves the load: `yes`, `does not fit`, or what becomes of it."""
    if not point.fits:
        return "does not fit"
    if point.misses is not None:
        return "misses the service levels"
    return "yes" if point.steady and point.verdict in (None, "stable") else str(point.verdict)


def _value(quantity: Quantity | None, scale: float) -> float | None:
    return None if quantity is None else quantity.value * scale
