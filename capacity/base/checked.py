"""Validation of the arguments of public functions against their annotations, with one-line errors."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from capacity.base.errors import InvalidInput

Function = TypeVar("Function", bound=Callable[..., Any])

_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "True or False", Path: "a path"}
_MODULES = re.compile(r"\b(\w+\.)+(?=\w)")


def validate_arguments(function: Function) -> Function:
    """Return the function with a check that raises InvalidInput for missing, unknown or wrong arguments."""
    raw = signature(function)
    named = {
        name
        for name, parameter in raw.parameters.items()
        if parameter.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    }
    asked = SimpleNamespace(__annotations__={k: v for k, v in function.__annotations__.items() if k in named})
    hints = cache(lambda: get_type_hints(asked, function.__globals__))

    @wraps(function)
    def call(*positional: Any, **keywords: Any) -> Any:
        try:
            given = raw.bind(*positional, **keywords).arguments
        except TypeError as error:
            raise InvalidInput(f"{function.__name__}: {error}") from None
        for name, kind in hints().items():
            if name in given:
                _check(name, given[name], kind)
        return function(*positional, **keywords)

    return call  # type: ignore[return-value]


def _check(name: str, value: object, kind: Any) -> None:
    if isinstance(value, float) and math.isnan(value):
        raise InvalidInput(f"{name} is nan: it must be a number")
    if not _accepts(kind, value):
        expected = " or ".join(map(_describe_type, _alternatives(kind)))
        raise InvalidInput(f"{name} is {_short_repr(value)}: it must be {expected}")


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _accepts(kind: Any, value: object) -> bool:
    return any(_matches_type(each, value) for each in _alternatives(kind))


def _matches_type(kind: Any, value: object) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return True
    if origin is Callable or getattr(kind, "_is_protocol", False):
        return callable(value)
    if origin is Mapping:
        return isinstance(value, Mapping)
    if origin is type:
        return isinstance(value, type) and (
            getattr(inner[0], "_is_protocol", False) or issubclass(value, inner[0])
        )
    if origin is tuple and inner[-1] is not ...:
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_accepts, inner, value))
    if origin is not None:  # a sequence, also an array or a range
        return (
            isinstance(value, Iterable)
            and hasattr(value, "__len__")
            and not isinstance(value, str | bytes | dict)
            and all(_accepts(inner[0], each) for each in value)
        )
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) < 1 << 62
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is str and "\0" in str(value))


def _describe_type(kind: Any) -> str:
    if kind is NoneType:
        return "None"
    if get_origin(kind) is None:
        return _TYPE_NAMES.get(kind) or str(kind.__name__)
    if get_origin(kind) is type:
        return f"a class like {get_args(kind)[0].__name__}"
    text = _MODULES.sub("", str(kind))
    return text if get_origin(kind) is Callable else f"a sequence ({text})"


def _short_repr(value: object) -> str:
    text = (
        ascii(value) if isinstance(value, str | int | float | bytes | None) else f"a {type(value).__name__}"
    )
    return text if len(text) <= 60 else f"{text[:56]}..."
