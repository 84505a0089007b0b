"""The frontier as a table: of each deployment the best within a limit on TPOT, or every point."""

from __future__ import annotations

from capacity.answers.frontier import Frontier, FrontierLine
from capacity.answers.load_point import LoadPoint
from capacity.report.display import rate_and_interval, usd_text
from capacity.report.layout import Part, grid, notes

TPOT_S = 0.025
MARK = "*"


def line_name(line: FrontierLine) -> str:
    """`2 x h200-sxm-141gb, fp8, vllm`."""
    place = line.gpu if line.num_gpus is None else f"{line.num_gpus} x {line.gpu}"
    return f"{place}, {line.quantization or 'as published'}, {line.engine}"


def frontier_tables(answer: Frontier, *, tpot_s: float = TPOT_S, every: bool = False) -> list[Part]:
    """The best of each deployment within a TPOT (s), most per GPU first, or `every` point; then what has none."""
    headline = (
        f"[bold]{answer.model}[/bold], {answer.input_len:,} tokens in, {answer.output_len:,} out, closed loops: each "
        "deployment at the fewest GPUs that hold it, or at the size that was asked for"
    )
    best = answer.best(tpot_s)
    named = {id(line) for line, _ in best}
    within = f"within a TPOT of {1e3 * tpot_s:g} ms"
    if every:
        points = [(line, point) for line in answer.lines for point in line.points]
        title = f"Every point; {MARK}: no other is both faster for a user and fuller"
    else:
        points, title = (
            best,
            f"The most of each {within}; {MARK}: no other is both faster for a user and fuller",
        )
    shown: list[Part] = [headline, _points(answer, points, title)] if points else [headline]
    slow = [
        f"none of its loads is {within}" for line in answer.lines if line.points and id(line) not in named
    ]
    names = [line_name(line) for line in answer.lines if line.points and id(line) not in named]
    shown += [f"[yellow]{name}[/yellow]: {why}" for name, why in zip(names, slow, strict=True)]
    shown += [f"[red]{line_name(line)}[/red]: {line.reason}" for line in answer.lines if not line.points]
    prices = {p.price_note for line in answer.lines for p in line.points if p.price_note is not None}
    return [*shown, *notes(sorted(prices))]


def _points(answer: Frontier, points: list[tuple[FrontierLine, LoadPoint]], title: str) -> Part:
    front = {
        id(point)
        for number, line in enumerate(answer.lines)
        for place, point in enumerate(line.points)
        if (number, place) in answer.undominated()
    }
    table = grid(
        title,
        ("", "left"),
        ("in flight", "right"),
        ("tokens/s for a user", "right"),
        ("tokens/s per GPU", "right"),
        ("90 %", "left"),
        ("$/1M out", "right"),
        ("", "left"),
    )
    for column in (table.columns[0], table.columns[4]):
        column.no_wrap = True
    for line, point in points:
        speed = None if point.tpot_s is None else point.tpot_s.inverse(1.0)
        rate = point.output_tokens_per_s_per_gpu
        table.add_row(
            line_name(line),
            f"{point.load:,.0f}",
            "-" if speed is None else rate_and_interval(speed)[0],
            *(("-", "") if rate is None else rate_and_interval(rate)),
            usd_text(point.usd_per_million_output_tokens),
            MARK if id(point) in front else "",
        )
    return table
