"""The frontier as a verb of the command line: parse, ask the library, print or write the chart."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

import capacity
from capacity.base.errors import InvalidInput
from capacity.cli.options import check_format, progress_bar, show_answer, write
from capacity.cli.question_flags import listed, numbers

TPOT_MS = 25.0


def frontier(
    *,
    model: str,
    options: Mapping[str, Any],
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", help="GPU profiles, by commas: h100,h200,b200.", show_default=False),
    ] = None,
    quantizations: Annotated[
        str, typer.Option("--quantizations", help="Weight formats, by commas; default: the checkpoint's.")
    ] = "default",
    engines: Annotated[
        str, typer.Option("--engines", help="Engines, by commas, each with an optional version.")
    ] = "vllm",
    tensor_parallel_sizes: Annotated[
        str,
        typer.Option(
            "--tensor-parallel-sizes",
            help="GPUs that share every layer, by commas; fewest: as few as hold the model.",
        ),
    ] = "fewest",
    loads: Annotated[
        str | None, typer.Option("--loads", help="Requests in flight, by commas; default: 1 to 1,024.")
    ] = None,
    tpot: Annotated[
        float, typer.Option("--tpot", help="The limit on TPOT in ms that the best of each must keep.")
    ] = TPOT_MS,
    chart: Annotated[
        str | None, typer.Option("--chart", help="Also write the chart to this HTML file.")
    ] = None,
    detail: bool,
    format: str,
    **keywords: Any,
) -> None:
    """Fast for a user, or cheap for all? Tokens/s per GPU against tokens/s for a user, of many deployments at once."""
    from capacity.report.frontier import frontier_tables

    check_format(format)
    if gpus is None:
        raise InvalidInput("no GPU: add --gpus NAME,NAME (`capacity gpus` lists them)")
    if not 0 < tpot < float("inf"):
        raise InvalidInput(f"--tpot {tpot}: must be above 0 ms")
    own_loads: Mapping[str, Any] = (
        {} if loads is None else {"loads": [int(load) for load in numbers("--loads", loads) or ()]}
    )
    with progress_bar("deployments") as progress:
        answer = capacity.frontier(
            model,
            gpus=listed(gpus),
            quantizations=[None if name == "default" else name for name in listed(quantizations)],
            engines=listed(engines),
            tensor_parallel_sizes=[_size(text) for text in listed(tensor_parallel_sizes)],
            **own_loads,
            progress=progress,
            **keywords,
            **options,
        )
    drawn = partial(frontier_tables, tpot_s=tpot / 1e3, every=detail)
    show_answer(answer, format, tables=drawn)
    if chart is not None:
        from capacity.report.figures.frontiers import frontier_chart

        write(chart, frontier_chart(answer, tpot_limit_s=tpot / 1e3).html())


def _size(text: str) -> int | None:
    """A tensor-parallel size; None for `fewest`. Raises InvalidInput."""
    if text == "fewest":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise InvalidInput(f"--tensor-parallel-sizes {text!r}: give whole numbers by commas, or fewest")
    return int(text)
