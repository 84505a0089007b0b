"""Providers' prompt caches: break-even and bills by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from capacity.base.errors import InvalidInput, UnknownName
from capacity.techniques.cache_curve import (
    PromptCachePlan,
    break_even_hit_fraction,
    break_even_reuses,
    find_plan,
    prompt_cache_bill,
    prompt_cache_plans,
    relative_input_cost,
)
from capacity.techniques.prefix_cache import reuse_curve
from capacity.workload import PromptContent, Workload


def test_a_plan_without_a_time_to_live_is_refused() -> None:
    with pytest.raises(ValidationError, match="ttl_s"):
        PromptCachePlan(name="ttl", write=1, read=0, ttl_s=float("nan"))


def test_break_even_by_hand() -> None:
    """Anthropic's published multiples: one reuse pays the 5-minute write, two the 1-hour write."""
    assert break_even_reuses(1.25, 0.1) == pytest.approx(0.2778, abs=1e-4)
    assert break_even_reuses(2.0, 0.1) == pytest.approx(1.1111, abs=1e-4)
    assert break_even_reuses(1.0, 0.5) == 0
    assert break_even_hit_fraction(1.25, 0.1) == pytest.approx(0.25 / 1.15)
    with pytest.raises(InvalidInput, match="never pay off"):
        break_even_reuses(1.25, 1.0)


@given(st.floats(1, 3), st.floats(0, 0.99))
def test_at_the_break_even_hit_fraction_the_bill_is_the_plain_one(write: float, read: float) -> None:
    fraction = break_even_hit_fraction(write, read)
    assert fraction is not None
    assert relative_input_cost(fraction, write, read) == pytest.approx(1)


def test_the_bill_of_two_equal_prompts_by_hand() -> None:
    """1,600 tokens twice within the hour: written once at 1.25, read once at 0.1 (but for the 5-minute TTL)."""
    content = PromptContent.from_segments([[(1, 1600)], [(1, 1600)]])
    workload = Workload(
        arrival_s=[0.0, 400.0], prompt_tokens=[1600, 1600], output_tokens=[1, 1], content=content
    )
    curve = reuse_curve(workload, 16)
    hour = prompt_cache_bill(curve, find_plan("anthropic-1h"))
    assert hour.relative_cost == pytest.approx((2.0 + 0.1) / 2)
    assert not hour.worth_it
    five = prompt_cache_bill(curve, find_plan("anthropic-5m"))
    assert five.hit_fraction == 0
    assert five.relative_cost == pytest.approx(1.25)
    assert prompt_cache_bill(curve, find_plan("openai-half")).relative_cost == 1.0
    assert prompt_cache_bill(curve, find_plan("openai-tenth-24h")).relative_cost == pytest.approx(1.1 / 2)
    assert prompt_cache_bill(curve, find_plan("deepseek-flash")).relative_cost == pytest.approx(1.02 / 2)
    assert prompt_cache_bill(curve, find_plan("gemini-pro")).hit_fraction == 0  # shorter than its minimum


def test_short_prompts_are_billed_as_they_are() -> None:
    content = PromptContent.from_segments([[(1, 100)], [(1, 100)]])
    workload = Workload(arrival_s=[0.0, 1.0], prompt_tokens=[100, 100], output_tokens=[1, 1], content=content)
    assert prompt_cache_bill(reuse_curve(workload, 16), find_plan("anthropic-5m")).relative_cost == 1.0


def test_every_plan_names_its_source() -> None:
    for plan in prompt_cache_plans().values():
        assert plan.source
        assert plan.date
    with pytest.raises(UnknownName, match="prompt-cache plan"):
        find_plan("anthropic")
