"""Build specs such as `Pool` from fields, and report validation errors in one line: field, value, limit."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar, get_args

from pydantic import ValidationError

from capacity.base.errors import InvalidInput
from capacity.base.spec import Spec

LONGEST_VALUE = 60  # characters of an invalid value in a message
_NUMBERS = {  # messages that replace those of pydantic
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
}

# pydantic's names of union members
_VARIANT = re.compile(r"function-|constrained-|literal\[|int$|str$|dict\[")

SpecT = TypeVar("SpecT", bound=Spec)


def build(spec: type[SpecT], fields: Mapping[str, object], *, flags: bool = False) -> SpecT:
    """Build `spec(**fields)`. Raises InvalidInput with a one-line message: the field, its value and its limit.

    `flags`: the message names fields as on the command line (`--max-num-seqs`).
    """
    try:
        return spec(**fields)
    except ValidationError as error:
        raise InvalidInput(explain(error, spec, flags=flags)) from None


def explain(error: ValidationError, spec: type[Spec], *, flags: bool = False) -> str:
    """Return the first validation error in one line: field, value and problem."""
    first = error.errors()[0]
    where = [part for part in first["loc"] if not (isinstance(part, str) and _VARIANT.match(part))]
    name = ".".join(str(part) for part in where) or spec.__name__
    shown = f"--{name.replace('_', '-')}" if flags else name
    if first["type"] == "extra_forbidden":
        known = _field_names(spec, where[:-1])
        close = difflib.get_close_matches(str(where[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        return f"unknown field {shown!r}; {hint}"
    if first["type"] == "missing":
        return f"{shown} is missing"
    if not where:  # validates several fields together
        return first["msg"].replace("Value error, ", "")
    given = first["input"]
    value = given if flags and isinstance(given, str) and given.strip() else repr(given)
    value = value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 3] + "..."
    message = _NUMBERS.get(first["type"], first["msg"])
    message = message.replace("Input should be", "must be").replace("Value error, ", "")
    return f"{shown} is {value}: {message[0].lower()}{message[1:]}"


def _field_names(spec: type[Spec], where: Iterable[int | str]) -> list[str]:
    """Return the user's spelling of each field of `spec`, or of its nested spec at the path `where`."""
    for part in where:
        if isinstance(part, str) and part in spec.model_fields:
            annotation = spec.model_fields[part].annotation
            nested = (annotation, *get_args(annotation))
            spec = next((kind for kind in nested if isinstance(kind, type) and issubclass(kind, Spec)), spec)
    return [field.alias or name for name, field in spec.model_fields.items()]
