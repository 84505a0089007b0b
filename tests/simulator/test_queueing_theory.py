"""Both engines against what is known of queues: means within their intervals, and time that has no scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from engine_loops import LOOPS, on

from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import PS_PER_S, AffineStepTimes
from capacity.workload import Workload

STUDENT = 2.86  # 99 % of 20 batch means


def waits(
    load: float, servers: int, count: int, engine_loop: str, *, exponential: bool = False
) -> tuple[float, float]:
    """Mean wait at `servers` seats, one queue before them, and its interval's half-width.

    Each serves for 1 s, or `exponential` times of that mean: prompts of so many milliseconds, one token each.
    """
    rng = np.random.default_rng(100 * servers + round(100 * load))
    ones = np.ones(count, dtype=np.int64)
    arrivals = np.cumsum(rng.exponential(1 / load / servers, count))
    prompts = 1 + rng.exponential(1000.0, count).astype(np.int64) if exponential else ones
    setup = EngineSetup(
        step_times=AffineStepTimes(0.0, 0.001) if exponential else AffineStepTimes(1.0, 0.0),
        num_blocks=2048,
        policy="vllm-v1",
        limits=SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=1 << 15, max_model_len=1 << 15),
        enable_prefix_caching=False,
    )
    several: dict[str, Any] = {"router": "least-outstanding", "outstanding_limit": 1} if servers > 1 else {}
    workload = Workload(arrival_s=arrivals, prompt_tokens=prompts, output_tokens=ones)
    run = simulate(workload, [setup] * servers, **several, **on(simulate, engine_loop))
    waited = (run.records.first_scheduled_ps - run.records.arrival_ps)[count // 10 :] / PS_PER_S
    means = waited[: len(waited) // 20 * 20].reshape(20, -1).mean(axis=1)
    return float(means.mean()), STUDENT * float(means.std(ddof=1)) / math.sqrt(20)


@pytest.mark.parametrize("load", [0.3, 0.6, pytest.param(0.8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine_loop", LOOPS)
def test_equal_services_wait_as_m_d_1(load: float, engine_loop: str) -> None:
    mean, half = waits(load, 1, 200_000 if load > 0.7 else 20_000, engine_loop)
    expected = load / (2 * (1 - load))
    assert abs(mean - expected) < half, (mean, half, expected)
    assert half < 0.2 * expected


@pytest.mark.parametrize("engine_loop", LOOPS)
def test_equal_services_of_several_wait_between_their_bounds(engine_loop: str) -> None:
    """M/D/k has no short formula: at least half of M/M/k's wait (Cosmetatos), at most all of it."""
    mean, half = waits(0.7, 3, 20_000, engine_loop)
    exponential = m_m_k(0.7, 3)
    assert 0.5 * exponential - half < mean < exponential + half


def m_m_k(load: float, servers: int) -> float:
    """Mean wait by Erlang's C formula, in service times."""
    offered = load * servers
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (sum(terms) + last) / (servers - offered)


@pytest.mark.parametrize(
    ("load", "servers", "count"),
    [(0.6, 1, 20_000), (0.7, 3, 20_000)]
    + [pytest.param(load, k, 400_000, marks=pytest.mark.slow) for load in (0.6, 0.8) for k in (1, 2, 4)],
)
@pytest.mark.parametrize("engine_loop", LOOPS)
def test_exponential_services_wait_as_m_m_k(load: float, servers: int, count: int, engine_loop: str) -> None:
    count = min(count, 60_000) if engine_loop == "events" else count
    mean, half = waits(load, servers, count, engine_loop, exponential=True)
    expected = m_m_k(load, servers)
    assert abs(mean - expected) < half, (mean, half, expected)
    assert half < 0.3 * expected


def loaded(scale: float, engine_loop: str, *, stages: int, policy: str) -> SimulationResult:
    """A crowded engine whose every time, arrivals and steps, is `scale` times as long."""
    rng = np.random.default_rng(stages)
    count = 300
    workload = Workload(
        arrival_s=scale * np.round(np.cumsum(rng.exponential(0.02, count)), 9),
        prompt_tokens=rng.integers(1, 200, count),
        output_tokens=rng.integers(1, 40, count),
    )
    setup = EngineSetup(
        step_times=AffineStepTimes(scale * 0.004, scale * 0.00003),
        num_blocks=160,
        policy=policy,
        limits=SchedulerLimits(max_num_seqs=24, max_num_batched_tokens=256, pipeline_stages=stages),
    )
    return simulate(workload, setup, **on(simulate, engine_loop))


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async", "vllm-v0", "sglang"])
@pytest.mark.parametrize("engine_loop", LOOPS)
def test_twice_as_slow_a_world_is_the_same_world(policy: str, engine_loop: str) -> None:
    """All times x 2: the same decisions, and every instant doubles to the picosecond."""
    once, twice = (loaded(scale, engine_loop, stages=1, policy=policy) for scale in (1, 2))
    assert len(once.records) == 300
    for name in ("arrival_ps", "first_scheduled_ps", "first_token_ps", "finish_ps"):
        assert (2 * getattr(once.records, name) == getattr(twice.records, name)).all(), name


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("engine_loop", LOOPS)
def test_pipeline_stages_have_no_scale_and_lose_nobody(stages: int, engine_loop: str) -> None:
    once, twice = (loaded(scale, engine_loop, stages=stages, policy="vllm-v1") for scale in (1, 2))
    assert (2 * once.records.finish_ps == twice.records.finish_ps).all()
    assert (once.records.finish_ps >= once.records.first_token_ps).all()
    assert once.status == "complete"


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("engine_loop", LOOPS)
def test_a_lone_request_waits_for_the_whole_pipeline(stages: int, engine_loop: str) -> None:
    """One request has one batch in flight: n outputs take n steps through all stages, whatever their number."""
    lone = Workload(arrival_s=np.array([0.0]), prompt_tokens=np.array([50]), output_tokens=np.array([9]))
    setup = EngineSetup(
        step_times=AffineStepTimes(0.01, 0.0),
        num_blocks=64,
        policy="vllm-v1",
        limits=SchedulerLimits(pipeline_stages=stages),
    )
    run = simulate(lone, setup, **on(simulate, engine_loop))
    assert run.records.finish_ps.tolist() == [9 * 10**10]
