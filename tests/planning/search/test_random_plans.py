"""Random questions: simulating every deployment of the space never finds a cheaper one than the planner's answer."""

from __future__ import annotations

import math

import pytest
from brute_force import brute_force
from quick_plans import PRICES
from random_plans import question

from capacity.planning.plan import plan

SHORT_FORM = (3, 7, 11)  # in two of them the first answer is not the cheapest
LONG_FORM = [seed for seed in range(24) if seed not in SHORT_FORM]


@pytest.mark.parametrize(
    "seed", [*SHORT_FORM, *(pytest.param(seed, marks=pytest.mark.slow) for seed in LONG_FORM)]
)
def test_nothing_is_cheaper_than_the_answer(seed: int) -> None:
    asked = question(seed)
    best, points, reached = brute_force(asked.model, asked.slo, asked.space, asked.traffic)
    answer = plan(asked.model, slo=asked.slo, price=PRICES, time_limit_s=0, **asked.space, **asked.traffic)
    assert answer.proved
    assert answer.counts.points >= points  # what was never looked at may not fit
    assert (math.inf if answer.best is None else answer.best.objective) == pytest.approx(best)
    assert answer.best is None or answer.best.candidate in reached
