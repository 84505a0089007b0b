"""Beam search as a picture: time per output token by width and by how beams are carried along."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import Chart, colour, layout, log_axis, symbol
from capacity.report.figures.loads import whiskers, with_interval
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.techniques.beam_search import BeamRow, BeamSearch

WAYS = {
    "engine": "in the engine, blocks shared",
    "resubmitted": "submitted again each step, prefix cached",
    "recomputed": "the same without a prefix cache",
    "reordered": "a whole cache each, copied each step",
}


def beam_chart(answer: BeamSearch, units: Units = STANDARD) -> Chart:
    """TPOT over the number of beams, a line for each way to carry them along, with 90 % intervals."""
    import plotly.graph_objects as go

    scale = units.of_seconds(1)
    figure = go.Figure()
    widths = sorted({row.beam_width for row in answer.rows})
    for index, (way, title) in enumerate(WAYS.items()):
        rows = [row for row in answer.rows if row.way == way]
        own = " *" if way == answer.engine_way else ""
        values = [row.tpot_s for row in rows]
        figure.add_scatter(
            x=[row.beam_width for row in rows],
            y=[scale * value.value for value in values],
            mode="lines+markers",
            name=f"{title}{own}",
            line={"color": colour(index), "width": 3 if own else 1.5},
            marker={"symbol": symbol(index), "size": 10},
            error_y={**whiskers(values, scale), "color": colour(index), "thickness": 1.5},
            text=[with_interval(value, scale) for value in values],
            hovertemplate=f"{title}, %{{x}} beams: %{{text}} {units.time}<extra></extra>",
        )
    layout(figure, x=f"beams of a request (* as {answer.engine} does)", y=f"TPOT, {units.time}", height=420)
    figure.update_xaxes(type="log", tickvals=widths, ticktext=[f"{width}" for width in widths])
    ends = [scale * end for r in answer.rows for end in (r.tpot_s.low, r.tpot_s.value, r.tpot_s.high) if end]
    figure.update_yaxes(**log_axis(ends))
    last = max((row for row in answer.rows if row.way == answer.engine_way), key=lambda row: row.beam_width)
    return Chart(
        name="beam_search",
        title="Time per output token by the number of beams",
        alt=(
            f"{last.beam_width} beams on {answer.engine} take {with_interval(last.tpot_s, scale)} {units.time} a "
            f"token, {last.times_greedy:.2f} times one beam in the engine."
        ),
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(_beam_row(row, answer, units) for row in answer.rows),
    )


def beam_rows(answer: BeamSearch, units: Units = STANDARD) -> list[dict[str, object]]:
    """Every width in every way, in numbers."""
    return [_beam_row(row, answer, units) for row in answer.rows]


def _beam_row(row: BeamRow, answer: BeamSearch, units: Units) -> dict[str, object]:
    scale = units.of_seconds(1)
    return {
        "beams": row.beam_width,
        "carried along": WAYS[row.way],
        f"as {answer.engine}": row.way == answer.engine_way,
        f"TPOT, {units.time}": _digits(scale * row.tpot_s.value),
        "low": None if row.tpot_s.low is None else _digits(scale * row.tpot_s.low),
        "high": None if row.tpot_s.high is None else _digits(scale * row.tpot_s.high),
        "times greedy": _digits(row.times_greedy),
        "E2E, s": _digits(row.e2e_s.value),
        "requests/s": _digits(row.requests_per_s.value),
        "KV tokens": row.kv_tokens,
        "requests held": row.most_requests,
        "fits": row.fits,
    }


def _digits(value: float) -> float:
    return float(f"{value:.3g}")
