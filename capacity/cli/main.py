"""Entry point of the command line: run a verb, and turn errors into one line and an exit code.

Exit codes: 0 answered, 1 does not fit or SLO unmet, 2 bad input.
"""

import atexit
import gc
import os
import sys
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from capacity.base.errors import CapacityError, InvalidInput
from capacity.cli.options import CLOSED_PIPE, INTERRUPTED, exit_with_message, show, silence, with_dashes
from capacity.cli.verbs import VerbGroup, register

NO_MEMORY = "not enough memory: reduce the number of requests or points, or give the process more memory"
VALUE_LISTS = ("--goodput", "--slo")
NEAR_FLAG = 0.65  # similarity of a suggested flag; --input-len and --n-gpu-layers have 0.64
# before Python looks for cycles; its default of 700 is reached again and again while modules load
GC_THRESHOLD = 200_000

app = typer.Typer(
    name="capacity",
    cls=VerbGroup,
    help="Capacity planning for LLM inference: which GPUs, how many, at what cost.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "token_normalize_func": with_dashes,  # vLLM's flags may have underscores
    },
)
register(app)


def _repeat_flags(arguments: list[str]) -> list[str]:
    """Return the arguments with a flag repeated before each of its values, as the parser requires.

    vLLM accepts several values after one flag: `--goodput ttft:500 tpot:50`.

    Raises InvalidInput for a flag with an empty value.
    """
    result: list[str] = []
    repeating: str | None = None
    for before, argument in pairwise(("", *arguments)):
        name, separator, value = argument.partition("=")
        if not argument and before.startswith("--"):
            raise InvalidInput(f"{before} is empty: give it a value, or leave it out")
        if argument.startswith("--") and separator and not value:
            raise InvalidInput(f"{name} is empty: give it a value, or leave it out")
        if argument.startswith("-") and argument != "-":
            repeating = argument if argument in VALUE_LISTS else None
        elif repeating and ":" in argument and result[-1] not in VALUE_LISTS:
            result.append(repeating)
        result.append(argument)
    return result


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        from capacity.answers.data_version import data_version

        show(f"llm-capacity {installed('llm-capacity')}")
        show(str(data_version()))
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        show(context.get_help())
        raise typer.Exit(2)


def _disable_garbage_collection() -> None:
    """Disable garbage collection at start and exit, because it takes a fifth of a short command's time."""
    gc.set_threshold(GC_THRESHOLD)
    atexit.register(gc.freeze)  # remaining objects end with the process and need no collection


def _make_output_safe() -> None:
    """Replace characters that the terminal's encoding lacks with `?`; discard output to closed streams."""
    sys.stdout, sys.stderr = (stream or _null_stream() for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in {"strict", "surrogateescape"}:
            stream.reconfigure(errors="replace")


def _null_stream() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _command() -> Any:
    """Return the parser of `capacity`; --install-completion is the only flag for shell completion in its help."""
    command = typer.main.get_command(app)
    for parameter in command.params:
        parameter.hidden = parameter.name == "show_completion"  # type: ignore[attr-defined]
        if parameter.name == "install_completion":
            parameter.help = "Install completion for this shell."  # type: ignore[attr-defined]
    return command


def main() -> None:
    """Run the `capacity` command."""
    try:
        _disable_garbage_collection()
        _make_output_safe()
        code = _command()(args=_repeat_flags(sys.argv[1:]), prog_name="capacity", standalone_mode=False)
        if code == INTERRUPTED:  # the parser turns Ctrl-C into a code
            raise KeyboardInterrupt
        sys.stdout.flush()
    except CapacityError as error:
        exit_with_message(f"{type(error).__name__}: {error}", error.exit_code)
    except KeyboardInterrupt:
        exit_with_message("interrupted", INTERRUPTED)
    except BrokenPipeError:
        silence(sys.stdout)
        sys.exit(CLOSED_PIPE)
    except MemoryError:
        exit_with_message(NO_MEMORY, 2)
    except OSError as error:  # a disk that is full, say; files that cannot be read or written say more
        silence(sys.stdout)
        exit_with_message(f"the answer cannot be written: {error.strerror or error}", 2)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if not error.format_message():  # the help is printed already
            sys.exit(2)
        exit_with_message(_usage(error), 2)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> str:
    """Return a parser error as one line, with the existing flag or command that is most similar to the wrong one."""
    import difflib

    suggests = getattr(error, "possibilities", None)  # options of the parser's own choice
    message = str(error.message if suggests else error.format_message()).rstrip(".")
    option = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if option and context is not None:
        known = [
            flag
            for parameter in context.command.params
            for flag in (*parameter.opts, *parameter.secondary_opts)
        ]
        if close := difflib.get_close_matches(option, known, n=1, cutoff=NEAR_FLAG):
            message += f"; did you mean {close[0]}?"
    verb = context.command_path if context is not None else "capacity"
    return f"{message} (see `{verb} --help`)"
