"""The user's own defaults of flags, which `capacity config` stores in a file.

They apply on the command line, to commands about one deployment and to searches. Except for the currency, they do not
apply if the input is a deployment file or a launch command. A flag overrides its default, and one line on stderr names
the defaults that apply.
"""

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from capacity.base.data_files import read_data, user_folder
from capacity.base.errors import InvalidInput
from capacity.base.output_files import write_file
from capacity.base.toml_text import toml_value
from capacity.cli.options import print_message, show, with_dashes


class Default(NamedTuple):
    """A flag that can have a user default: its help, the verbs that use it (None: all that have the flag), and the
    flags that replace it."""

    help: str
    verbs: frozenset[str] | None
    replaced_by: tuple[str, ...] = ()


_BILLED = frozenset(
    ("estimate", "simulate", "quantize", "scale", "cost", "curve", "plan", "fleet", "frontier")
)
DEFAULTS: Mapping[str, Default] = {
    "engine": Default("engine, such as vllm@0.11 or sglang", _BILLED | {"fit", "explain", "speculate"}),
    "price_tier": Default(
        "price tier, such as on-demand or reserved-1y", _BILLED, ("price", "price_mix", "owned_cost")
    ),
    "confidence": Default("confidence of SLOs, from 0.5 to below 1", frozenset(("plan", "fleet"))),
    "currency": Default("currency of displayed amounts, such as EUR or EUR=1.08", None),
}
applied: list[str] = []
"""Flags of the running command that come from the defaults file, as a user would type them."""


def config(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="Flags and their default values to store; NAME= removes the stored value.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Store the given defaults, and print all of them. Raises InvalidInput for an unknown name or a bad value."""
    stored = read_defaults()
    for setting in settings or ():
        name, separator, value = setting.partition("=")
        if not separator:
            raise InvalidInput(
                f"{setting!r} is not NAME=VALUE; names: {', '.join(map(with_dashes, DEFAULTS))}"
            )
        stored[_known_name(name, "capacity config")] = value
    stored = {name: stored[name] for name in DEFAULTS if stored.get(name)}
    for name, value in stored.items():
        _check(name, value)
    path = defaults_file()
    if settings:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, "".join(f"{name} = {toml_value(value)}\n" for name, value in stored.items()))
    for name, default in DEFAULTS.items():
        show(f"{with_dashes(name)} = {stored.get(name, 'not set')}  ({default.help})")
    show(f"file: {path}")


def defaults_file() -> Path:
    """Return the path of the file with the user's defaults. It need not exist."""
    return user_folder("defaults.toml")


def read_defaults() -> dict[str, str]:
    """Return the user's defaults by name. Raises MalformedFile for a bad file, InvalidInput for an unknown name."""
    path = defaults_file()
    if not path.exists():
        return {}
    return {_known_name(name, str(path)): str(value) for name, value in read_data(path).items()}


def apply_defaults(verb: str, flags: MutableMapping[str, Any], names: Collection[str]) -> None:
    """Add the user's defaults to a verb's given `flags` and report them on stderr; `names`: all flags of the verb."""
    found = dict(_applicable(verb, flags, names))
    flags.update(found)
    if found:
        typed = [text for name, value in found.items() for text in (f"--{with_dashes(name)}", value)]
        applied.extend(typed)
        print_message(f"note: defaults of `capacity config`: {' '.join(typed)}")


def _applicable(verb: str, flags: Mapping[str, Any], names: Collection[str]) -> Iterator[tuple[str, str]]:
    if not defaults_file().exists():
        return
    for name, value in read_defaults().items():
        flag = name if name in names else f"{name}s"
        given = flags.keys() & {flag, *DEFAULTS[name].replaced_by}
        verbs = DEFAULTS[name].verbs
        if (verbs is None or verb in verbs) and flag in names and not given:
            _check(name, value)
            yield flag, value


def _known_name(name: str, place: str) -> str:
    known = name.replace("-", "_")
    if known not in DEFAULTS:
        raise InvalidInput(
            f"{place}: no default is called {name!r}; names: {', '.join(map(with_dashes, DEFAULTS))}"
        )
    return known


def _check(name: str, value: str) -> None:
    from capacity.base.money import find_currency
    from capacity.deployment import Cost, build
    from capacity.deployment.engines import find_engine
    from capacity.planning.space import Search

    if name == "engine":
        find_engine(value)
    elif name == "currency":
        find_currency(value)
    else:
        build(Cost if name == "price_tier" else Search, {name: value}, flags=True)
