"""Short counts, as vLLM reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.deployment.flags import short_count


@given(
    count=st.integers(0, 10**6),
    suffix=st.sampled_from([("k", 10**3), ("m", 10**6), ("K", 2**10), ("M", 2**20)]),
)
def test_a_small_letter_is_decimal_and_a_capital_binary(count: int, suffix: tuple[str, int]) -> None:
    assert short_count(f" {count}{suffix[0]} ") == count * suffix[1]


@pytest.mark.parametrize("text", ["", "12", "k", "-1k", "1kk", "1,5k", "1e3k", "inf", "²k"])
def test_what_is_no_short_count_stays_as_it_is(text: str) -> None:
    assert short_count(text) == text


def test_a_fraction_is_rounded_to_the_nearest_token() -> None:
    assert short_count("25.6k") == 25_600
    assert short_count("0.3K") == 307
