"""What batches waste by lengths alone: order statistics by hand, the harmonic number, KV that stays empty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.techniques.batch_waste import (
    contiguous_kv_waste,
    expected_longest,
    exponential_slot_gain,
    gamma_lengths,
    paged_kv_waste,
    slot_gain,
    static_slot_waste,
)

LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=30).map(np.asarray)


def test_the_longest_of_two_dice_by_hand() -> None:
    """The larger of two dice has mean 161/36 = 4.47; a static batch of two then wastes 1 - 3.5/4.47 = 22 %."""
    die = np.arange(1, 7)
    assert expected_longest(die, 2) == pytest.approx(161 / 36)
    assert expected_longest(die, 1) == 3.5
    assert static_slot_waste(die, 2) == pytest.approx(1 - 3.5 * 36 / 161)
    assert slot_gain(die, 2) == pytest.approx(161 / 36 / 3.5)


def test_exponential_lengths_give_the_harmonic_number() -> None:
    """H(8) = 2.718, H(32) = 4.058: where the folklore's 2 to 5 times comes from, and where it does not hold."""
    assert exponential_slot_gain(2) == 1.5
    assert exponential_slot_gain(8) == pytest.approx(2.717857, abs=1e-6)
    drawn = np.random.default_rng(1).exponential(1000.0, 200_000)
    assert slot_gain(drawn, 8) == pytest.approx(exponential_slot_gain(8), rel=0.01)
    assert slot_gain(np.full(50, 200), 32) == 1


@given(LENGTHS, st.integers(1, 64))
def test_the_longest_grows_with_the_batch_and_never_beyond_the_longest(
    lengths: np.ndarray, batch: int
) -> None:
    longest = expected_longest(lengths, batch)
    assert lengths.mean() - 1e-6 <= longest <= lengths.max() + 1e-6
    assert longest <= expected_longest(lengths, batch + 1) + 1e-9
    assert 0 <= static_slot_waste(lengths, batch) + 1e-9 < 1


def test_kv_waste_by_hand() -> None:
    """Requests of 100 and 300 tokens: of 2 x 1000 reserved 80 % stay empty; in blocks of 16, 112 + 304 hold 400."""
    tokens = np.asarray([100, 300])
    assert contiguous_kv_waste(tokens, 1000) == pytest.approx(0.8)
    assert paged_kv_waste(tokens, 16) == pytest.approx(1 - 400 / 416)
    assert paged_kv_waste(tokens, 1) == 0


def test_gamma_lengths_have_the_mean_and_spread_they_say() -> None:
    for spread in (0.25, 0.5, 1.0):
        lengths = gamma_lengths(1000, spread, 4096)
        assert lengths.mean() == pytest.approx(1000, rel=0.01)
        assert lengths.std() / lengths.mean() == pytest.approx(spread, rel=0.03)
    assert set(gamma_lengths(100, 0, 8)) == {100}
    for mean, spread in ((0.5, 1.0), (100, -1.0), (float("nan"), 1.0)):
        with pytest.raises(InvalidInput, match="variation"):
            gamma_lengths(mean, spread, 8)


def test_bad_questions_are_refused_in_one_line() -> None:
    with pytest.raises(InvalidInput):
        expected_longest(np.asarray([]), 2)
    with pytest.raises(InvalidInput):
        expected_longest(np.asarray([1]), 0)
    with pytest.raises(InvalidInput):
        exponential_slot_gain(0)
    with pytest.raises(InvalidInput):
        contiguous_kv_waste(np.asarray([10]), 5)
    with pytest.raises(InvalidInput):
        paged_kv_waste(np.asarray([10]), 0)
