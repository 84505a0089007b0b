"""Selection of entries of a mapping by key."""

from collections.abc import Container, Mapping
from typing import TypeVar

Value = TypeVar("Value")


def select(values: Mapping[str, Value], names: Container[str]) -> dict[str, Value]:
    """Return the entries of `values` whose keys are in `names`, in the order of `values`."""
    return {name: value for name, value in values.items() if name in names}


def omit(values: Mapping[str, Value], *names: str) -> dict[str, Value]:
    """Return the entries of `values` whose keys are not in `names`."""
    return {name: value for name, value in values.items() if name not in names}
