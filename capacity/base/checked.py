"""Public functions refuse, in one line, a value of another kind than their signature says.

The words of the annotation are what is checked, so that nothing is imported for it: `Sequence[str] | None` is a
sequence, of texts, or nothing; a class of this package is known by its name.
"""

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from capacity.base.errors import InvalidInput

Function = TypeVar("Function", bound=Callable[..., Any])
Check = Callable[[object], bool]


def checked(function: Function) -> Function:
    """Raise InvalidInput for arguments that are missing, unknown, or of a kind that the annotations do not name."""
    raw = signature(function)
    words = {
        name: str(parameter.annotation)
        for name, parameter in raw.parameters.items()
        if parameter.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    }

    @wraps(function)
    def call(*positional: Any, **keywords: Any) -> Any:
        try:
            given = raw.bind(*positional, **keywords).arguments
        except TypeError as error:
            raise InvalidInput(f"{function.__name__}: {error}") from None
        for name, value in given.items():
            if name in words:
                _check(name, value, _plain(words[name], function))
        return function(*positional, **keywords)

    return call  # type: ignore[return-value]


def _check(name: str, value: object, expected: str) -> None:
    if isinstance(value, float) and math.isnan(value):
        raise InvalidInput(f"{name} is nan: a number is needed")
    if not _accepts(expected)(value):
        raise InvalidInput(f"{name} is {_shown(value)}: it must be {_said(expected)}")


def _plain(annotation: str, function: Callable[..., Any]) -> str:
    """The annotation with the names of aliases replaced by what they stand for."""
    node = ast.parse(annotation, mode="eval").body
    if isinstance(node, ast.Name):
        alias = getattr(function, "__globals__", {}).get(node.id)
        if get_origin(alias) is Annotated:
            alias = get_args(alias)[0]
            return alias.__name__ if isinstance(alias, type) else str(alias)
        if alias is not None and not isinstance(alias, type):
            return str(alias)
    return annotation


@lru_cache(maxsize=256)
def _accepts(annotation: str) -> Check:
    checks = [_of(node) for node in _alternatives(ast.parse(annotation, mode="eval").body)]
    return lambda value: any(check(value) for check in checks)


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _alternatives(node.left)
        yield from _alternatives(node.right)
    elif isinstance(node, ast.Subscript) and _name(node.value) in ("Annotated", "Optional"):
        yield from _alternatives(node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice)
    else:
        yield node


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _of(node: ast.expr) -> Check:
    if isinstance(node, ast.Constant):  # None, or a quoted name
        return _is_none if node.value is None else _accepts(str(node.value))
    if isinstance(node, ast.Subscript):
        if _name(node.value) == "Callable":
            return callable
        if _name(node.value) == "Mapping":
            return lambda value: isinstance(value, Mapping)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if _name(node.value) == "tuple":
            return _tuple_of([_one_of(each) for each in inner])
        return _sequence_of(_one_of(inner[0]))
    return _KINDS.get(_name(node)) or _called(_name(node))


def _one_of(node: ast.expr) -> Check:
    checks = [_of(each) for each in _alternatives(node)]
    return lambda value: any(check(value) for check in checks)


def _sequence_of(check: Check) -> Check:
    def accepts(value: object) -> bool:
        return (
            isinstance(value, Iterable)
            and hasattr(value, "__len__")
            and not isinstance(value, str | bytes | dict)
            and all(check(each) for each in value)
        )

    return accepts


def _tuple_of(checks: list[Check]) -> Check:
    def accepts(value: object) -> bool:
        return (
            isinstance(value, tuple)
            and len(value) == len(checks)
            and all(check(each) for check, each in zip(checks, value, strict=True))
        )

    return accepts


def _called(name: str) -> Check:
    """A class of this package, known by its name."""
    return lambda value: any(kind.__name__ == name for kind in type(value).__mro__)


def _is_none(value: object) -> bool:
    return value is None


_KINDS: dict[str, Check] = {
    "str": lambda value: isinstance(value, str) and "\0" not in value,
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: (
        isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) < 1 << 62
    ),
    "float": lambda value: isinstance(value, Real) and not isinstance(value, bool),
    "Path": lambda value: isinstance(value, Path),
    "Progress": callable,
    "StepObserver": callable,
    "Any": lambda _: True,
    "object": lambda _: True,
}
_SAID = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "Path": "a path",
}


def _said(annotation: str) -> str:
    """The kinds in words."""
    words = []
    for node in _alternatives(ast.parse(annotation, mode="eval").body):
        if isinstance(node, ast.Subscript) and _name(node.value) != "Callable":
            words.append(f"a sequence ({ast.unparse(node)})")
        else:
            text = ast.unparse(node)
            words.append(_SAID.get(text, text))
    return " or ".join(words)


def _shown(value: object) -> str:
    text = (
        ascii(value) if isinstance(value, str | int | float | bytes | None) else f"a {type(value).__name__}"
    )
    return text if len(text) <= 60 else f"{text[:56]}..."
