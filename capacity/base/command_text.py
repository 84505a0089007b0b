"""Text of a command to paste: the `capacity` command line, or the Python call that gives the same answer."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

LINE = 96  # longest command in characters; a longer one has one flag per line


def command_line(verb: str, model: str | Sequence[str], options: Mapping[str, Any]) -> str:
    """Return the command `capacity VERB MODEL --flags`. `options` maps Python keywords to values; values of None are
    left out. `model` is a name, or several deployment files."""
    things = [model] if isinstance(model, str) else model
    lines = [
        " ".join(["capacity", verb.replace("_", "-"), *map(shlex.quote, things)]),
        *flag_texts(options),
    ]
    one = " ".join(lines)
    return one if len(one) <= LINE else " \\\n    ".join(lines)


def flag_texts(options: Mapping[str, Any]) -> list[str]:
    """Return a text such as `--gpu h100` for each option, quoted for a shell."""
    return [" ".join(words) for name, value in options.items() for words in _flag(name, value)]


def _flag(name: str, value: Any) -> list[list[str]]:
    flag = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [[f"--{flag}" if value else f"--no-{flag}"]]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if name == "slo":  # a flag that is given several times
            return [[f"--{flag}", shlex.quote(_text(item))] for item in value]
        return [[f"--{flag}", shlex.quote(",".join(_text(item) for item in value))]]
    return [[f"--{flag}", shlex.quote(_text(value))]]


def _text(value: Any) -> str:
    """Return a value as the text that its flag accepts. None, as an item of a list, becomes `default`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    return "default" if value is None else str(value)


def python_call(
    function: str, model: str | Sequence[str], options: Mapping[str, Any], *, package: str = "capacity"
) -> str:
    """Return a Python program that calls `capacity.FUNCTION("MODEL", ...)` with the options as keywords."""
    arguments = [repr(model), *(f"{name}={value!r}" for name, value in options.items() if value is not None)]
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"import {package}\n\nanswer = {package}.{function.replace('-', '_')}(\n{lines})\n"
