"""The textbook by hand, by counting, and beside a published table."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.pool.drafting import (
    acceptance_of_length,
    effective_exponent,
    expected_tokens,
    expected_tokens_by_position,
    textbook_speedup,
    textbook_table,
)
from capacity.pool.drafting.textbook import share_speedup

RATE = st.floats(0, 1)
DRAFTS = st.integers(0, 12)


def test_leviathans_example_by_hand() -> None:
    """Leviathan et al., section 3: a = 0.8 and k = 5 give (1 - 0.8^6)/0.2 = 3.69 tokens; at c = 0.05, 2.95 times."""
    assert expected_tokens(0.8, 5) == pytest.approx((1 - 0.262144) / 0.2)
    assert textbook_speedup(0.8, 5, 0.05) == pytest.approx(3.68928 / 1.25)
    assert expected_tokens(1.0, 4) == 5
    assert expected_tokens(0.0, 4) == 1
    assert expected_tokens(0.5, 0) == 1


@given(RATE, DRAFTS)
def test_the_closed_form_is_the_sum_over_positions(acceptance: float, drafts: int) -> None:
    by_sum = sum(acceptance**j for j in range(drafts + 1))
    assert expected_tokens(acceptance, drafts) == pytest.approx(by_sum, rel=1e-6)
    assert expected_tokens_by_position([acceptance] * drafts) == pytest.approx(by_sum, rel=1e-6)


@given(st.floats(0.01, 0.99), st.integers(1, 12))
def test_the_acceptance_of_a_length_is_the_inverse(acceptance: float, drafts: int) -> None:
    length = expected_tokens(acceptance, drafts)
    assert acceptance_of_length(length, drafts) == pytest.approx(acceptance, abs=1e-6)


def test_counted_rounds_have_the_expected_length() -> None:
    """200,000 simulated rounds of 4 drafts at 0.7: mean within 4 standard errors of (1 - 0.7^5)/0.3."""
    rng = random.Random(1)
    lengths = []
    for _ in range(200_000):
        n = 1
        while n <= 4 and rng.random() < 0.7:
            n += 1
        lengths.append(n)
    error = np.std(lengths) / math.sqrt(len(lengths))
    assert abs(np.mean(lengths) - expected_tokens(0.7, 4)) < 4 * error


def test_the_published_textbook_table_disagrees_where_it_does() -> None:
    """Of ten tokens-per-round entries two equal the formula; three are its variants; the rest are neither."""
    table = {(e.quantity, e.acceptance, e.draft_tokens): e for e in textbook_table()}
    tokens = [e for e in table.values() if e.quantity == "tokens per round"]
    assert [(e.acceptance, e.draft_tokens) for e in tokens if e.agrees] == [(0.5, 4), (0.5, 8)]
    assert "exponent K " in table["tokens per round", 0.7, 4].explained_by
    assert "exponent K " in table["tokens per round", 0.9, 8].explained_by
    assert "accepted drafts out of K + 1" in table["tokens per round", 0.9, 4].explained_by
    for acceptance, drafts, exponent, why in (
        (0.8, 4, 4.1, "bonus token counts in 12%"),
        (0.95, 4, 4.6, "bonus token counts in 65%"),
        (0.7, 8, 5.1, "3.9 of 8 drafts"),
        (0.8, 8, 5.6, "3.4 of 8 drafts"),
        (0.95, 8, 8.9, "bonus token counts in 86%"),
    ):
        entry = table["tokens per round", acceptance, drafts]
        found = effective_exponent(acceptance, entry.published)
        assert (1 - acceptance**found) / (1 - acceptance) == pytest.approx(entry.published)
        assert f"exponent of {exponent}" in entry.explained_by, entry.explained_by
        assert why in entry.explained_by, entry.explained_by
    assert all(e.published <= e.formula + 0.005 for e in tokens)
    speedups = [e for e in table.values() if e.quantity == "speed-up"]
    assert len(speedups) == 5
    assert not any(e.agrees for e in speedups)
    assert all(e.published < e.formula for e in speedups)


def test_a_formula_by_shares_costs_less_than_nothing() -> None:
    """0.8 of 4 drafts are 3.2: 0.05·3.2 + 1 - 3.2 = -2.04 steps; at one draft, 0.04 + 0.2 for 1.8/1.05."""
    assert share_speedup(0.8, 4, 0.05) == pytest.approx(-1 / 2.04)
    assert share_speedup(0.8, 1, 0.05) == pytest.approx(1 / 0.24)
    shares = {(e.acceptance, e.draft_tokens): e for e in textbook_table() if e.quantity == "by shares"}
    assert shares[0.8, 1].formula == pytest.approx(1.8 / 1.05)
    assert not any(entry.agrees for entry in shares.values())
    assert shares[0.8, 4].explained_by.endswith("negative")


def test_what_no_formula_takes_is_refused() -> None:
    for acceptance, drafts in ((1.2, 3), (float("nan"), 3), (-0.1, 3), (0.5, -1)):
        with pytest.raises(InvalidInput):
            expected_tokens(acceptance, drafts)
    with pytest.raises(InvalidInput):
        textbook_speedup(0.5, 3, -1)
    for acceptance, tokens in ((0.5, 2.0), (0.5, 0.0), (1.0, 3.0), (1.5, 2.0)):
        with pytest.raises(InvalidInput):
            effective_exponent(acceptance, tokens)
