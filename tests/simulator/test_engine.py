"""The engine loop against queueing theory and conservation laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from block_pools import check_block_pool
from engine_runs import random_run, run_engine

from capacity.simulator import Engine, EngineSetup, SimulationResult, simulate
from capacity.simulator.schedulers import SchedulerLimits, Speculation, Step
from capacity.step import PS_PER_S, AffineStepTimes, DecodePiece, StepShape
from capacity.workload import Workload, random_requests

POLICIES = ["vllm-v1", "vllm-v1-async", "vllm-v0", "static", "slots"]


ONE_SERVER = SchedulerLimits(max_num_seqs=1)


class Listed:
    """Service times from a list, one per step."""

    def __init__(self, services_ps: list[int]) -> None:
        self._next = iter(services_ps)

    def step_ps(self, shape: StepShape) -> int:  # noqa: ARG002
        return next(self._next)

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:  # noqa: ARG002
        return None


def queue(services_s: np.ndarray, rate: float, seed: int, policy: str = "vllm-v1") -> SimulationResult:
    """A single server: one slot, one output token, so one step per request."""
    count = len(services_s)
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    ones = np.ones(count, dtype=np.int64)
    return simulate(
        Workload(arrival_s=arrivals, prompt_tokens=ones, output_tokens=ones),
        EngineSetup(
            step_times=Listed([round(s * PS_PER_S) for s in services_s.tolist()]),
            num_blocks=4,
            policy=policy,
            limits=ONE_SERVER,
        ),
    )


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v0", "static", "slots"])
def test_lindley_path_is_equal_to_the_picosecond(policy: str) -> None:
    services = np.random.default_rng(3).exponential(0.8, 4000)
    result = queue(services, 1.0, 4, policy)
    arrivals = result.records.arrival_ps.tolist()
    free = 0
    for index, service in enumerate(services.tolist()):
        start = max(arrivals[index], free)
        free = start + round(service * PS_PER_S)
        assert result.records.first_scheduled_ps[index] == start
        assert result.records.finish_ps[index] == free


@pytest.mark.parametrize(
    ("name", "second_moment"), [("deterministic", 1.0), ("exponential", 2.0), ("two-point", 1.64)]
)
def test_mean_wait_of_a_single_server(name: str, second_moment: float) -> None:
    """Pollaczek-Khinchine: W = λ E[S²] / (2 (1 - ρ)), within 4 standard errors from batch means, at ρ = 0.6."""
    load, count, batches = 0.6, 40_000, 20
    rng = np.random.default_rng(11)
    services = {
        "deterministic": np.ones(count),
        "exponential": rng.exponential(1.0, count),
        "two-point": rng.choice([0.2, 1.8], count),
    }[name]
    result = queue(services, load, 12, "slots")
    waits = (result.records.first_scheduled_ps - result.records.arrival_ps)[count // 20 :] / PS_PER_S
    means = waits[: len(waits) // batches * batches].reshape(batches, -1).mean(axis=1)
    error = means.std(ddof=1) / batches**0.5
    expected = load * second_moment / (2 * (1 - load))
    assert abs(means.mean() - expected) < 4 * error
    assert error < 0.15 * expected


@pytest.mark.parametrize("policy", POLICIES)
def test_littles_identity(policy: str) -> None:
    """The integral of the number in the system is the sum of the times in it: by events, exactly."""
    workload = random_requests(num_requests=80, input_len=60, output_len=20, request_rate_per_s=9.0, seed=2)
    result = simulate(
        workload,
        EngineSetup(
            step_times=AffineStepTimes(0.01, 1e-4),
            num_blocks=60,
            policy=policy,
            limits=SchedulerLimits(max_num_seqs=8),
        ),
    )
    records = result.records
    events = sorted(
        [(t, 1) for t in records.arrival_ps.tolist()] + [(t, -1) for t in records.finish_ps.tolist()]
    )
    integral = inside = last = 0
    for at, change in events:
        integral += inside * (at - last)
        inside, last = inside + change, at
    assert integral == int((records.finish_ps - records.arrival_ps).sum())
    assert inside == 0


class Invariants:
    """Everything in verification's list that one step can show."""

    def __init__(self, limits: SchedulerLimits, *, drafts: bool = False) -> None:
        self.limits = limits
        self.drafts = drafts
        self.computed: dict[int, tuple[int, int]] = {}  # request: (epoch, tokens whose KV is scheduled)
        self.emitted: dict[int, int] = {}
        self.first_seen: list[int] = []
        self.last_end = 0
        self.tokens = 0

    def __call__(self, step: Step, engine: Engine) -> None:
        limits = self.limits
        rows = step.rows
        assert len({row.sequence.index for row in rows}) == len(rows)
        assert sum(row.tokens for row in rows) <= limits.max_num_batched_tokens
        assert len(engine.policy.running) <= limits.max_num_seqs  # type: ignore[attr-defined]
        assert step.end >= self.last_end
        assert not rows or step.end > step.start
        self.last_end = step.end
        for row in rows:
            r = row.sequence
            assert row.tokens > 0
            assert step.start >= r.arrival
            assert row.computed + row.tokens <= limits.max_model_len
            epoch, until = self.computed.get(r.index, (-1, 0))
            if epoch != row.epoch:
                assert row.computed == row.cached
                assert row.cached % engine.pool.block_size == 0
            elif not self.drafts:
                assert row.computed == until
            self.computed[r.index] = (row.epoch, row.computed + row.tokens)
            self.tokens += row.tokens
            if r.index not in self.emitted:
                self.emitted[r.index] = 0
                self.first_seen.append(r.index)
        for r, tokens in step.emitted:
            self.emitted[r.index] += tokens
        if not engine._in_flight:
            check_block_pool(engine.pool, [r.table for r in engine.policy.running])  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async"])
@pytest.mark.parametrize("speculative", [False, True])
def test_invariants_hold_after_every_step(policy: str, speculative: bool) -> None:
    for seed in range(60):
        workload, options = random_run(seed)
        invariants = Invariants(options["limits"], drafts=speculative)
        if speculative:
            if options["limits"].max_num_batched_tokens < 8:
                continue
            options["speculation"] = Speculation(2, (0, 1, 2), lookahead_slots=2)
            options["num_blocks"] += 12
        pools: list[Any] = []

        def observe(
            step: Step, engine: Engine, inv: Invariants = invariants, pools: list[Any] = pools
        ) -> None:
            inv(step, engine)
            pools[:] = [engine.pool]

        result = run_engine(workload, **options | {"policy": policy, "observer": observe})
        assert result.status == "complete"
        assert pools[0].free_blocks == options["num_blocks"]  # nothing leaks
        ends = np.minimum(workload.output_tokens, options["limits"].max_model_len - workload.prompt_tokens)
        assert [invariants.emitted[i] for i in range(len(workload))] == ends.tolist()
        records = result.records
        assert (records.arrival_ps <= records.first_scheduled_ps).all()
        assert (records.first_scheduled_ps < records.first_token_ps).all()
        assert (records.first_token_ps <= records.finish_ps).all()
        if not options["limits"].priority and workload.concurrency is None:
            assert invariants.first_seen == sorted(invariants.first_seen)  # first come, first scheduled
        if not speculative and result.preemptions == 0 and not options["enable_prefix_caching"]:
            assert invariants.tokens == int((workload.prompt_tokens + ends).sum()) - len(workload)


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async", "static"])
def test_an_impossible_request_is_reported(policy: str) -> None:
    workload = Workload(
        arrival_s=np.zeros(2), prompt_tokens=np.array([100, 4]), output_tokens=np.array([5, 5])
    )
    result = simulate(
        workload, EngineSetup(step_times=AffineStepTimes(0.01, 0.001), num_blocks=3, policy=policy)
    )
    assert result.status == "stalled"
    assert result.reason is not None
    assert "KV blocks" in result.reason
    assert result.summary.completed == 0


def test_time_series_shows_the_queue() -> None:
    workload = Workload(
        arrival_s=np.array([0.0, 0.0, 0.0, 5.0]),
        prompt_tokens=np.array([4] * 4),
        output_tokens=np.array([50] * 4),
    )
    result = simulate(
        workload,
        EngineSetup(
            step_times=AffineStepTimes(0.01, 0.001), num_blocks=100, limits=SchedulerLimits(max_num_seqs=2)
        ),
        sample_interval_s=0.25,
    )
    assert [s.time_s for s in result.series[:3]] == [0.0, 0.25, 0.5]
    assert (result.series[1].running, result.series[1].waiting) == (2, 1)
    assert result.series[12].running == 0
    assert result.series[12].kv_used_blocks == 0


@pytest.mark.parametrize("engine_loop", ["events", "auto"])
def test_results_wait_until_the_next_prompts_are_launched(engine_loop: str) -> None:
    """Three prompts, one a step of a second: the first two tokens come half a step late, the last in time.

    Who arrives while the results wait is in the step that is decided then: the fourth, at 1.2 s, follows the third.
    """
    count = 4
    result = simulate(
        Workload(
            arrival_s=np.array([0.0, 0.0, 0.0, 1.2]),
            prompt_tokens=np.full(count, 10, dtype=np.int64),
            output_tokens=np.ones(count, dtype=np.int64),
        ),
        EngineSetup(
            step_times=AffineStepTimes(1.0, 0.0),
            num_blocks=100,
            policy="tensorrt-llm",
            policy_options={"prompts_per_step": 1},
            launch_lag=0.5,
        ),
        engine_loop=engine_loop,
    )
    assert (result.records.first_token_ps / PS_PER_S).tolist() == [1.5, 2.5, 3.5, 4.0]
