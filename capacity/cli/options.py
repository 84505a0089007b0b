"""Options of several verbs, and shared output functions: check the format, print, write files, show progress."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer

from capacity.base.errors import InvalidInput
from capacity.base.flags import CLUSTER, ENGINE_LOOP, SCHEDULER
from capacity.base.output_files import write_file
from capacity.base.untrusted_text import printable, shorten_text

if TYPE_CHECKING:
    from capacity.base.record import AnswerRecord
    from capacity.report.figures.chart import Chart
    from capacity.report.tables import Tables

MODEL_HELP = "Preset (`capacity models`), Hugging Face id, config.json, or a folder with one."
INTERRUPTED = 130  # exit code after Ctrl-C, as in shells
CLOSED_PIPE = 141  # exit code after a closed pipe, as in shells
FORMATS = ("table", "json", "csv", "html")
LIST_FORMATS = FORMATS[:3]  # of output that is not an answer


def check_format(format: str, formats: Sequence[str] = FORMATS) -> str:
    """Return the format. Raises InvalidInput if it is not one of `formats`."""
    if format not in formats:
        raise InvalidInput(f"--format is {format!r}: must be one of {', '.join(formats)}")
    return format


def _format_option(formats: Sequence[str]) -> Any:
    """Return the `--format` flag of a verb that writes these formats; it is checked before the answer is computed."""
    named = f"{', '.join(formats[:-1])} or {formats[-1]}"
    return typer.Option(
        "--format", help=f"Output format: {named}.", callback=lambda format: check_format(format, formats)
    )


FormatOption = Annotated[str, _format_option(FORMATS)]
ListFormatOption = Annotated[str, _format_option(LIST_FORMATS)]
ModelArgument = Annotated[str, typer.Argument(help=MODEL_HELP)]
OptionalModel = Annotated[str | None, typer.Argument(help=MODEL_HELP, show_default=False)]
ClusterOption = Annotated[str | None, typer.Option(CLUSTER.spelled, help=CLUSTER.help)]
EngineLoopOption = Annotated[str, typer.Option(ENGINE_LOOP.spelled, help=ENGINE_LOOP.help)]
SchedulerOption = Annotated[str | None, typer.Option(SCHEDULER.spelled, help=SCHEDULER.help)]
WorkersOption = Annotated[int, typer.Option("--workers", help="Number of parallel simulation processes.")]


def with_dashes(name: str) -> str:
    """Return the name of a flag or verb with dashes in place of underscores."""
    return name.replace("_", "-")


def refuse_alone(flag: str, *others: tuple[str, object]) -> None:
    """Raise InvalidInput if no flag in `others` (name, value) is set, because `flag` has no effect without one."""
    if all(value is None for _, value in others):
        raise InvalidInput(
            f"{flag} has no effect without {' or '.join(name for name, _ in others)}: add it, or leave {flag} out"
        )


def show(text: str) -> None:
    """Print text with one newline at the end; colours are kept on a terminal."""
    text = printable(text, colours=sys.stdout.isatty())
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()  # before an error on stderr
    except BrokenPipeError:  # the reader closed the pipe; the parser would exit with 1
        silence(sys.stdout)
        sys.exit(CLOSED_PIPE)


def show_answer(
    answer: AnswerRecord, format: str, *, detail: bool = True, tables: Tables | None = None
) -> None:
    """Print an answer; an HTML page includes the command as typed."""
    from capacity.report.tables import render

    show(render(answer, format, tables=tables, detail=detail, command=command_line_text()))


def command_line_text() -> str:
    """Return the command line as the user typed it, plus the user's defaults that applied, ready to paste."""
    from capacity.cli.user_defaults import applied

    return shlex.join(["capacity", *sys.argv[1:], *applied])


def print_message(message: str) -> None:
    """Print one line on stderr; if stderr is closed, discard it."""
    try:
        print(shorten_text(message), file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Discard a stream's pending output, so that exit does not try to write it again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def exit_with_message(message: str, exit_code: int) -> NoReturn:
    """Exit with one line on stderr."""
    print_message(message)
    sys.exit(exit_code)


def write_output(path: str, content: str | bytes) -> None:
    """Write the file of `--output`, and print its path on stderr. Raises InvalidInput."""
    write_file(path, content)
    print_message(f"written: {path}")


def write_chart(path: str, chart: Chart) -> None:
    """Write a chart as PNG or SVG if the file has this suffix, else as an HTML page. Raises InvalidInput."""
    formats: dict[str, Callable[[], str | bytes]] = {".png": chart.png, ".svg": chart.svg}
    write_output(path, formats.get(Path(path).suffix.lower(), chart.html)())


def write_all(writers: Iterable[Callable[[], object]]) -> None:
    """Call each function that writes a file. At the end, raises InvalidInput with the errors of those that failed."""
    reasons = []
    for writer in writers:
        try:
            writer()
        except InvalidInput as error:
            reasons.append(str(error))
    if reasons:
        raise InvalidInput("; ".join(reasons))
