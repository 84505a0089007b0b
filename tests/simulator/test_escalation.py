"""Shares of a cascade: exact, drawn by the seed, and of a higher share the same requests and more."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.base.errors import InvalidInput
from capacity.simulator.escalation import Escalation


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.3, 1.0])
def test_as_many_go_on_as_the_rate_says(rate: float) -> None:
    assert Escalation(rates=(rate,)).final_pools(400, seed=3).sum() == round(400 * rate)


def test_each_pool_sends_on_its_share_of_those_it_gets() -> None:
    steps = Escalation(rates=(0.5, 0.2), cache_hit_rate=0.25).final_pools(1000, seed=1)
    assert {int(value): int((steps == value).sum()) for value in np.unique(steps)} == {
        -1: 250,
        0: 375,
        1: 300,
        2: 75,
    }


def test_a_higher_rate_only_adds_to_those_who_go_on() -> None:
    few, more = (Escalation(rates=(rate,)).final_pools(300, seed=7) for rate in (0.2, 0.6))
    assert (few <= more).all()


def test_the_seed_draws_them() -> None:
    asked = Escalation(rates=(0.5,))
    first, again, other = (
        asked.final_pools(64, seed=0),
        asked.final_pools(64, seed=0),
        asked.final_pools(64, seed=1),
    )
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("asked", [{"rates": ()}, {"rates": (1.2,)}, {"rates": (0.5,), "judge_s": -1.0}])
def test_what_cannot_be_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Escalation(**asked)  # type: ignore[arg-type]
