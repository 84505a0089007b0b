"""Closed forms, bounds and random draws of routed experts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.hardware.coefficients import universal_family
from capacity.step.expert_load import (
    ROUTING_GAMMA_SHAPE,
    busiest_rank_experts,
    busiest_rank_load,
    busiest_rank_pairs,
    distinct_experts,
    expected_max_z_squared,
    moe_seconds,
)

P, BW = 1e15, 3e12


def test_one_token_touches_its_experts_and_many_touch_all() -> None:
    assert distinct_experts(128, 4, 1) == pytest.approx(4)
    assert distinct_experts(128, 4, 1e9) == pytest.approx(128, rel=1e-6)
    assert distinct_experts(8, 8, 3) == pytest.approx(8)
    assert distinct_experts(128, 4, 0) == 0.0


@given(st.integers(2, 512), st.integers(1, 16), st.floats(1, 1e5))
def test_distinct_experts_are_bounded_and_monotone(experts: int, chosen: int, tokens: float) -> None:
    chosen = min(chosen, experts)
    touched = distinct_experts(experts, chosen, tokens)
    assert chosen * (1 - 1e-9) <= touched <= min(experts, chosen * tokens) * (1 + 1e-9)
    assert distinct_experts(experts, chosen, tokens * 2) >= touched
    even = experts * (1 - (1 - chosen / experts) ** tokens)
    assert touched <= even * (1 + 1e-9)  # skew touches fewer


def test_the_busiest_rank_has_at_least_its_share() -> None:
    assert busiest_rank_load(100, 1) == 100
    assert busiest_rank_load(1, 8) == pytest.approx(1 / 8 + math.sqrt(expected_max_z_squared(8) / 8))
    assert busiest_rank_load(0.1, 8) == 0.1
    assert busiest_rank_load(1e9, 8) == pytest.approx(1e9 / 8, rel=1e-3)


@pytest.mark.parametrize(("tokens", "ranks"), [(8, 4), (64, 8), (512, 8), (4096, 2), (32, 16)])
def test_the_busiest_ranks_load_is_that_of_drawn_routers(tokens: int, ranks: int) -> None:
    """Routers drawn as `distinct_experts` says (popularities gamma, tokens choose by them), counted by rank."""
    experts, chosen, draws = 128, 8, 400
    random = np.random.default_rng(7)
    held = experts // ranks
    pairs, touched, distinct = [], [], []
    for _ in range(draws):
        popularity = random.gamma(ROUTING_GAMMA_SHAPE, size=experts)
        counts = random.poisson(tokens * chosen * popularity / (ROUTING_GAMMA_SHAPE * experts))
        by_rank = counts.reshape(ranks, held)
        pairs.append(by_rank.sum(axis=1).max())
        touched.append((by_rank > 0).sum(axis=1).max())
        distinct.append((counts > 0).sum())
    assert busiest_rank_pairs(tokens * chosen, ranks, held) == pytest.approx(np.mean(pairs), rel=0.1)
    assert busiest_rank_experts(float(np.mean(distinct)), ranks, held) == pytest.approx(
        np.mean(touched), rel=0.05
    )


@given(st.floats(0, 1e15), st.floats(1, 1e11), st.floats(0, 1e10))
def test_experts_are_never_faster_than_either_roof(flops: float, moved: float, routed: float) -> None:
    constants = universal_family().moe["bf16"]
    seconds = moe_seconds(flops, moved, routed, flops_per_s=P, hbm_bytes_per_s=BW, constants=constants)
    assert seconds >= max(flops / P, moved / BW)
