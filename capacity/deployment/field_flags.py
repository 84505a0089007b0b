"""How a field of a spec is written on a command line and when it is read: spellings, what it needs."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, Field
from pydantic.fields import FieldInfo

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


def flag(
    default: Any,
    help_text: str,
    *aliases: str,
    read_by: Part | None = None,
    needs: tuple[Need, ...] | Need | None = None,
    **limits: Any,
) -> Any:
    """A field that is also a command-line flag; `aliases` are further spellings of it.

    `read_by`: the part of the product that reads it, None: all of it. `needs`: it means nothing without one of these.
    """
    field = Field(default, description=help_text, json_schema_extra={"flags": list(aliases)}, **limits)
    needed = (needs,) if isinstance(needs, Need) else needs or ()
    field.metadata.append(_Reading(read_by, needed))
    return field


def part_of(field: FieldInfo) -> Part | None:
    """The part of the product that reads a field; None: all of it."""
    return next((entry.part for entry in field.metadata if isinstance(entry, _Reading)), None)


def needs_of(field: FieldInfo) -> tuple[Need, ...]:
    """What a field means nothing without, one of them; empty: it means something alone."""
    return next((entry.needs for entry in field.metadata if isinstance(entry, _Reading)), ())
