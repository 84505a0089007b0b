"""Runs of replicas behind a router, and what must be conserved in each."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from capacity.simulator import EngineSetup, FrontendTimes, SimulationResult, simulate
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import (
    FixedLengths,
    LognormalLengths,
    SharedPrefixes,
    SteadyArrivals,
    ThinkTime,
    Workload,
    conversations,
    synthetic,
)

STEPS = AffineStepTimes(0.01, 1e-4, per_context_token_s=2e-8)


COLUMNS = ("arrival_ps", "first_scheduled_ps", "first_token_ps", "finish_ps", "output_tokens", "preemptions")


ROUTERS = ("round-robin", "least-outstanding", "least-kv", "prefix-aware")


def requests(count: int = 120, rate: float = 10.0, seed: int = 0, **more: Any) -> Workload:
    return synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(rate),
        prompt=LognormalLengths(100, 1.0, highest_tokens=1500),
        output=LognormalLengths(30, 1.0, highest_tokens=400),
        seed=seed,
        **more,
    )


def talks(rate: float = 5.0, seed: int = 0) -> Workload:
    return conversations(
        num_sessions=40,
        arrivals=SteadyArrivals(rate),
        turns=FixedLengths(3),
        user_tokens=LognormalLengths(40, 1.0),
        output=LognormalLengths(20, 1.0),
        think_time=ThinkTime(1.0),
        system_prompt_tokens=64,
        seed=seed,
    )


def assert_equal(one: SimulationResult, other: SimulationResult) -> None:
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(one.records, column), getattr(other.records, column), column)
    assert one.summary.to_dict() == other.summary.to_dict()
    for name in (
        "status",
        "steps",
        "preemptions",
        "rejected",
        "busy_s",
        "kv_utilization_mean",
        "mean_batch_size",
    ):
        assert getattr(one, name) == getattr(other, name), name


workloads = st.builds(
    lambda kind, rate, seed: {
        "open": lambda: requests(rate=rate, seed=seed),
        "shared": lambda: requests(rate=rate, seed=seed, shared_prefixes=SharedPrefixes(64, 3)),
        "closed": lambda: requests(rate=rate, seed=seed).in_closed_loop(1 + seed % 20),
        "talks": lambda: talks(rate / 2, seed),
    }[kind](),
    st.sampled_from(("open", "shared", "closed", "talks")),
    st.sampled_from((2.0, 10.0, 30.0)),
    st.integers(0, 1000),
)


setups = st.builds(
    lambda blocks, seqs, budget, policy: EngineSetup(
        step_times=STEPS,
        num_blocks=blocks,
        policy=policy,
        limits=SchedulerLimits(max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=2000),
    ),
    st.sampled_from((130, 200, 1000)),
    st.sampled_from((2, 8, 64)),
    st.sampled_from((64, 256, 2048)),
    st.sampled_from(("vllm-v1", "vllm-v1-async", "sglang", "tensorrt-llm")),
)


def alone(workload: Workload, setup: EngineSetup, frontend: FrontendTimes | None = None) -> SimulationResult:
    return simulate(
        workload,
        EngineSetup(
            step_times=setup.step_times, num_blocks=setup.num_blocks, policy=setup.policy, limits=setup.limits
        ),
        frontend=frontend,
    )


def assert_conserved(workload: Workload, found: SimulationResult) -> None:
    records = found.records
    done = records.completed
    assert found.status == "complete"
    assert done.sum() + found.rejected + found.timed_out == len(workload)
    np.testing.assert_array_equal(
        records.output_tokens[done],
        np.minimum(workload.output_tokens, 2000 - workload.prompt_tokens)[done],
    )
    assert (records.arrival_ps <= records.first_scheduled_ps)[done].all()
    assert (records.first_scheduled_ps < records.first_token_ps)[done].all()
    assert (records.first_token_ps <= records.finish_ps)[done].all()
    assert sum(replica.requests for replica in found.replicas) == len(workload) + found.restarted
