"""Keywords and flags of functions, derived from the fields of specs such as Pool and Traffic."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic.fields import FieldInfo

from capacity.base.errors import InvalidInput
from capacity.base.spec import Spec

Function = TypeVar("Function", bound=Callable[..., Any])


def fields_of(*specs: type[Spec]) -> dict[str, FieldInfo]:
    """Return all fields of the specs by name, in the order of the specs."""
    return {name: field for spec in specs for name, field in spec.model_fields.items()}


def flags_of(field: FieldInfo) -> list[str]:
    """Return the additional command-line names of a field, which is also a flag under its own name."""
    extra = field.json_schema_extra
    flags = extra.get("flags", []) if isinstance(extra, dict) else []
    return [str(flag) for flag in flags] if isinstance(flags, list) else []


def split(options: Mapping[str, object], *specs: type[Spec]) -> tuple[dict[str, object], ...]:
    """Return the options that are fields of each spec, as one mapping for each spec.

    Raises InvalidInput, with the most similar option, for an option that is a field of no spec.
    """
    known = fields_of(*specs)
    for name in options:
        if name not in known:
            raise unknown_option(name, known)
    return tuple({n: v for n, v in options.items() if n in spec.model_fields} for spec in specs)


def unknown_option(name: str, known: Iterable[str]) -> InvalidInput:
    """Return the error for an unknown option, which names the most similar option, else the first 12 options."""
    options = list(known)
    close = difflib.get_close_matches(name, options, n=1)
    others = f" and {len(options) - 12} others" if len(options) > 12 else ""
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(options[:12])}{others}"
    return InvalidInput(f"unknown option {name!r}; {hint}")


def document_options(*specs: type[Spec]) -> Callable[[Function], Function]:
    """Return a decorator that shows the specs' fields as keywords of a `**options` function in `help()` and editors.

    It also sets the function's attribute `specs`, which the command line reads.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.is_required() else field.default,
                annotation=field.annotation,
            )
            for name, field in fields_of(*specs).items()
            if name not in signature.parameters
        ]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        function.specs = specs  # type: ignore[attr-defined]
        return function

    return decorate
