"""Engines side by side on one load as a table."""

from __future__ import annotations

from capacity.answers.engine_comparison import EngineComparison, EngineOnLoad
from capacity.answers.records import Quantity
from capacity.report.display import STANDARD, rate_and_interval, time_and_interval
from capacity.report.gpu_comparison import LOADS
from capacity.report.layout import Part, grid, notes


def engine_comparison_tables(answer: EngineComparison) -> list[Part]:
    """What serves the load, the most tokens/s first; what each lacks; then who does not run it, and why."""
    load = LOADS[answer.load_field].format(answer.load)
    headline = (
        f"[bold]{answer.model}[/bold] on {answer.gpu}, {load}, {answer.input_len:,} tokens in, "
        f"{answer.output_len:,} out: each engine at its defaults, 90 % intervals"
    )
    serving = [row for row in answer.rows if row.point.fits]
    tables = [_speeds(serving), _memory(serving)] if serving else []
    whys = [f"[red]{row.engine}[/red]: {row.point.reason}" for row in answer.rows if not row.point.fits]
    said = [f"{row.engine}: {note}" for row in serving for note in row.notes]
    return [headline, *tables, *whys, *notes(said)]


def _speeds(rows: list[EngineOnLoad]) -> Part:
    names = ("tokens/s", "TTFT", "TPOT", "E2E")
    table = grid("Speed", ("engine", "left"), *((name, "right") for name in names), ("basis", "left"))
    table.columns[0].no_wrap = True
    for row in rows:
        point = row.point
        rate = point.output_tokens_per_s
        table.add_row(
            row.engine,
            "-" if rate is None else "\n".join(rate_and_interval(rate)),
            *(_time(each) for each in (point.ttft_s, point.tpot_s, point.e2e_s)),
            str(point.basis if point.verdict in (None, "stable") else point.verdict),
        )
    return table


def _time(quantity: Quantity | None) -> str:
    return "-" if quantity is None else "\n".join(time_and_interval(quantity))


def _memory(rows: list[EngineOnLoad]) -> Part:
    columns = ("GPUs", "weights", "KV tokens", "at once", "sourced")
    table = grid(
        "Memory, and what is not done by default",
        ("engine", "left"),
        *((name, "right") for name in columns),
        ("lacks", "left"),
    )
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(
            row.engine,
            f"{row.point.num_gpus}",
            "-" if row.weights_bytes is None else STANDARD.memory_text(row.weights_bytes),
            "-" if row.kv_capacity_tokens is None else f"{row.kv_capacity_tokens:,}",
            "-" if row.max_num_seqs is None else f"{row.max_num_seqs:,}",
            f"{row.sourced_fraction:.0%}",
            ", ".join(row.lacks) or "-",
        )
    return table
