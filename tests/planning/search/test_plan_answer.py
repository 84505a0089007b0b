"""Fronts: nothing on them is beaten, and everything off them is."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from planned_options import level, option, trial

from capacity.planning.records import Point
from capacity.planning.search.plan_answer import cost_front, points_of, speed_front

VALUES = st.integers(0, 6).map(float)


def point(**fields: Any) -> Point:
    own: dict[str, Any] = {
        "label": "l", "gpu": "h100", "num_gpus": 1, "usd_per_hour": 1.0, "tokens_per_s_per_user": 1.0,
        "tokens_per_s_per_gpu": 1.0, "levels": (level(1.0),), "met": True,
    }  # fmt: skip
    return Point(**(own | fields))


def values(each: Point) -> tuple[float, float]:
    return each.tokens_per_s_per_user or 0.0, each.tokens_per_s_per_gpu


@given(st.lists(st.tuples(VALUES, VALUES), max_size=12))
def test_no_point_beats_one_of_the_speed_front_and_one_of_it_equals_or_beats_every_point(
    speeds: list[tuple[float, float]],
) -> None:
    points = [point(tokens_per_s_per_user=user, tokens_per_s_per_gpu=gpu) for user, gpu in speeds]
    front = speed_front(points)
    for each in front:
        own = values(each)
        assert not any(
            other != own and other[0] >= own[0] and other[1] >= own[1] for other in map(values, points)
        )
    for each in points:
        assert any(on[0] >= values(each)[0] and on[1] >= values(each)[1] for on in map(values, front))


def test_without_a_price_gpus_stand_for_money() -> None:
    few, many = (
        point(usd_per_hour=None, num_gpus=gpus, levels=(level(ratio),))
        for gpus, ratio in ((1, 0.9), (4, 0.2))
    )
    wasteful = point(usd_per_hour=None, num_gpus=5, levels=(level(0.5),))
    assert cost_front([wasteful, many, few]) == (few, many)


def test_what_was_given_up_or_ended_at_first_tokens_is_no_point() -> None:
    engine = option()
    trials = {
        engine.first_look(1): trial(2.0, seen="given up"),
        engine.first_look(2): trial(0.5),
        engine.first_look(3)._replace(first_tokens=True): trial(0.5),
    }
    (only,) = points_of(trials, [engine])
    assert only.num_gpus == 2
    assert only.tokens_per_s_per_gpu == 50.0
