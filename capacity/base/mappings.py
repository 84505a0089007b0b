"""Parts of a mapping by names."""

from collections.abc import Container, Mapping
from typing import TypeVar

Value = TypeVar("Value")


def select(values: Mapping[str, Value], names: Container[str]) -> dict[str, Value]:
    """Return the values of these names that are there, in their order."""
    return {name: value for name, value in values.items() if name in names}


def omit(values: Mapping[str, Value], *names: str) -> dict[str, Value]:
    """Return all values but those of these names."""
    return {name: value for name, value in values.items() if name not in names}
