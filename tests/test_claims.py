"""The claims of the field: each has its source, its number of ours, and a verdict that follows from both.

That the page is made of them as they are now is checked with the rest that the handbook takes from the code.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

import claims

ALL = claims.claims()
ENOUGH = 25
MADE_UP = replace(ALL[0], low=2.0, high=4.0, most=False)


def test_there_are_enough_and_each_is_told_once() -> None:
    assert len(ALL) >= ENOUGH
    assert len({claim.said for claim in ALL}) == len(ALL)
    assert {claim.ours for claim in ALL} == set(claims.OURS)


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: claim.said[:40])
def test_a_claim_says_where_it_was_read(claim: claims.Claim) -> None:
    assert claim.low <= claim.high
    assert claim.source is None or (
        claim.source.startswith(("https://", "http://")) and " " not in claim.source
    )
    assert "|" not in f"{claim.said}{claim.of}{claim.why}"


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((2.0, 4.0), "right"),
        ((1.8, 4.4), "right"),
        ((1.79, 3.0), "in part"),
        ((3.0, 4.41), "in part"),
        ((1.0, 9.0), "in part"),
        ((1.0, 1.79), "too high"),
        ((4.41, 9.0), "too low"),
    ],
)
def test_the_verdict_follows_from_the_numbers(ours: tuple[float, ...], said: str) -> None:
    assert claims.verdict(MADE_UP, ours) == said


def test_of_up_to_one_condition_is_enough() -> None:
    most = replace(MADE_UP, low=4.0, most=True)
    assert claims.verdict(most, (0.1, 3.6)) == "reached"
    assert claims.verdict(most, (3.5, 3.59)) == "not reached"
    assert claims.verdict(replace(MADE_UP, low=-0.53, high=-0.53), (2.4,)) == "too low"


def test_numbers_have_three_digits_and_those_of_thousands_two() -> None:
    told = {0.04499: "0.045", 1.0: "1", 2.345: "2.35", 85.64: "85.6", 140.6: "141", 9193.0: "9,200", 0.0: "0"}
    assert {value: claims.digits(value) for value in told} == told
    assert claims.shown((1.4, 1.0), "x") == "1 to 1.4x"
    assert claims.shown((8.0, 8.001), "x") == "8x"
