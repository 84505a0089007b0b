"""Help of a verb (command): `--help` is one screen of common flags and examples; `--help-all` shows all flags by group.

Names are never truncated. The registry lists the flags and examples of the first page; a test runs the examples.
"""

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import typer
import typer.core

from capacity.base.registry import BY_NAME
from capacity.cli.output_flag import check_outputs, replace_output_flags

MAX_WIDTH = 110
MAX_FIRST_PAGE_FLAGS = 12  # flags that fit on the first page, all of them
DEPRECATED = ("--chart", "--out", "--from-vllm")  # older spellings, which still work
COLUMN = 28  # of flags; a longer one has a line of its own


class VerbCommand(typer.core.TyperCommand):
    """Parser command of a verb, with a first page of help (`--help`) and a full page (`--help-all`)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, or print the full help and exit if they contain `--help-all`."""
        if "--help-all" in args:
            typer.echo("\n".join(_all_flags(self, ctx)))
            ctx.exit()
        return super().parse_args(ctx, replace_output_flags(args, [p.name for p in self.params]))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb if each of its output files can be written. Raises InvalidInput."""
        check_outputs(str(self.name), ctx.params)
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the first page of help."""
        formatter.write("\n".join(_first_page(self, ctx)))


def _width() -> int:
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def _options(command: VerbCommand, ctx: Any) -> list[Any]:
    options = (p for p in command.get_params(ctx) if p.param_type_name == "option" and p.name != "help")
    return [option for option in options if not getattr(option, "hidden", False)]


def _first_page(command: VerbCommand, ctx: Any) -> Iterator[str]:
    yield from _head(command, ctx)
    options = _options(command, ctx)
    entry = BY_NAME.get(command.name or "")
    named = entry.first.split() if entry else []
    by_flag = {flag.removeprefix("--"): option for option in options for flag in option.opts}
    chosen = (
        [by_flag[name] for name in named if name in by_flag]
        if len(options) > MAX_FIRST_PAGE_FLAGS
        else options
    )
    for option in chosen:
        yield from _rows(spell_option(option, shortest=True), option.help or "")
    if entry and entry.examples:
        yield ""
        for example in entry.examples:
            yield from textwrap.wrap(f"capacity {example}", _width() - 2, **_HANGING)
    yield ""
    left = len(options) - len(chosen)
    yield from textwrap.wrap(_more_help(command, left), _width())


_HANGING: Mapping[str, Any] = {
    "initial_indent": "  ",
    "subsequent_indent": "      ",
    "break_long_words": False,
    "break_on_hyphens": False,
}


def _more_help(command: VerbCommand, left: int) -> str:
    """Return a hint at more help: `--help-all` if `left` flags are not shown on this page, else other commands."""
    if left:
        return f"`capacity {command.name} --help-all` shows {left} more flags."
    return f"`capacity explain TERM` defines a term; `capacity schema {command.name}` prints the JSON schema."


def _all_flags(command: VerbCommand, ctx: Any) -> Iterator[str]:
    yield from _head(command, ctx)
    groups: dict[str, list[Any]] = {}
    for option in _options(command, ctx):
        groups.setdefault(option.rich_help_panel or "", []).append(option)
    for group, options in groups.items():
        yield from ((f"{group}:",) if group else ())
        for option in options:
            yield from _rows(spell_option(option), f"{option.help or ''}{_default(option)}")
        yield ""


def _head(command: VerbCommand, ctx: Any) -> Iterator[str]:
    arguments: list[Any] = [p for p in command.get_params(ctx) if p.param_type_name == "argument"]
    names = " ".join(f"[{a.name.upper()}]" if not a.required else a.name.upper() for a in arguments)
    yield f"capacity {command.name} {names}{' ' if names else ''}[flags]"
    yield ""
    for paragraph in (command.help or "").split("\n\n"):
        yield from textwrap.wrap(paragraph, _width())
    yield ""
    for argument in arguments:
        if argument.help:
            yield from _rows(argument.name.upper(), argument.help)


def spell_option(option: Any, *, shortest: bool = False) -> str:
    """Return the spellings of an option, short ones first, and its type; `shortest`: only one long and one short."""
    shown = (flag for flag in (*option.opts, *option.secondary_opts) if flag not in DEPRECATED)
    spellings = sorted(shown, key=lambda flag: flag.startswith("--"))
    if shortest:
        short = [flag for flag in spellings if not flag.startswith("--")]
        spellings = [*short[:1], next(flag for flag in option.opts if flag.startswith("--"))]
    if option.is_flag:
        return ", ".join(spellings)
    return f"{', '.join(spellings)} {_type_name(option)}"


def _type_name(option: Any) -> str:
    """Return the type of a flag in its help: the declared type, or PATH if the help text names a file or folder."""
    annotation = option.type_descriptor.annotation
    named = str(option.metavar or getattr(annotation, "__name__", "str"))
    words = {"str": "TEXT", "int": "N", "float": "X", "list": "TEXT"}
    if named == "str" and re.search(r"\b(file|folder)\b", option.help or "", re.I):
        return "PATH"
    return words.get(named, named.upper())


def _default(option: Any) -> str:
    default = option.default
    plain = isinstance(default, (str, int, float)) and not isinstance(default, bool)
    return f" [default: {default}]" if option.show_default and plain and default != "" else ""


def _rows(left: str, text: str) -> Iterable[str]:
    """Yield the lines of one flag's help: the flag (`left`), and `text` to its right, or below if the flag is long."""
    width = _width()
    lines: Sequence[str] = textwrap.wrap(text, width - COLUMN, break_on_hyphens=False) or [""]
    if len(left) + 4 > COLUMN:
        yield f"  {left}"
        yield from (" " * COLUMN + line for line in lines)
        return
    yield f"  {left:{COLUMN - 2}}{lines[0]}"
    yield from (" " * COLUMN + line for line in lines[1:])
