"""Specs whose fields are also flags; `flags.json` in the same folder has help, spellings, limits and requirements."""

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
    """Requirement that `field` has one of `values`; without `values`, that it is not at its default.

    `finite`: an infinite value does not meet the requirement.
    """

    field: str
    values: tuple[object, ...] = ()
    finite: bool = False

    @property
    def words(self) -> str:
        """Return the requirement as command-line text, such as `--arrivals ramp`."""
        return f"--{self.field.replace('_', '-')}" + (
            f" {' or '.join(map(str, self.values))}" if self.values else ""
        )


@dataclass(frozen=True, slots=True)
class _FieldReading:
    """Metadata of a spec's field: the computation that uses the field, and requirements on other fields."""

    part: Part | None
    needs: tuple[Need, ...]


class FlagSpec(Spec):
    """A spec whose fields are also command-line flags; each has a row in `flags.json` in the module's folder.

    Keys of a row: `help`: help text of the flag. `flags`: additional spellings. `read_by`: computation that uses the
    field, such as the memory plan, the step times or the price; if absent, all computations use it. `needs`:
    requirements on other fields; the field has an effect only if at least one is met. Other keys are limits of the
    value.
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
    """Store a row of `flags.json` in the metadata of its field."""
    field.description = help or field.description
    field.json_schema_extra = {"flags": list(flags)}
    needed = (
        Need(name, finite=True) if values == "finite" else Need(name, values)
        for name, values in (needs or {}).items()
    )
    limited: FieldInfo = Field(**limits)
    field.metadata = [*limited.metadata, _FieldReading(read_by, tuple(needed)), *field.metadata]


def flag(default: Any, help: str, **row: Any) -> Any:
    """Declare a field that has no row in `flags.json`; the arguments are the keys of a row."""
    field: FieldInfo = Field(default=default)
    _describe(field, help, **row)
    return field


def reading_part(field: FieldInfo) -> Part | None:
    """Return the computation that uses a field, such as `memory`, `steps`, `schedule` or `price`; None: all of them."""
    return next((entry.part for entry in field.metadata if isinstance(entry, _FieldReading)), None)


def field_needs(field: FieldInfo) -> tuple[Need, ...]:
    """Return the requirements of a field; it has an effect if at least one is met, or if there are none."""
    return next((entry.needs for entry in field.metadata if isinstance(entry, _FieldReading)), ())
