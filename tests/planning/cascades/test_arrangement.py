"""Shares, bills and break-even of a cascade, against the closed forms; sides with invented prices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from capacity.answers.records import Quantity
from capacity.planning.cascades.arrangement import Arrangement, Cache
from capacity.planning.cascades.tiers import AnswerTimes, Stage, mixture_latency

HOUR = 3600.0
SECOND = Stage.constant(1.0)


@dataclass(frozen=True)
class Priced:
    """So many $ a request, in engines of `step` requests per second."""

    usd: float
    step: float | None = None
    spread: float = 0.0
    place = "nowhere"

    @property
    def usd_at_scale(self) -> Quantity:
        return Quantity(value=self.usd, low=self.usd * (1 - self.spread), high=self.usd * (1 + self.spread))

    def engines(self, requests_per_s: float, /) -> int | None:
        return None if self.step is None else int(np.ceil(requests_per_s / self.step - 1e-9))

    def billed_gpus(self, requests_per_s: float, /) -> int | None:
        return self.engines(requests_per_s)

    def utilization(self, _: float, /) -> float | None:
        return None

    def usd_per_hour(self, requests_per_s: float, /) -> Quantity:
        rate = requests_per_s if self.step is None else (self.engines(requests_per_s) or 0) * self.step
        return self.usd_at_scale.scale(rate * HOUR)

    def waits(self, _: float, /) -> AnswerTimes | None:
        return AnswerTimes(SECOND, SECOND)


CHEAP, DEAR = Priced(0.1, spread=0.1), Priced(1.0, spread=0.1)
BY_ANSWER = Arrangement(requests_per_s=2.0, large=DEAR, small=CHEAP, escalation_rate=0.3)
CACHE = Cache(hit_rate=0.25, lookup_s=0.1, lookup_usd=0.01, store_usd_per_hour=72.0)


def test_by_answer_both_are_paid() -> None:
    assert (BY_ANSWER.small_share, BY_ANSWER.large_share) == (1.0, 0.3)
    assert BY_ANSWER.usd_at_scale().value == pytest.approx(0.1 + 0.3)
    assert BY_ANSWER.usd_per_hour().value == pytest.approx(0.4 * 2 * HOUR)
    found = BY_ANSWER.break_even_escalation()  # 1 - small / large
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.9, 1 - 0.11 / 0.9, 1 - 0.09 / 1.1))
    assert BY_ANSWER.break_even_escalation_here() == pytest.approx(0.9, abs=1e-3)


def test_by_prompt_one_is_paid() -> None:
    routed = replace(BY_ANSWER, by_answer=False, judge_usd=0.05)
    assert (routed.small_share, routed.large_share) == pytest.approx((0.7, 0.3))
    assert routed.usd_at_scale().value == pytest.approx(0.7 * 0.1 + 0.3 + 0.05)
    found = routed.break_even_escalation()  # (large - judge - small) / (large - small)
    assert found is not None
    assert found.value == pytest.approx(0.85 / 0.9)


def test_a_cache_pays_from_its_cost_over_that_of_a_miss() -> None:
    cached = Arrangement(
        requests_per_s=2.0, large=DEAR, cache=CACHE
    )  # 72 $ an hour over 7,200 requests: 1 cent
    assert cached.usd_at_scale().value == pytest.approx(0.75 + 0.01 + 0.01)
    found = cached.break_even_hits()
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0.02 / 1.1, 0.02 / 0.9))
    assert cached.break_even_hits_here() == pytest.approx(0.02, abs=1e-3)
    at_it = cached.with_hit_rate(found.value)
    assert at_it.usd_at_scale().value == pytest.approx(cached.large_model_only.usd_at_scale().value)


def test_what_is_decided_is_paid_by_those_that_the_cache_misses() -> None:
    judged = replace(BY_ANSWER, cache=CACHE, judge_usd=0.2)
    assert judged.usd_at_scale().value == pytest.approx(0.02 + 0.75 * (0.2 + 0.1 + 0.3))
    assert judged.usd_per_hour().value == pytest.approx(2 * HOUR * judged.usd_at_scale().value)


def test_engines_that_embed_are_paid_for_every_request() -> None:
    embedding = replace(CACHE, lookup_usd=0.0, embedder=Priced(0.04, step=5.0, spread=0.5))
    cached = replace(BY_ANSWER, cache=embedding)
    without = replace(BY_ANSWER, cache=replace(CACHE, lookup_usd=0.0))
    assert cached.usd_at_scale().value == pytest.approx(without.usd_at_scale().value + 0.04)
    assert cached.usd_per_hour().value == pytest.approx(without.usd_per_hour().value + 5 * 0.04 * HOUR)
    found = cached.break_even_hits()  # (0.01 of the store + 0.04) / 0.4
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.125, 0.03 / 0.44, 0.07 / 0.36))
    never_hit = cached.with_hit_rate(0.0)
    at_it = never_hit.break_even_escalation()
    assert at_it is not None
    assert at_it.value == pytest.approx(1 - 0.1 - 0.05)
    assert never_hit.with_escalation(at_it.value).usd_at_scale().value == pytest.approx(1.0)
    ways = cached.paths(
        AnswerTimes(SECOND, SECOND), AnswerTimes(SECOND, SECOND), AnswerTimes(SECOND, Stage.constant(2.0))
    )
    assert ways is not None
    assert mixture_latency(ways[0], "mean").value == pytest.approx(2.1 + 0.75 + 0.75 * 0.3)


def test_whole_engines_jump() -> None:
    steps = replace(BY_ANSWER, large=Priced(1.0, step=1.0), small=Priced(0.5, step=1.0))
    assert steps.usd_per_hour().value == pytest.approx(HOUR * (2 * 0.5 + 1 * 1.0))
    assert steps.break_even_escalation_here() == pytest.approx(0.5)  # one engine of two, at 2 requests/s
    assert steps.with_escalation(0.51).usd_per_hour().value > steps.large_model_only.usd_per_hour().value


def test_a_small_model_that_is_no_cheaper_pays_at_no_rate() -> None:
    dear = replace(BY_ANSWER, small=Priced(1.5))
    assert dear.break_even_escalation() is None
    assert dear.break_even_escalation_here() is None
    free = replace(BY_ANSWER, small=Priced(0.0))
    assert free.break_even_escalation() == Quantity(value=1.0, low=1.0, high=1.0)
    costly = Arrangement(requests_per_s=2.0, large=CHEAP, cache=replace(CACHE, lookup_usd=0.2))
    assert costly.break_even_hits() is None


def test_an_answer_that_is_judged_is_shown_at_its_end() -> None:
    small = AnswerTimes(Stage.constant(0.2), Stage.constant(3.0))
    large = AnswerTimes(Stage.constant(0.5), Stage.constant(7.0))
    cached = replace(BY_ANSWER, cache=CACHE, judge_s=1.0)

    def means(arranged: Arrangement) -> tuple[float, float]:
        ways = arranged.paths(large, small)
        assert ways is not None
        assert [sum(way.share for way in each) for each in ways] == pytest.approx([1.0, 1.0])
        return mixture_latency(ways[0], "mean").value, mixture_latency(ways[1], "mean").value

    kept, passed = 0.75 * 0.7, 0.75 * 0.3
    judged = 0.1 + 3 + 1
    assert means(cached) == pytest.approx(
        (0.025 + kept * judged + passed * (judged + 0.5), 0.025 + kept * judged + passed * (judged + 7))
    )
    routed = 0.1 + 1
    assert means(replace(cached, by_answer=False)) == pytest.approx(
        (
            0.025 + kept * (routed + 0.2) + passed * (routed + 0.5),
            0.025 + kept * (routed + 3) + passed * (routed + 7),
        )
    )
    assert cached.paths(None, small) is None
    assert cached.with_escalation(0.0).paths(None, small) is not None


def test_a_client_is_once_as_far_away_whoever_works_on_its_request() -> None:
    """Whatever the way: a hit, one model, two of them, behind engines that embed; an API's time is as given."""
    near = replace(BY_ANSWER, cache=CACHE)
    far = replace(near, client_s=2.0)
    times = Stage.constant(3.0)
    at_once, longer = (
        AnswerTimes(times, times),
        AnswerTimes(Stage.constant(5.0), Stage.constant(5.0), client_s=2.0),
    )
    for embedded in (False, True):
        before = near.paths(at_once, at_once, at_once if embedded else None)
        after = far.paths(longer, longer, longer if embedded else None)
        assert before is not None
        assert after is not None
        for some, more in zip(before[0] + before[1], after[0] + after[1], strict=True):
            assert mixture_latency([replace(more, share=1.0)], "mean").value == pytest.approx(
                mixture_latency([replace(some, share=1.0)], "mean").value + 2.0
            )
    api = far.paths(at_once, at_once)
    assert api is not None
    assert mixture_latency(api[1][1:], "mean").value == pytest.approx(
        mixture_latency(near.paths(at_once, at_once)[1][1:], "mean").value
    )
