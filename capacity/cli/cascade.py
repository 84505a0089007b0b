"""The cascade as a verb of the command line: parse, ask the library, print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

import capacity
from capacity.cli.options import (
    DownloadOption,
    FormatOption,
    ModelArgument,
    ProfilesOption,
    check_format,
    refuse_alone,
    show_answer,
    write,
)


def cascade(
    *,
    model: ModelArgument,
    options: Mapping[str, Any],
    chart: Annotated[
        str | None, typer.Option("--chart", help="Also write the bill by escalation rate to this HTML file.")
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also run both models as one deployment, request by request.")
    ] = False,
    format: FormatOption = "table",
    profiles: ProfilesOption = None,
    download: DownloadOption = False,
) -> None:
    """Ask something cheaper first? A semantic cache or a small model before a large one: $, latency, break-even."""
    check_format(format)
    if chart is not None:
        refuse_alone("--chart", ("--small", options.get("small")))
    answer = capacity.cascade(model, simulate=simulate, profiles=profiles, download=download, **options)
    show_answer(answer, format)
    if chart is not None:
        from capacity.report.figures.cascades import cascade_chart

        write(chart, cascade_chart(answer).html())
