"""Flag `--output KIND=PATH` of verbs (commands) that write several kinds of files; checks of outputs before the run.

A verb also has a separate flag for each kind, which its help does not show."""

import os
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
    """A kind of file that a verb writes.

    `parameter`: parameter of the verb that takes the path. `suffixes`: suffixes that identify the kind without `KIND=`.
    `allowed`: suffixes that the file may have (empty: any); it may also have none. `drawn`: needs matplotlib.
    """

    parameter: str
    suffixes: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    folder: bool = False
    drawn: bool = False


CHART_SUFFIXES = (".html", ".svg", ".png")
KINDS: Mapping[str, Kind] = {
    "records": Kind("records", (".csv",), allowed=(".csv",)),
    "series": Kind("series", allowed=(".csv",)),
    "timeline": Kind("timeline", allowed=(".json",)),
    "gantt": Kind("gantt", allowed=CHART_SUFFIXES, drawn=True),
    "trace": Kind("save_trace"),
    "rows": Kind("export", (".csv", ".parquet", ".html")),
    "store": Kind("store", (".sqlite",)),
    "deployment": Kind("write_deployment", (".toml",), allowed=(".toml",)),
    "metrics": Kind("metrics_file", (".prom",), allowed=(".prom",)),
    "alerts": Kind("alert_rules", (".yml", ".yaml"), allowed=(".yml", ".yaml")),
    "dashboard": Kind("grafana_dashboard", (".json",), allowed=(".json",)),
    "report": Kind("report_file", (".html",), allowed=(".html",)),
}
_CHART = Kind("chart", allowed=CHART_SUFFIXES, drawn=True)
OUTPUT_OF_VERB: Mapping[str, Kind] = {  # verbs that write one kind of file
    "batching": _CHART,
    "frontier": _CHART,
    "cascade": _CHART,
    "charts": Kind("output", folder=True, drawn=True),
    "curve": Kind("output", allowed=(".html",)),
    "side-by-side": Kind("output", allowed=(".html",)),
    "plan": Kind("output", folder=True),
    "fleet": Kind("output", allowed=(".toml",)),
    "from-launch": Kind("output", allowed=(".toml",)),
    "from-vllm": Kind("output", allowed=(".toml",)),
    "validate": Kind("out", folder=True),
    "calibrate": Kind("out", folder=True),
}


def kinds_of(names: Iterable[str]) -> dict[str, Kind]:
    """Return the kinds of files that a verb with these parameters can write, by name."""
    present = set(names)
    return {name: kind for name, kind in KINDS.items() if kind.parameter in present}


def with_output_flag(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return a verb's parameters with `--output` added; the help does not show the flags that `--output` replaces."""
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
    """Return the annotation of the parameter `--output`, whose help names all kinds of files; its value is not used."""
    helps = (f"{name} ({_option(parameters[kind.parameter]).help})" for name, kind in kinds.items())
    help = f"Also write this KIND of file; can be repeated. Kinds: {', '.join(helps)}."
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


def check_outputs(verb: str, values: Mapping[str, Any]) -> None:
    """Raise InvalidInput for an output file that cannot be written. `values`: the verb's parameters by name."""
    for kind in (*KINDS.values(), *([OUTPUT_OF_VERB[verb]] if verb in OUTPUT_OF_VERB else ())):
        if path := values.get(kind.parameter):
            _check_output(kind, str(path))


def _check_output(kind: Kind, path: str) -> None:
    file = Path(path)
    suffix = file.suffix.lower()
    if kind.allowed and suffix not in ("", *kind.allowed):
        *others, last = kind.allowed
        endings = f"{', '.join(others)} or {last}" if others else last
        raise InvalidInput(f"cannot write {path}: the file must end in {endings}, not {suffix}")
    if kind.drawn:
        from capacity.report.figures.picture import check_drawing

        check_drawing()
    try:
        reason = _why_unwritable(file, folder=kind.folder)
    except OSError as error:  # a name that is too long
        reason = str(error.strerror)
    if reason:
        raise InvalidInput(f"cannot write {path}: {reason}")


def _why_unwritable(file: Path, *, folder: bool) -> str | None:
    """Return why a file or a folder, which may be created with its parents, cannot be written; None if it can."""
    parents = file.absolute().parents
    if file.exists():
        place = file
        if file.is_dir() != folder:
            return "it is a file, and a folder is needed" if folder else "it is a folder; name a file"
    else:
        place = next(each for each in parents if each.exists()) if folder else parents[0]
        if not place.is_dir():
            return f"{place} is not a folder" if place.exists() else f"the folder {place} does not exist"
    return None if os.access(place, os.W_OK) else f"no permission to write to {place}"
