"""What a term is: a word of the field, its definition, and the sentence that a situation makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from capacity.answers.records import Estimate
    from capacity.pool.resolve import ResolvedPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A pool and its estimate: where the numbers come from."""

    pool: ResolvedPool
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word, what it means, and the sentence that a situation makes of it."""

    name: str
    definition: str
    numbers: Callable[[Situation], str]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The answer: `yours` is None where no pool was given."""

    SCHEMA: ClassVar[str] = "capacity/definition/v1"

    term: str
    definition: str
    yours: str | None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, `schema` first."""
        return {
            "schema": self.SCHEMA,
            "term": self.term,
            "definition": self.definition,
            "yours": self.yours,
        }
