"""A term: its name, its definition, and a sentence that shows it with the numbers of the user's pool."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar

from capacity.answers.records import Estimate, Quantity
from capacity.base.data_files import Table, read_data
from capacity.base.errors import InvalidInput
from capacity.base.record import AnswerRecord
from capacity.pool.resolve import ResolvedPool

GIB = 2**30
UNITS = {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": GIB,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "ms": 1e-3,
    "kWh_per_million": 3.6,
}
"""Units by which a sentence may divide a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A user's deployment and its estimate, whose numbers fill the example sentences of terms."""

    pool: ResolvedPool
    estimate: Estimate

    @property
    def requests_in_flight(self) -> int:
        return round(self.estimate.requests_in_flight or 1)

    @property
    def tokens(self) -> int:
        return self.estimate.input_len + self.estimate.output_len

    @property
    def held(self) -> int:
        """Return how many requests of full length (prompt and output) the KV cache holds."""
        return self.pool.concurrent_requests(self.tokens)

    @property
    def held_at_first(self) -> int:
        """Return how many requests the KV cache holds when they have only their prompts."""
        return self.pool.concurrent_requests(max(self.estimate.input_len, 1))

    @property
    def request_kv_bytes(self) -> float:
        """Return the KV bytes of a request at its end."""
        return self.estimate.kv_bytes_per_token * self.tokens

    @property
    def state_bytes(self) -> float:
        """Return the bytes of recurrent state of a request, which do not depend on its length."""
        return self.pool.model.state_bytes_per_sequence()

    @property
    def ttft_s(self) -> float:
        """Return the time to first token (s). Raises InvalidInput without a steady state."""
        return self._steady(self.estimate.ttft_s)

    @property
    def e2e_s(self) -> float:
        """Return the latency of a whole request (s). Raises InvalidInput without a steady state."""
        return self._steady(self.estimate.e2e_s)

    def _steady(self, latency: Quantity | None) -> float:
        if latency is None:
            raise InvalidInput(f"no steady state: {self.estimate.verdict_reason}; reduce the load")
        return latency.value


@cache
def sentences() -> Table:
    """Return example sentences by the function in `numbers` that computes their values. Raises MalformedFile."""
    return read_data(Path(__file__).with_name("sentences.toml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A term with its definition. `sentence` is a template that `Sentence` fills with the numbers of a situation.

    Without `sentence`, `numbers` is the name of a sentence in `sentences.toml` and of the function in the module
    `numbers` that computes its values. `preset` is an argument of this function: a quantization or draft method.
    """

    name: str
    definition: str
    sentence: str = ""
    numbers: str = ""
    aliases: tuple[str, ...] = ()
    preset: str | None = None

    def describe(self, situation: Situation) -> str:
        if self.sentence:
            return Sentence(situation, {}).format(self.sentence)
        from capacity.techniques.glossary import numbers  # loads the techniques

        method = () if self.preset is None else (self.preset,)
        found = getattr(numbers, self.numbers)(situation, *method)
        return (
            found if isinstance(found, str) else Sentence(situation, found).format(sentences()[self.numbers])
        )


class Sentence(Formatter):
    """Formatter of placeholders `{value:format}`, `{value / value:format}` and `{value / unit:format}`. Values are
    attributes of a situation, or items of `numbers`."""

    def __init__(self, situation: Situation, numbers: Mapping[str, Any]) -> None:
        self.situation = situation
        self.numbers = numbers

    def get_field(self, field_name: str, _args: Any, _kwargs: Any) -> tuple[Any, str]:
        """Return the value of a placeholder, as `string.Formatter` requires."""
        number, _, divisor = field_name.partition(" / ")
        value = self._value(number)
        if divisor:
            value /= UNITS[divisor] if divisor in UNITS else self._value(divisor)
        return value, field_name

    def _value(self, path: str) -> Any:
        first, _, rest = path.partition(".")
        if first not in self.numbers:
            return attrgetter(path)(self.situation)
        return attrgetter(rest)(self.numbers[first]) if rest else self.numbers[first]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition(AnswerRecord):
    """The definition of a term; `yours` is the sentence with the user's numbers, or None if no pool was given."""

    SCHEMA: ClassVar[str] = "capacity/definition/v1"

    term: str
    definition: str
    yours: str | None
