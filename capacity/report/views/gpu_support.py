"""The view of `gpus --support`: the formats that each engine runs on each GPU, and the evidence for predictions."""

from collections import defaultdict

from capacity.answers.support import Status, SupportMatrix
from capacity.report.views.view import Column, Table, View

SIGNS: dict[Status, str] = {"measured": "M", "fitted": "F", "assumed": "a", "impossible": "-"}
MEANINGS: dict[Status, str] = {
    "measured": "servers of this engine were measured on this GPU, and its kernels are fitted",
    "fitted": "kernels fitted on this GPU",
    "assumed": "estimate with constants of another GPU or engine, or from rooflines",
    "impossible": "rejected",
}


def gpu_support_view(answer: SupportMatrix) -> View:
    """Return for one GPU a row for each engine and format; for several GPUs a row for each GPU."""
    if len(answer.gpus) == 1:
        first = {cell.engine: cell for cell in reversed(answer.rows)}
        columns = [
            Column("engine", lambda cell: cell.engine * (cell is first[cell.engine])),
            Column("weights", "weight_format"),
            Column("status", "status"),
            Column("reason", "why"),
        ]
        return View("", [Table(f"Engines and weight formats on {answer.gpus[0]}", answer.rows, columns)])
    legend = ", ".join(f"{SIGNS[status]} {status} ({meaning})" for status, meaning in MEANINGS.items())
    matrix = Table(
        "Engines and weight formats by GPU", answer.gpus, [Column("GPU", ""), *_status_columns(answer)]
    )
    letters = f"one letter for each format, in order: {', '.join(answer.weight_formats)}"
    return View("", [matrix], notes=[letters, legend])


def _status_columns(answer: SupportMatrix) -> list[Column]:
    """Return a column for each engine with one letter per format; engines with identical letters share a column."""
    cells: defaultdict[str, dict[str, str]] = defaultdict(lambda: dict.fromkeys(answer.gpus, ""))
    for cell in answer.rows:
        name = cell.engine.partition("@")[0].removeprefix("hf-").removeprefix("deepspeed-")
        cells[name.replace("tensorrt-llm", "trt-llm")][cell.gpu] += SIGNS[cell.status]
    identical: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for engine, letters in cells.items():
        identical[tuple(letters.values())].append(engine)
    return [Column("\n".join(engines), cells[engines[0]].get) for engines in identical.values()]
