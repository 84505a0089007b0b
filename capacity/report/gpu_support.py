"""Which engine runs what where, and how well that is known, as a matrix."""

from __future__ import annotations

from collections import defaultdict

from capacity.answers.support import Status, SupportCell, SupportMatrix
from capacity.report.layout import Part, grid, notes

SIGNS: dict[Status, str] = {"measured": "M", "fitted": "F", "assumed": "a", "impossible": "-"}
MEANINGS: dict[Status, str] = {
    "measured": "servers of this engine were measured on this card, and its kernels are fitted",
    "fitted": "kernels fitted on this card",
    "assumed": "constants of another card or engine, or rooflines",
    "impossible": "refused",
}


def gpu_support_tables(answer: SupportMatrix) -> list[Part]:
    """One GPU: a row a format, with the reasons. Several: a row a GPU, a letter a format."""
    legend = ", ".join(f"{SIGNS[status]} {status} ({meaning})" for status, meaning in MEANINGS.items())
    if len(answer.gpus) == 1:
        return [_of_one(answer)]
    order = ", ".join(answer.weight_formats)
    return [_matrix(answer), *notes([f"a letter for each of {order}", legend])]


def _matrix(answer: SupportMatrix) -> Part:
    cells: defaultdict[str, dict[str, str]] = defaultdict(lambda: dict.fromkeys(answer.gpus, ""))
    for cell in answer.rows:
        cells[_short(cell.engine)][cell.gpu] += SIGNS[cell.status]
    columns: defaultdict[tuple[str, ...], list[str]] = defaultdict(
        list
    )  # engines that differ in nothing, as one
    for engine, letters in cells.items():
        columns[tuple(letters.values())].append(engine)
    headings = [("\n".join(engines), "left") for engines in columns.values()]
    table = grid("Engines and weight formats by GPU", ("GPU", "left"), *headings)  # type: ignore[arg-type]
    for column in table.columns:
        column.no_wrap = True
    for place, gpu in enumerate(answer.gpus):
        table.add_row(gpu, *(letters[place] for letters in columns))
    return table


def _of_one(answer: SupportMatrix) -> Part:
    table = grid(
        f"Engines and weight formats on {answer.gpus[0]}",
        *(("engine", "left"), ("weights", "left"), ("known", "left"), ("because", "left")),
    )
    seen: set[str] = set()
    for cell in answer.rows:
        table.add_row("" if cell.engine in seen else cell.engine, *_of_cell(cell))
        seen.add(cell.engine)
    return table


def _of_cell(cell: SupportCell) -> tuple[str, str, str]:
    return cell.weight_format, cell.status, cell.why


def _short(engine: str) -> str:
    return (
        engine.partition("@")[0]
        .removeprefix("hf-")
        .replace("tensorrt-llm", "trt-llm")
        .replace("deepspeed-", "")
    )
