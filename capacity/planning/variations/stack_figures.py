"""What one deployment of a stack does with the requests, and how many times better another does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from capacity.answers.records import Quantity
from capacity.step import Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """How many times better something became: more tokens per second, sooner first and next tokens, cheaper tokens.

    `tpot` is None for single output tokens, `usd` without a price.
    """

    throughput: float
    ttft: float
    tpot: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One deployment on the requests: means of what clients see, and tokens per second at full load.

    Of a closed loop that is the loop's own rate, of arrivals that of the same requests all at once. `overloaded`: they
    came faster than it served, so that its time to first token grows with their number. `bound`: what took the largest
    part of the busy time, and its share.
    """

    output_tokens_per_s: Quantity
    ttft_s: Quantity
    tpot_s: Quantity | None
    usd_per_million_output_tokens: Quantity | None
    overloaded: bool
    mean_batch_size: float
    bound: Bound | None
    bound_fraction: float
    basis: str


def factors_between(before: Figures, after: Figures) -> Factors:
    """How many times better the second is."""

    def sooner(name: str) -> float | None:
        first, then = getattr(before, name), getattr(after, name)
        return None if first is None or then is None else first.value / then.value

    return Factors(
        throughput=after.output_tokens_per_s.value / before.output_tokens_per_s.value,
        ttft=sooner("ttft_s") or 1.0,
        tpot=sooner("tpot_s"),
        usd=sooner("usd_per_million_output_tokens"),
    )


def product_of(factors: Iterable[Factors]) -> Factors:
    """All of them, one upon the other, as if they multiplied."""
    each = list(factors)

    def of(name: str) -> float | None:
        values = [getattr(one, name) for one in each]
        return None if None in values else prod(values)

    return Factors(throughput=of("throughput") or 1.0, ttft=of("ttft") or 1.0, tpot=of("tpot"), usd=of("usd"))
