"""The simulator against queueing theory, conservation laws and its own symmetries."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_pools import check_block_pool
from engine_runs import COLUMNS, random_run, run_engine

from capacity.base.errors import InvalidInput
from capacity.simulator import Engine, EngineSetup, SimulationResult, simulate
from capacity.simulator.samples import parallel_samples
from capacity.simulator.schedulers import DrawnSpeculation, SchedulerLimits, Speculation, Step
from capacity.simulator.timeline import Timeline
from capacity.simulator.transfer import KvLink
from capacity.step import PS_PER_S, AffineStepTimes, DecodePiece, FunctionStepTimes, StepShape
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


def test_a_full_queue_turns_requests_away() -> None:
    """M/M/1/K loses (1-ρ) ρ^K / (1 - ρ^(K+1)) of its customers; here K = 3 and ρ = 0.8."""
    count, load, places = 30_000, 0.8, 3
    rng = np.random.default_rng(5)
    ones = np.ones(count, dtype=np.int64)
    arrivals = np.cumsum(rng.exponential(1 / load, count))
    result = simulate(
        Workload(arrival_s=arrivals, prompt_tokens=ones, output_tokens=ones),
        EngineSetup(
            step_times=FunctionStepTimes(lambda _: float(rng.exponential(1.0))),
            num_blocks=4,
            policy="slots",
            policy_options={"max_waiting": places - 1},
            limits=ONE_SERVER,
        ),
    )
    expected = (1 - load) * load**places / (1 - load ** (places + 1))
    assert result.rejected / count == pytest.approx(
        expected, abs=4 * (expected * (1 - expected) / count * 3) ** 0.5
    )
    assert result.summary.failed == result.rejected


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

        result = run_engine(workload, **options | {"policy": policy, "observer": observe, "mode": "step"})
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


def same(a: SimulationResult, b: SimulationResult, rows: int, scale: int = 1) -> bool:
    instants = {"arrival_ps", "first_scheduled_ps", "first_token_ps", "finish_ps"}
    return all(
        (getattr(a.records, c)[:rows] * (scale if c in instants else 1) == getattr(b.records, c)[:rows]).all()
        for c in COLUMNS
    )


def open_run(seed: int) -> tuple[Workload, dict[str, Any]]:
    workload, options = random_run(seed)
    options["step_times"] = AffineStepTimes(0.01, 0.001, per_context_token_s=1e-6)
    return replace(workload, concurrency=None), options


def test_exact_symmetries() -> None:
    """Time scaled by four, a request added after the end, a run repeated: nothing else may change."""
    for seed in range(60):
        workload, options = open_run(seed)
        base = run_engine(workload, **options)
        assert same(base, run_engine(workload, **options), len(workload))
        slow = AffineStepTimes(0.04, 0.004, per_context_token_s=4e-6)
        grid = np.rint(workload.arrival_s * PS_PER_S) / PS_PER_S
        slower = run_engine(replace(workload, arrival_s=grid * 4), **options | {"step_times": slow})
        assert same(base, slower, len(workload), 4)
        count = len(workload)
        longer = replace(
            workload,
            arrival_s=np.append(workload.arrival_s, base.summary.duration + workload.arrival_s[0] + 1),
            prompt_tokens=np.append(workload.prompt_tokens, 5),
            output_tokens=np.append(workload.output_tokens, 5),
            priority=None if workload.priority is None else np.append(workload.priority, 0),
            content=None,
        )
        plain = run_engine(replace(workload, content=None), **options)
        assert same(plain, run_engine(longer, **options), count)


def test_tendencies_in_aggregate() -> None:
    """Scheduling anomalies are real, so of more memory only the mean over runs may be asserted."""
    worse = more_tokens = 0
    faster_total = base_total = 0.0
    for seed in range(80):
        workload, options = open_run(seed)
        base = run_engine(workload, **options)
        roomy = run_engine(workload, **options | {"num_blocks": 2 * options["num_blocks"]})
        worse += roomy.summary.duration > base.summary.duration
        fast = AffineStepTimes(0.005, 0.0005, per_context_token_s=5e-7)
        quick = run_engine(workload, **options | {"step_times": fast})
        assert quick.summary.duration <= base.summary.duration
        base_total += base.summary.duration
        faster_total += quick.summary.duration
        more_tokens += roomy.preemptions > base.preemptions
    assert worse <= 3
    assert more_tokens <= 3
    assert faster_total < base_total


def test_caching_without_anything_shared_changes_nothing() -> None:
    for seed in range(40):
        workload, options = open_run(seed)
        workload = replace(workload, content=None)
        options["num_blocks"] += 4000  # nothing is evicted, nobody preempted
        on = run_engine(workload, **options | {"enable_prefix_caching": True})
        off = run_engine(workload, **options | {"enable_prefix_caching": False})
        assert same(on, off, len(workload))


def test_output_of_one_token_ends_with_its_prompt() -> None:
    workload = Workload(arrival_s=np.zeros(1), prompt_tokens=np.array([9]), output_tokens=np.array([1]))
    result = simulate(workload, EngineSetup(step_times=AffineStepTimes(0.01, 0.001), num_blocks=5))
    record = result.records[0]
    assert record.first_token_s == record.finish_s == 0.019
    assert record.tpot_s is None
    assert result.summary.tpot_ms is None
    assert result.steps == 1


def test_closed_loop_keeps_its_concurrency() -> None:
    """C requests in flight at all times: with equal ones, N / C generations of the same length."""
    ones = np.full(40, 1)
    workload = Workload(
        arrival_s=0.0 * ones, prompt_tokens=100 * ones, output_tokens=20 * ones, concurrency=4
    )
    result = simulate(
        workload, EngineSetup(step_times=AffineStepTimes(0.006, 2e-5), num_blocks=2600, policy="vllm-v1")
    )
    generation = (0.006 + 400 * 2e-5) + 19 * (0.006 + 4 * 2e-5)
    assert result.summary.duration == pytest.approx(10 * generation, rel=1e-12)
    assert result.mean_batch_size == 4


def test_prompts_without_room_are_turned_away() -> None:
    workload = Workload(
        arrival_s=np.zeros(3), prompt_tokens=np.array([31, 32, 33]), output_tokens=np.array([5, 5, 5])
    )
    result = simulate(
        workload,
        EngineSetup(
            step_times=AffineStepTimes(0.01, 0.001), num_blocks=50, limits=SchedulerLimits(max_model_len=32)
        ),
    )
    assert result.rejected == result.summary.failed == 2
    assert result.records[0].output_tokens == 1


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


def test_bad_sizes_are_refused() -> None:
    workload = Workload(arrival_s=np.zeros(1), prompt_tokens=np.array([1]), output_tokens=np.array([1]))
    with pytest.raises(InvalidInput, match="KV cache"):
        simulate(workload, EngineSetup(step_times=AffineStepTimes(1, 1), num_blocks=0))
    with pytest.raises(InvalidInput, match="vllm-v1"):
        simulate(workload, EngineSetup(step_times=AffineStepTimes(1, 1), num_blocks=1, policy="vllm-v9"))


def test_static_batch_by_hand() -> None:
    """Window 1 s, two members: padded prompts of 8 in one step, then decodes of both until the longer one ends."""
    workload = Workload(
        arrival_s=np.array([0.0, 0.2, 0.3]),
        prompt_tokens=np.array([8, 3, 4]),
        output_tokens=np.array([2, 5, 1]),
    )
    result = simulate(
        workload,
        EngineSetup(
            step_times=AffineStepTimes(0.01, 0.001),
            num_blocks=100,
            policy="static",
            policy_options={"batching_window_s": 1.0},
            limits=SchedulerLimits(max_num_seqs=2),
        ),
    )
    prefill, decode = 0.01 + 16 * 0.001, 0.01 + 2 * 0.001
    start = 0.2  # the batch is full
    first = [r.first_token_s for r in result.records]
    finish = [r.finish_s for r in result.records]
    assert first[0] == first[1] == pytest.approx(start + prefill)
    assert finish[0] == pytest.approx(start + prefill + decode)
    assert finish[1] == pytest.approx(start + prefill + 4 * decode)
    assert finish[2] == pytest.approx(0.3 + 1.0 + 0.014)  # the window of the lone third


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


SAME_BYTES = """
import json, sys
sys.path.insert(0, {tests!r})
from engine_runs import random_run, run_engine
out = []
for seed in range(12):
    workload, options = random_run(seed)
    result = run_engine(workload, **options)
    out.append([result.to_dict(), result.records.finish_ps.tolist(), workload.fingerprint()])
print(json.dumps(out))
"""


def test_same_bytes_whatever_the_hash_seed() -> None:
    tests = Path(__file__).parents[1]
    answers = set()
    for seed in ("0", "1", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(tests.parent)}
        script = SAME_BYTES.format(tests=str(tests))
        answers.add(
            subprocess.run(
                [sys.executable, "-c", script], env=environment, capture_output=True, check=True
            ).stdout
        )
    assert len(answers) == 1
    assert len(json.loads(answers.pop())) == 12


def test_speculation_emits_one_and_the_accepted() -> None:
    """k = 3, all accepted: every decode step brings four tokens; none accepted: one."""
    rng = random.Random(0)
    workload = Workload(
        arrival_s=np.zeros(1), prompt_tokens=np.array([rng.randint(5, 9)]), output_tokens=np.array([41])
    )
    for accepted, steps in ((3, 1 + 10), (0, 1 + 40)):
        speculation = Speculation(3, (accepted,), lookahead_slots=3)
        result = simulate(
            workload,
            EngineSetup(
                step_times=AffineStepTimes(0.01, 0.001),
                num_blocks=50,
                policy="vllm-v1",
                speculation=speculation,
            ),
        )
        assert result.steps == steps
        assert result.summary.total_output_tokens == 41


def test_drawn_acceptance_has_its_mean() -> None:
    """i.i.d. acceptance a, k drafts: (1 - a^(k+1)) / (1 - a) tokens a step; the draw ignores the rest of the batch."""
    rate, drafts = 0.7, 4
    speculation = DrawnSpeculation((rate,) * drafts, lookahead_slots=drafts, seed=3)
    workload = Workload(arrival_s=np.zeros(20), prompt_tokens=np.full(20, 5), output_tokens=np.full(20, 2000))
    options: dict[str, Any] = {
        "step_times": AffineStepTimes(0.01, 0.001),
        "num_blocks": 4000,
        "policy": "vllm-v1",
        "speculation": speculation,
    }
    together = run_engine(workload, **options)
    steps = round(together.mean_batch_size * together.steps)
    expected = (1 - rate ** (drafts + 1)) / (1 - rate)
    assert (20 * 2000) / steps == pytest.approx(expected, rel=0.02)
    alone = run_engine(workload, **options, limits=SchedulerLimits(max_num_seqs=1))
    assert round(alone.mean_batch_size * alone.steps) == pytest.approx(steps, abs=25)
    with pytest.raises(InvalidInput, match="0 to 1"):
        DrawnSpeculation((1.2,), lookahead_slots=1)


def test_timeline_covers_the_run() -> None:
    workload = random_requests(num_requests=12, input_len=40, output_len=9, request_rate_per_s=20.0)
    timeline = Timeline()
    result = simulate(
        workload, EngineSetup(step_times=AffineStepTimes(0.01, 1e-4), num_blocks=30), observer=timeline
    )
    trace = json.loads(json.dumps(timeline.chrome_trace(result.records)))
    steps = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert len(steps) == result.steps
    assert sum(e["args"]["prefill_tokens"] for e in steps) >= int(workload.prompt_tokens.sum())
    lives = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 2]
    total_s = sum(e["dur"] for e in lives) / 1e6
    assert total_s == pytest.approx(sum(r.e2e_s for r in result.records if r.e2e_s is not None))


def test_samples_share_their_prompt() -> None:
    """Four samples of 65 prompt tokens: four full blocks of 16 are computed once, one token by each of the others."""
    workload = Workload(arrival_s=np.zeros(1), prompt_tokens=np.array([65]), output_tokens=np.array([4]))
    result = simulate(
        parallel_samples(workload, 4),
        EngineSetup(step_times=AffineStepTimes(0.01, 0.001), num_blocks=50, block_size=16),
    )
    assert result.records.cached_tokens.tolist() == [0, 64, 64, 64]
    assert result.kv_utilization_peak == (4 + 4) / 50


def test_an_interrupted_run_shows_what_was_done() -> None:
    workload = random_requests(num_requests=50, input_len=20, output_len=10, request_rate_per_s=5.0)

    def interrupt(step: Step, engine: Engine) -> None:  # noqa: ARG001
        if step.end > 4 * PS_PER_S:
            raise KeyboardInterrupt

    settings = {"step_times": AffineStepTimes(0.01, 1e-4), "num_blocks": 30, "observer": interrupt}
    with pytest.raises(KeyboardInterrupt):  # half a run is no answer to who asked for a whole one
        run_engine(workload, **settings)
    result = run_engine(workload, **settings, keep_interrupted=True)
    assert result.status == "interrupted"
    assert result.reason is not None
    assert "4.0" in result.reason
    assert 10 < result.summary.completed < 30


def test_memory_stays_bounded() -> None:
    """100,000 requests in a process of its own: live requests and columns, no per-token state."""
    benchmark = Path(__file__).parents[2] / "benchmarks" / "simulation_speed.py"
    command = [sys.executable, str(benchmark), "--alone", "100000"]
    environment = os.environ | {"PYTHONPATH": str(benchmark.parent.parent)}
    answer = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
    assert json.loads(answer)["peak_mb"] < 200


def test_arrivals_beyond_the_clock_are_refused_in_one_line() -> None:
    late = Workload(arrival_s=[0.0, 1e7], prompt_tokens=[10, 10], output_tokens=[2, 2])
    with pytest.raises(InvalidInput, match="arrives after 1e"):
        simulate(late, EngineSetup(step_times=AffineStepTimes(0.01, 0.001), num_blocks=10))


# what a run shows and keeps, whatever stands before the engines

ENGINE = EngineSetup(step_times=AffineStepTimes(0.01, 1e-4), num_blocks=40)
LINK = KvLink(bytes_per_token=1e3, bytes_per_s=1e9)
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "an engine": {"setups": ENGINE},
    "data-parallel ranks": {"setups": replace(ENGINE, data_parallel_size=2)},
    "behind a queue limit": {"setups": ENGINE, "queue_limit": 10**6},
    "replicas": {"setups": [ENGINE] * 3, "router": "least-outstanding"},
    "disaggregated": {
        "setups": [replace(ENGINE, role="prefill"), replace(ENGINE, role="decode")],
        "link": LINK,
    },
}
WORKLOADS = {
    "open": random_requests(
        num_requests=401, input_len=30, output_len=20, request_rate_per_s=9.0, burstiness=1.0, seed=3
    ),
}
WORKLOADS["closed"] = WORKLOADS["open"].in_closed_loop(6)


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_progress_samples_work_and_observers_reach_every_deployment(name: str, kind: str) -> None:
    workload, reports, steps = WORKLOADS[kind], [], []

    def observe(step: Step, engine: Engine) -> None:
        steps.append((step.end, engine.kv_used_blocks))

    shown: dict[str, Any] = {"keep_work": True, "sample_interval_s": 0.5}
    run = simulate(
        workload, **DEPLOYMENTS[name], **shown, progress=lambda done, total: reports.append((done, total))
    )
    assert reports == [(done, 401) for done in range(2, 402, 2)]
    stepped = simulate(workload, **DEPLOYMENTS[name], **shown, observer=observe)
    assert stepped.to_dict() == run.to_dict()
    assert len(steps) == run.steps
    assert len(run.step_work) == len(run.replicas)
    assert sum(replica.requests for replica in run.replicas) >= 401
    assert [sample.time_s for sample in run.series[:3]] == [0.0, 0.5, 1.0]
    assert max(sample.running for sample in run.series) > 0
    assert max(sample.kv_used_blocks for sample in run.series) > 0
    if name != "disaggregated":  # there a leap may not have taken the blocks of the step after next
        assert run.series == stepped.series


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_an_interrupt_keeps_what_every_deployment_has_done(name: str) -> None:
    def interrupt(done: int, total: int) -> None:  # noqa: ARG001
        if done == 200:
            raise KeyboardInterrupt

    run = simulate(WORKLOADS["open"], **DEPLOYMENTS[name], progress=interrupt, keep_interrupted=True)
    assert run.status == "interrupted"
    assert run.reason is not None
    assert "s of simulated time" in run.reason
    assert 199 <= run.summary.completed <= 201
    with pytest.raises(KeyboardInterrupt):
        simulate(WORKLOADS["open"], **DEPLOYMENTS[name], progress=interrupt)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_stall_is_told_by_every_deployment(name: str) -> None:
    """A prompt of 700 tokens never finds its 44 blocks among 40."""
    large = Workload(
        arrival_s=np.array([0.0, 1.0]), prompt_tokens=np.array([700, 10]), output_tokens=np.array([5, 5])
    )
    run = simulate(large, **DEPLOYMENTS[name])
    assert run.status == "stalled"
    assert run.reason is not None
    assert "KV blocks than" in run.reason
