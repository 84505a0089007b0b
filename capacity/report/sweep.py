"""How a sweep ended, and its points as a table: the options that vary, and the figures that are asked for most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from capacity.answers.records import Quantity
from capacity.report.display import text_and_interval
from capacity.report.layout import Part, grid

if TYPE_CHECKING:
    from capacity.planning.sweeps.sweep import Swept

MOST_ROWS = 40
MOST_FIGURES = 5
FIGURES: tuple[
    tuple[str, str, float, int], ...
] = (  # name in the answer, heading, unit, digits after the point
    ("ttft_s.value", "TTFT, ms", 1e-3, 1),
    ("mean_ttft_ms.value", "TTFT, ms", 1, 1),
    ("tpot_s.value", "TPOT, ms", 1e-3, 1),
    ("mean_tpot_ms.value", "TPOT, ms", 1, 1),
    ("requests_per_s.value", "requests/s", 1, 2),
    ("request_throughput", "requests/s", 1, 2),
    ("output_tokens_per_s.value", "tokens/s", 1, 0),
    ("output_throughput", "tokens/s", 1, 0),
    ("usd_per_million_output_tokens.value", "$/1M out", 1, 3),
    ("kv_capacity_tokens", "KV tokens", 1, 0),
)
Row = Mapping[str, object]


def swept_tables(swept: Swept) -> list[Part]:
    """Counts, then the points."""
    outcomes = [
        f"{count:,} {what}"
        for count, what in (
            (swept.done, "done"),
            (swept.does_not_fit, "do not fit"),
            (swept.failed, "failed"),
            (swept.skipped, "were there"),
        )
        if count
    ]
    parts: list[Part] = [f"{swept.points:,} points: {', '.join(outcomes)}"]
    if swept.rows:
        parts.append(_points(swept.rows[:MOST_ROWS]))
    if len(swept.rows) > MOST_ROWS:
        parts.append(f"the first {MOST_ROWS} of {len(swept.rows):,}; --export FILE.csv has all")
    return parts


def _points(rows: Sequence[Row]) -> Part:
    varied = [name for name in _names(rows) if name.startswith("option.") and _differs(rows, name)]
    figures = [each for each in FIGURES if any(each[0] in row for row in rows)][:MOST_FIGURES]
    unended = any(row["status"] != "done" for row in rows)
    headings = [
        *((name.removeprefix("option."), "left") for name in varied),
        *((heading, "right") for _, heading, _, _ in figures),
        *((("", "left"),) if unended else ()),
    ]
    table = grid("", *headings)
    table.columns[-1].no_wrap = True
    for row in rows:
        cells = [escape(str(row.get(name, ""))) for name in varied]
        cells += [_figure(row, name, unit, digits) for name, _, unit, digits in figures]
        table.add_row(*cells, *(("" if row["status"] == "done" else str(row["status"]),) if unended else ()))
    return table


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _differs(rows: Sequence[Row], name: str) -> bool:
    return len({str(row.get(name)) for row in rows}) > 1


def _figure(row: Row, name: str, unit: float, digits: int) -> str:
    """A figure with the digits that its interval leaves."""
    value = row.get(name)
    if not isinstance(value, (int, float)):
        return "-"
    low, high = (_number(row.get(name.replace(".value", end))) for end in (".low", ".high"))
    return text_and_interval(Quantity(value=value, low=low, high=high), 1 / unit, digits)[0]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
