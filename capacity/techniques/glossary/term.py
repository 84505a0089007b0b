"""What a term is: a word of the field, its definition, and the sentence that a situation makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from capacity.base.errors import InvalidInput
from capacity.base.record import AnswerRecord

if TYPE_CHECKING:
    from capacity.answers.records import Estimate, Quantity
    from capacity.pool.resolve import ResolvedPool

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A pool and its estimate: where the numbers come from."""

    pool: ResolvedPool
    estimate: Estimate

    @property
    def requests_in_flight(self) -> int:
        """Requests at a time."""
        return round(self.estimate.requests_in_flight or 1)

    @property
    def ttft_s(self) -> float:
        """Of its first token. Raises InvalidInput without a steady state."""
        return self._steady(self.estimate.ttft_s)

    @property
    def e2e_s(self) -> float:
        """Of a whole request. Raises InvalidInput without a steady state."""
        return self._steady(self.estimate.e2e_s)

    def _steady(self, latency: Quantity | None) -> float:
        if latency is None:
            raise InvalidInput(f"no steady state: {self.estimate.verdict_reason}; ask for less")
        return latency.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word and its meaning; `numbers` names the function that describes a situation, `preset` what to describe."""

    name: str
    definition: str
    numbers: str
    aliases: tuple[str, ...] = ()
    preset: str | None = None

    def sentence(self, situation: Situation) -> str:
        """What it is in this situation."""
        module, _, function = self.numbers.partition(".")
        numbers = getattr(import_module(f"{__package__}.{module}"), function)
        sentence: str = numbers(situation) if self.preset is None else numbers(situation, self.preset)
        return sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition(AnswerRecord):
    """The answer: `yours` is None where no pool was given."""

    SCHEMA: ClassVar[str] = "capacity/definition/v1"

    term: str
    definition: str
    yours: str | None


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
