"""Specs whose fields are flags: help, spellings, limits and when a field is read stand in a file beside the spec."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, Field
from pydantic.fields import FieldInfo

from capacity.base.data_files import Table, read_data
from capacity.base.spec import Spec

FiniteOrInf = Annotated[float, AllowInfNan(True)]


Part = Literal[
    "memory",
    "limits",
    "steps",
    "schedule",
    "host_memory",
    "drafts",
    "rounds",
    "roles",
    "routes",
    "price",
    "rate",
]


@dataclass(frozen=True, slots=True)
class Need:
    """A field that another one means nothing without: not at its default (and `finite`), or one of `values`."""

    field: str
    values: tuple[object, ...] = ()
    finite: bool = False

    @property
    def words(self) -> str:
        """As the command line writes it."""
        return f"--{self.field.replace('_', '-')}" + (
            f" {' or '.join(map(str, self.values))}" if self.values else ""
        )


@dataclass(frozen=True, slots=True)
class _Reading:
    """When a field is read; in the field's metadata."""

    part: Part | None
    needs: tuple[Need, ...]


class FlagSpec(Spec):
    """A spec whose fields are flags of the command line too, with a row each in `flags.json` beside its module.

    `help` is what the flag says; `flags` are further spellings; `read_by` is the part of the product that reads the
    field, without one all of it; `needs` are fields, with the values that count, of which it means nothing without one;
    other keys are limits of its value.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        path = Path(str(sys.modules[cls.__module__].__file__)).with_name("flags.json")
        for name, row in _rows(path)[cls.__name__].items():
            _describe(cls.model_fields[name], **row)


@cache
def _rows(path: Path) -> Table:
    return read_data(path)


def _describe(
    field: FieldInfo,
    help: str | None = None,
    flags: Sequence[str] = (),
    read_by: Part | None = None,
    needs: Mapping[str, Any] | None = None,
    **limits: Any,
) -> None:
    """Put a row of the file into its field."""
    field.description = help or field.description
    field.json_schema_extra = {"flags": list(flags)}
    needed = (
        Need(name, finite=True) if values == "finite" else Need(name, values)
        for name, values in (needs or {}).items()
    )
    limited: FieldInfo = Field(**limits)
    field.metadata = [*limited.metadata, _Reading(read_by, tuple(needed)), *field.metadata]


def flag(default: Any, help: str, **row: Any) -> Any:
    """Declare a field with what a row of `flags.json` says, in place: a new flag then needs no row."""
    field: FieldInfo = Field(default=default)
    _describe(field, help, **row)
    return field


def part_of(field: FieldInfo) -> Part | None:
    """The part of the product that reads a field; None: all of it."""
    return next((entry.part for entry in field.metadata if isinstance(entry, _Reading)), None)


def needs_of(field: FieldInfo) -> tuple[Need, ...]:
    """What a field means nothing without, one of them; empty: it means something alone."""
    return next((entry.needs for entry in field.metadata if isinstance(entry, _Reading)), ())
