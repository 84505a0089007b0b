"""Service levels held against runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick_plans import quick

from capacity.deployment import Pool
from capacity.planning.evaluation.evaluate import EngineGroup, run_engines
from capacity.planning.evaluation.slo_evaluation import (
    Goal,
    cannot_meet_slo,
    evaluate_slos,
    latencies_s,
    percentiles_of_draws,
    projected_miss_ratio,
)
from capacity.pool.resolve import resolve
from capacity.workload import Workload, parse_slos, random_requests


def test_a_lower_goodput_target_needs_no_more() -> None:
    """Limits owed to each request hold for the share that was asked for: 99 % of them cost as much as 70 %, or more."""
    strict, loose = (
        quick(slo="ttft:300 tpot:12", goodput_target=target, request_rate=120.0, quantizations=(None,))
        for target in (0.99, 0.7)
    )
    assert strict.best is not None
    assert loose.best is not None
    assert loose.best.num_gpus < strict.best.num_gpus
    for answer, target in ((strict, 0.99), (loose, 0.7)):
        assert answer.best is not None
        assert all(level.required_fraction == target for level in answer.best.trial.levels)
        assert all(level.good_fraction >= target for level in answer.best.trial.levels)


@pytest.mark.parametrize("rate", [0.5, 20.0, 500.0])
@pytest.mark.parametrize("target", [0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("slo", ["ttft:300ms", "tpot:8ms", "e2el:500ms", "ttft:300ms tpot:8ms"])
def test_level_ratio_of_each_request_is_latency_over_limit(slo: str, target: float, rate: float) -> None:
    """At most 1 exactly where the share of requests that meet all limits reaches the target."""
    requests = random_requests(
        num_requests=60, request_rate_per_s=rate, input_len=2000, output_len=20, range_ratio=0.5
    )
    run = run_engines([EngineGroup(resolved=resolve("llama-3.1-8b", Pool(gpu="a100")))], requests)
    found = evaluate_slos([run], Goal(slos=parse_slos(slo), goodput_target=target), seen="all")
    assert found.met == (found.ratio <= 1)
    for limit, each in zip(parse_slos(slo), found.levels, strict=True):
        ratios = np.sort(latencies_s([run.records], limit.metric)) / limit.limit_s
        assert each.ratio == pytest.approx(ratios[max(math.ceil(target * len(ratios)), 1) - 1])
        assert (each.ratio <= 1) == (each.good_fraction >= target)
        assert found.ratio >= each.ratio


def test_level_ratio_of_tpot_counts_requests_of_one_token_as_met() -> None:
    requests = Workload(
        arrival_s=np.arange(100) / 1e3,
        prompt_tokens=np.full(100, 500),
        output_tokens=np.array([1] * 99 + [50]),
    )
    run = run_engines([EngineGroup(resolved=resolve("llama-3.1-8b", Pool(gpu="a100")))], requests)
    goal = Goal(slos=parse_slos("ttft:60s tpot:1ms"))
    found = evaluate_slos([run], goal, seen="all")
    assert found.met
    assert found.ratio <= 1
    assert found.levels[1].good_fraction == 0.99


@pytest.mark.parametrize(("rate", "certain"), [(500.0, True), (0.5, False)])
def test_a_miss_is_certain_once_more_are_late_than_may_be(rate: float, certain: bool) -> None:
    requests = random_requests(num_requests=60, input_len=2000, output_len=2, request_rate_per_s=rate)
    run = run_engines([EngineGroup(resolved=resolve("llama-3.1-8b", Pool(gpu="a100")))], requests)
    goal = Goal(slos=parse_slos("ttft:p90:300ms"))
    late = int((latencies_s([run.records], "ttft") > 0.3).sum())
    assert (late > 6 + 1) is certain
    assert cannot_meet_slo([run], goal, 60, share=1.0, parts=1) is certain
    assert projected_miss_ratio([run], goal, 60, share=1.0, alone=True) == pytest.approx(late / 7)
    assert evaluate_slos([run], goal, seen="all").met is (late <= 6)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.floats(1, 99.9), st.integers(0, 99))
def test_percentiles_of_draws_are_numpys(lengths: list[int], percent: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = [rng.exponential(size=length).round(2) for length in lengths]
    draws = rng.integers(0, len(blocks), size=(20, len(blocks)))
    expected = [np.percentile(np.concatenate([blocks[i] for i in draw]), percent) for draw in draws]
    found = percentiles_of_draws(blocks, draws, percent / 100)
    assert found == pytest.approx(expected, rel=1e-12)
