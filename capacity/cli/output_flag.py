"""`--output KIND=PATH`, for verbs that write several kinds of files. The separate flag of each kind is hidden."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer

from capacity.base.errors import InvalidInput

FLAG = "--output"


class Kind(NamedTuple):
    """A kind of file: the parameter that takes its path, and the suffixes that identify the kind without `KIND=`."""

    parameter: str
    suffixes: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    "records": Kind("records", (".csv",)),
    "series": Kind("series"),
    "timeline": Kind("timeline"),
    "gantt": Kind("gantt"),
    "trace": Kind("save_trace"),
    "rows": Kind("export", (".csv", ".parquet", ".html")),
    "store": Kind("store", (".sqlite",)),
    "deployment": Kind("write_deployment", (".toml",)),
}


def kinds_of(names: Iterable[str]) -> dict[str, Kind]:
    """Return the kinds of files that a verb with these parameters can write, by name."""
    present = set(names)
    return {name: kind for name, kind in KINDS.items() if kind.parameter in present}


def with_output_flag(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return a verb's parameters with `--output` before the flags that it replaces, which become hidden."""
    by_name = {parameter.name: parameter for parameter in parameters}
    kinds = kinds_of(by_name)
    if not kinds:
        return list(parameters)
    hidden = {kind.parameter: _hide(by_name[kind.parameter]) for kind in kinds.values()}
    first = next(name for name in by_name if name in hidden)
    flag = Parameter("output", Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(kinds, by_name))
    found = {name: hidden.get(name, parameter) for name, parameter in by_name.items()}
    return [each for name, old in found.items() for each in ((flag, old) if name == first else (old,))]


def _annotation(kinds: Mapping[str, Kind], parameters: Mapping[str, Parameter]) -> Any:
    """Return the annotation of the parameter `--output`; its help names all kinds of files. Its value is discarded."""
    helps = (f"{name} ({_option(parameters[kind.parameter]).help})" for name, kind in kinds.items())
    help = f"Also write a file; can be repeated. KIND: {', '.join(helps)}."
    option = typer.Option(FLAG, help=help, metavar="KIND=PATH", expose_value=False, show_default=False)
    return Annotated[list[str] | None, option]


def _option(parameter: Parameter) -> Any:
    return get_args(parameter.annotation)[1]


def _hide(parameter: Parameter) -> Parameter:
    option = copy(_option(parameter))
    option.hidden = True
    return parameter.replace(annotation=Annotated[get_args(parameter.annotation)[0], option])


def replace_output_flags(arguments: Sequence[str], names: Iterable[str]) -> list[str]:
    """Replace each `--output KIND=PATH` by the flag of that kind. `names`: the parameters of the verb.

    Raises InvalidInput if the kind is unknown, or if it is missing and the file's suffix does not identify it.
    """
    kinds = kinds_of(names)
    return list(_replace_each(arguments, kinds) if kinds else arguments)


def _replace_each(arguments: Sequence[str], kinds: Mapping[str, Kind]) -> Iterator[str]:
    rest = iter(arguments)
    for argument in rest:
        flag, separator, value = argument.partition("=")
        if flag != FLAG:
            yield argument
            continue
        if not separator:
            value = next(rest, "")
        name, separator, path = value.partition("=")
        if not (separator and name in kinds):
            name, path = _kind_by_suffix(value, kinds), value
        yield from (f"--{kinds[name].parameter.replace('_', '-')}", path)


def _kind_by_suffix(value: str, kinds: Mapping[str, Kind]) -> str:
    suffix = Path(value).suffix.lower()
    if not re.match(r"[\w-]+=", value):
        for name, kind in kinds.items():
            if suffix in kind.suffixes:
                return name
    path = value.partition("=")[2] or value or "PATH"
    raise InvalidInput(
        f"{FLAG} {value or 'is empty'}: give the kind of file, as {next(iter(kinds))}={path}; "
        f"kinds: {', '.join(kinds)}"
    )
