"""The cascade as a verb of the command line: parse, ask the library, print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

import capacity
from capacity.cli.options import check_format, refuse_alone, show_answer, write


def cascade(
    *,
    model: str,
    options: Mapping[str, Any],
    chart: Annotated[
        str | None, typer.Option("--chart", help="Also write the bill by escalation rate to this HTML file.")
    ] = None,
    format: str,
    **keywords: Any,
) -> None:
    """Ask something cheaper first? A semantic cache or a small model before a large one: $, latency, break-even."""
    check_format(format)
    if chart is not None:
        refuse_alone("--chart", ("--small", options.get("small")))
    answer = capacity.cascade(model, **keywords, **options)
    show_answer(answer, format)
    if chart is not None:
        from capacity.report.figures.cascades import cascade_chart

        write(chart, cascade_chart(answer).html())
