"""What is not lossless: its distance from the target by hand, and what it gains."""

from __future__ import annotations

import random

import pytest

from capacity.base.errors import InvalidInput
from capacity.pool.drafting.lossy import early_exit_share, threshold_acceptance

TARGET, DRAFT = (0.6, 0.3, 0.1), (0.3, 0.6, 0.1)


def test_a_threshold_accepts_more_and_leans_to_the_draft() -> None:
    """At 0.2 the first two are taken: 0.9; out come 0.36, 0.63, 0.01. Rejection sampling: 0.3 + 0.3 + 0.1."""
    found = threshold_acceptance(TARGET, DRAFT, 0.2)
    assert found.acceptance_rate == pytest.approx(0.9)
    assert found.lossless_rate == pytest.approx(0.7)
    assert found.distance == pytest.approx((0.24 + 0.33 + 0.09) / 2)


def test_the_extremes_are_the_draft_and_the_target() -> None:
    every, none = (threshold_acceptance(TARGET, DRAFT, at) for at in (0.0, 1.0))
    assert (every.acceptance_rate, every.distance) == (pytest.approx(1.0), pytest.approx(0.3))
    assert (none.acceptance_rate, none.distance) == (0.0, pytest.approx(0.0))


def test_drawn_tokens_are_as_far_off_as_the_sum_says() -> None:
    """40,000 tokens by the rule: shares within four standard deviations, 0.01."""
    rng, counts = random.Random(3), [0, 0, 0]
    for _ in range(40_000):
        (drawn,) = rng.choices(range(3), DRAFT)
        if TARGET[drawn] < 0.2:
            (drawn,) = rng.choices(range(3), TARGET)
        counts[drawn] += 1
    distance = sum(abs(count / 40_000 - p) for count, p in zip(counts, TARGET, strict=True)) / 2
    assert threshold_acceptance(TARGET, DRAFT, 0.2).distance == pytest.approx(distance, abs=0.01)


def test_a_batch_runs_on_while_any_of_its_rows_does() -> None:
    """A third of the layers with 0.8: 0.467 alone, and next to nothing saved by 16 together."""
    assert early_exit_share(1 / 3, 0.8, 1) == pytest.approx(0.8 / 3 + 0.2)
    assert early_exit_share(1 / 3, 0.8, 16) == pytest.approx(1 - 0.8**16 * 2 / 3)
    assert early_exit_share(1 / 3, 1.0, 64) == pytest.approx(1 / 3)


def test_what_are_no_probabilities_is_refused() -> None:
    for target, draft, threshold in (
        ((0.5, 0.6), (0.5, 0.5), 0.1),
        ((1.0,), (0.5, 0.5), 0.1),
        (TARGET, DRAFT, 2.0),
    ):
        with pytest.raises(InvalidInput):
            threshold_acceptance(target, draft, threshold)
    with pytest.raises(InvalidInput, match="batch"):
        early_exit_share(0.5, 0.5, 0)
