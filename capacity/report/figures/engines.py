"""Engines side by side on one load as a picture: one figure of each with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import Chart
from capacity.report.figures.drawing import draw_chart, with_interval
from capacity.report.figures.loads import FIGURES, served_words
from capacity.report.views.units import Unit
from capacity.report.views.view import Bars

if TYPE_CHECKING:
    from capacity.answers.engine_comparison import EngineComparison, EngineOnLoad
    from capacity.answers.records import Quantity

SPAN = 20.0  # times from the least to the most: from there on the axis is logarithmic


def engines_chart(
    answer: EngineComparison, figure_name: str = "throughput", units: Units = STANDARD
) -> Chart:
    """One of `loads.FIGURES` under each engine that has it, in the answer's order, with 90 % intervals."""
    of = FIGURES[figure_name]
    label, scale = of.label(units), of.scale(units)
    known = {row.engine: value for row in answer.rows if (value := of.of(row.point)) is not None}
    texts = "; ".join(f"{engine} {with_interval(value, scale)}" for engine, value in known.items())
    middles = [value.value for value in known.values()]
    drawing = Bars(
        name=f"engines_{figure_name}",
        title=f"{of.title} under each engine",
        alt=f"{label}: {texts}." if known else "No engine serves this load.",
        data={of.title: known},
        unit=Unit(0, scale),
        axis=label,
        log=bool(known) and max(middles) > SPAN * min(middles) > 0,
        rows=engine_rows(answer, units),
    )
    return draw_chart(drawing, answer)


def engine_rows(answer: EngineComparison, units: Units = STANDARD) -> list[dict[str, object]]:
    """A row for each engine as a table shows it: its figures, memory, what it lacks, or why it is none."""
    return [_row(row, units) for row in answer.rows]


def _row(row: EngineOnLoad, units: Units) -> dict[str, object]:
    point, scale = row.point, units.of_seconds(1)
    return {
        "engine": row.engine,
        "serves it": served_words(point),
        "GPUs": point.num_gpus,
        "output tokens/s": _text(point.output_tokens_per_s, 1.0),
        f"TTFT, {units.time}": _text(point.ttft_s, scale),
        f"TPOT, {units.time}": _text(point.tpot_s, scale),
        "E2E, s": _text(point.e2e_s, 1.0),
        "$ per 1M output": _text(point.usd_per_million_output_tokens, 1.0),
        f"weights, {units.memory}": None
        if row.weights_bytes is None
        else round(units.of_bytes(row.weights_bytes), 2),
        "KV tokens": row.kv_capacity_tokens,
        "at once": row.max_num_seqs,
        "sourced, %": round(100 * row.sourced_fraction),
        "lacks": ", ".join(row.lacks) or None,
        "why not": point.reason or (None if point.steady else point.verdict_reason),
    }


def _text(quantity: Quantity | None, scale: float) -> str | None:
    return None if quantity is None else with_interval(quantity, scale)
