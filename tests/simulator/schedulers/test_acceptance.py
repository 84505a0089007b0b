"""Classes of requests whose drafts go better or worse: the mean stays, and each request's own rates show."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.simulator.schedulers import DrawnSpeculation, Sequence
from capacity.simulator.schedulers.acceptance import NUM_CLASSES, rate_table

RATES = (0.9, 0.7, 0.5, 0.6)


def request(index: int) -> Sequence:
    return Sequence(index, id=index, arrival=0, prompt_tokens=1, max_known=9, priority=0, table=None)


def test_without_a_spread_there_is_one_class() -> None:
    assert rate_table(RATES, 0.0) == (RATES,)
    assert DrawnSpeculation(RATES, lookahead_slots=4).rate_table == (RATES,)


@given(
    rates=st.lists(st.floats(0, 1), min_size=1, max_size=6).map(tuple),
    spread=st.floats(0.01, 4),
)
def test_the_share_accepted_at_each_depth_stays(rates: tuple[float, ...], spread: float) -> None:
    table = np.array(rate_table(rates, spread))
    assert table.shape == (NUM_CLASSES, len(rates))
    assert ((table >= 0) & (table <= 1)).all()
    assert np.cumprod(table, axis=1).mean(axis=0) == pytest.approx(np.cumprod(rates), abs=1e-9)
    assert (np.diff(table, axis=0) >= 0).all()  # a better class is better at every depth


def test_the_spread_is_that_of_the_log_odds() -> None:
    for spread in (0.2, 1.0):
        odds = np.array([math.log(rate / (1 - rate)) for (rate,) in rate_table((0.7,), spread)])
        assert odds.std() == pytest.approx(spread)
    around = np.array(rate_table((0.7,), 0.5))
    assert around.std() == pytest.approx(0.10, abs=0.005)  # as the help says


def test_requests_are_of_all_classes_alike_and_keep_to_theirs() -> None:
    """4,800 requests: 300 a class ± 5 standard deviations; 500 verifications of one tell its first rate."""
    speculation = DrawnSpeculation(RATES, lookahead_slots=4, seed=5, spread=1.0)
    classes = [speculation.rate_table.index(speculation.request_rates(index)) for index in range(4800)]
    assert np.abs(np.bincount(classes, minlength=NUM_CLASSES) - 300).max() < 5 * math.sqrt(300)
    for index in range(6):
        sequence = request(index)
        begun = sum(speculation.count_accepted(sequence, 4) > 0 for _ in range(500))
        rate = speculation.request_rates(index)[0]
        assert begun / 500 == pytest.approx(rate, abs=5 * math.sqrt(rate * (1 - rate) / 500))


def test_equal_requests_end_further_apart() -> None:
    """Tokens of 100 verifications: their variance between requests is that of the draws, and of the classes on top."""
    tokens = {}
    for spread in (0.0, 0.8):
        speculation = DrawnSpeculation(RATES, lookahead_slots=4, spread=spread)
        sequences = [request(index) for index in range(400)]
        tokens[spread] = np.array(
            [sum(speculation.count_accepted(s, 4) for _ in range(100)) for s in sequences]
        )
    assert tokens[0.8].mean() == pytest.approx(tokens[0.0].mean(), rel=0.05)
    lengths = 100 * np.cumprod(np.array(rate_table(RATES, 0.8)), axis=1).sum(axis=1)
    assert tokens[0.8].var() == pytest.approx(tokens[0.0].var() + lengths.var(), rel=0.2)


def test_a_spread_that_is_none_is_refused() -> None:
    for spread in (-0.1, 4.1, math.nan):
        with pytest.raises(InvalidInput, match="acceptance rates between requests must be from 0 to 4"):
            DrawnSpeculation(RATES, lookahead_slots=4, spread=spread)
