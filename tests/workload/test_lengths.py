"""Lengths against the moments, ends and percentiles they were given."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from small_workloads import MANY, check_refused, cv

from capacity.base.errors import InvalidInput
from capacity.workload import (
    FixedLengths,
    GammaLengths,
    Lengths,
    LognormalLengths,
    UniformLengths,
    random_stream,
    rank_correlated,
)


@pytest.mark.parametrize(
    "lengths",
    [
        LognormalLengths(1000.0, 1.2),
        GammaLengths(1000.0, 0.7),
        GammaLengths(1000.0, 0.0),
        UniformLengths(1000, 0.3),
    ],
)
def test_lengths_have_the_mean_and_variation_asked_for(lengths: Lengths) -> None:
    drawn = lengths.draw(MANY, random_stream(1, "lengths"))
    expected_cv = getattr(lengths, "cv", 0.3 / math.sqrt(3))
    assert drawn.mean() == pytest.approx(lengths.mean_tokens, rel=5 * expected_cv / math.sqrt(MANY) + 1e-9)
    # a lognormal of cv 1.2 has a kurtosis of 60: its variance estimate is that much noisier
    assert cv(drawn) == pytest.approx(expected_cv, rel=0.05, abs=1e-9)
    assert drawn.min() >= 1


def test_uniform_has_vllms_ends() -> None:
    lengths = UniformLengths(1000, 0.1234)
    drawn = lengths.draw(MANY, random_stream(0, "lengths"))
    assert (drawn.min(), drawn.max()) == (math.floor(1000 * (1 - 0.1234)), math.ceil(1000 * (1 + 0.1234)))
    assert UniformLengths(1, 0.9).lowest_tokens == 1


def test_lengths_are_clipped_to_their_bounds() -> None:
    drawn = LognormalLengths(100.0, 2.0, lowest_tokens=50, highest_tokens=200).draw(
        10_000, random_stream(0, "lengths")
    )
    assert (drawn.min(), drawn.max()) == (50, 200)


@pytest.mark.parametrize("rho", [-1.0, -0.6, 0.0, 0.35, 0.9, 1.0])
def test_rank_correlation_is_what_was_asked_and_marginals_stay(rho: float) -> None:
    rng = random_stream(5, "lengths")
    first, second = LognormalLengths(5000.0, 1.0).draw(MANY, rng), GammaLengths(3000.0, 2.0).draw(MANY, rng)
    one, two = rank_correlated(first, second, rank_correlation=rho, rng=random_stream(5, "correlation"))
    assert (np.sort(one) == np.sort(first)).all()
    assert (np.sort(two) == np.sort(second)).all()
    ranks = [np.argsort(np.argsort(column)) for column in (one, two)]
    # Spearman's standard error is at most 1/sqrt(n); ties of whole tokens move it by less
    assert np.corrcoef(*ranks)[0, 1] == pytest.approx(rho, abs=5 / math.sqrt(MANY) + 2e-3)


def test_rank_correlation_beyond_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="from -1 to 1"):
        rank_correlated(
            np.ones(2, int), np.ones(2, int), rank_correlation=1.1, rng=random_stream(0, "correlation")
        )


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: FixedLengths(0), "is below 1"),
        (lambda: UniformLengths(100, 1.0), "below 1, not 1.0"),
        (lambda: UniformLengths(100, -0.1), "at least 0"),
        (lambda: LognormalLengths(math.nan, 1.0), "mean length"),
        (lambda: LognormalLengths(100.0, -1.0), "coefficient of variation"),
        (lambda: GammaLengths(100.0, 1.0, lowest_tokens=9, highest_tokens=8), "not from 9 to 8"),
    ],
)
def test_impossible_parameters_are_refused_in_one_line(build: Callable[[], object], part: str) -> None:
    check_refused(build, part)


@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize(("mean", "highest"), [(1000, 1500), (1000, 3000), (40, 1000), (1, 50), (700, 700)])
def test_lognormal_sample_has_the_exact_mean_within_its_limits(mean: int, highest: int, count: int) -> None:
    lengths = LognormalLengths(mean, 0.96, highest_tokens=highest, exact_mean=True)
    drawn = lengths.draw(count, np.random.default_rng(7))
    assert drawn.min() >= 1
    assert drawn.max() <= highest
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
