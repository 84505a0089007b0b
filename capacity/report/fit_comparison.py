"""Every GPU that holds a model as a table."""

from __future__ import annotations

from capacity.answers.fit_comparison import FitComparison, FitPoint
from capacity.report.display import STANDARD
from capacity.report.layout import Part, grid, notes


def fit_comparison_tables(answer: FitComparison) -> list[Part]:
    """What holds the model, the cheapest first; what holds shorter requests; what cannot be, and why."""
    holding = [point for point in answer.rows if point.fits]
    shorter = [point for point in answer.rows if not point.fits and point.max_context_tokens]
    refused = [point for point in answer.rows if not point.fits and not point.max_context_tokens]
    headline = (
        f"[bold]{answer.model}[/bold] under {answer.engine}: each GPU at its smallest pool, "
        f"by {answer.price_tier} price"
    )
    parts: list[Part] = [headline]
    if holding:
        parts.append(_table("Holds it", holding))
    if shorter:
        parts.append(_table("Holds it for shorter requests: --max-model-len", shorter))
    parts += [f"[red]{point.gpu}[/red]: {point.reason}" for point in refused]
    without = [point.gpu for point in (*holding, *shorter) if point.usd_per_hour is None]
    if without:
        parts += notes(
            [f"no {answer.price_tier} price in the table of {', '.join(without)}: --price-tier, or your own"]
        )
    return parts


def _table(title: str, points: list[FitPoint]) -> Part:
    columns = ("weights", "KV tokens", "longest request", "at once", "$/h")
    table = grid(title, ("GPUs", "left"), *((name, "right") for name in columns))
    table.columns[0].no_wrap = True
    for point in points:
        table.add_row(
            f"{point.num_gpus} x {point.gpu}",
            "-" if point.weights_bytes is None else STANDARD.memory_text(point.weights_bytes),
            f"{point.kv_capacity_tokens:,}",
            f"{point.max_context_tokens:,}",
            f"{point.max_concurrency:,.1f}",
            "-" if point.usd_per_hour is None else f"${point.usd_per_hour:,.2f}",
        )
    return table
