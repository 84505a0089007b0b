"""Distributions of prompt and output lengths: whole numbers of tokens, at least one."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.columns import MAX_REQUEST_TOKENS, FloatArray, IntArray, token_column

MAX_SCALINGS = 100  # of a sample to its mean
MEAN_TOLERANCE = 1e-4


class Lengths(Protocol):
    """Interface of length distributions."""

    @property
    def mean_tokens(self) -> float:
        """Return the mean of the distribution in tokens, before rounding and clipping to the limits."""
        ...

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Return `count` independent random lengths."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLengths:
    """The same length for all requests."""

    tokens: int

    def __post_init__(self) -> None:
        token_column("length", [self.tokens])

    @property
    def mean_tokens(self) -> float:
        return float(self.tokens)

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:  # noqa: ARG002 - the protocol's
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class UniformLengths:
    """Uniform lengths from floor(L(1 - r)) to ceil(L(1 + r)), as with `vllm bench serve --random-range-ratio r`.

    Both limits are included; the minimum is one token. Source: vLLM 0.33.0, benchmarks/datasets, RandomDataset.
    """

    tokens: int
    range_ratio: float

    def __post_init__(self) -> None:
        token_column("length", [self.tokens])
        if not 0 <= self.range_ratio < 1:
            raise InvalidInput(f"the range ratio must be at least 0 and below 1, not {self.range_ratio}")
        token_column("longest length", [self.highest_tokens])

    @property
    def lowest_tokens(self) -> int:
        return max(1, math.floor(self.tokens * (1 - self.range_ratio)))

    @property
    def highest_tokens(self) -> int:
        return math.ceil(self.tokens * (1 + self.range_ratio))

    @property
    def mean_tokens(self) -> float:
        return (self.lowest_tokens + self.highest_tokens) / 2

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        return rng.integers(self.lowest_tokens, self.highest_tokens, count, endpoint=True)


@dataclass(frozen=True, slots=True)
class _DispersedLengths:
    """Base class of lengths with a mean and a coefficient of variation `cv`, within limits."""

    mean_tokens: float
    cv: float
    lowest_tokens: int = 1
    highest_tokens: int = MAX_REQUEST_TOKENS

    def __post_init__(self) -> None:
        if not 0 < self.mean_tokens <= MAX_REQUEST_TOKENS:
            raise InvalidInput(
                f"the mean length must be above 0 and at most {MAX_REQUEST_TOKENS} tokens, not {self.mean_tokens}"
            )
        if not 0 <= self.cv < math.inf:
            raise InvalidInput(f"the coefficient of variation must be finite and at least 0, not {self.cv}")
        if not 1 <= self.lowest_tokens <= self.highest_tokens <= MAX_REQUEST_TOKENS:
            raise InvalidInput(
                f"lengths must run from at least 1 to at most {MAX_REQUEST_TOKENS} tokens, "
                f"not from {self.lowest_tokens} to {self.highest_tokens}"
            )

    def round_lengths(self, drawn: FloatArray) -> IntArray:
        """Return the drawn lengths, rounded to whole tokens and clipped to the limits."""
        return np.clip(np.rint(drawn), self.lowest_tokens, self.highest_tokens).astype(np.int64)


@dataclass(frozen=True, slots=True)
class LognormalLengths(_DispersedLengths):
    """Lognormal lengths with this mean and coefficient of variation, rounded and clipped to the limits.

    `exact_mean`: whether the drawn lengths are scaled so that their mean after clipping is exact.
    """

    exact_mean: bool = False

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        variance = math.log1p(self.cv * self.cv)
        drawn = rng.lognormal(math.log(self.mean_tokens) - variance / 2, math.sqrt(variance), count)
        if self.exact_mean and count:
            for _ in range(MAX_SCALINGS):
                factor = self.mean_tokens / np.clip(drawn, self.lowest_tokens, self.highest_tokens).mean()
                drawn *= factor
                if abs(factor - 1) < MEAN_TOLERANCE:
                    break
        return self.round_lengths(drawn)


@dataclass(frozen=True, slots=True)
class GammaLengths(_DispersedLengths):
    """Gamma lengths with this mean and coefficient of variation, rounded and clipped to the limits."""

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        if self.cv == 0:
            return self.round_lengths(np.full(count, self.mean_tokens))
        shape = 1 / (self.cv * self.cv)
        return self.round_lengths(rng.gamma(shape, self.mean_tokens / shape, count))


def rank_correlated(
    first: IntArray, second: IntArray, *, rank_correlation: float, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Return both columns reordered so that they have this rank (Spearman) correlation, up to sampling error.

    The order is drawn from a Gaussian copula (Iman and Conover, 1982), so both columns keep exactly their values. The
    normal correlation is 2·sin(pi·rho/6).
    """
    if not -1 <= rank_correlation <= 1:
        raise InvalidInput(f"the rank correlation must be from -1 to 1, not {rank_correlation}")
    if rank_correlation == 0:
        return first, second
    normal_correlation = 2 * math.sin(math.pi * rank_correlation / 6)
    shared = rng.standard_normal(len(first))
    own = rng.standard_normal(len(first))
    other = normal_correlation * shared + math.sqrt(max(0.0, 1 - normal_correlation**2)) * own
    return np.sort(first)[_ranks(shared)], np.sort(second)[_ranks(other)]


def _ranks(values: FloatArray) -> IntArray:
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks
