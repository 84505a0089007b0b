"""A small continuous-batching engine: our own scheduler policies drive a real transformer on a real clock.

The same policy object that the simulator asks decides each step; block tables are those of its KV pool. What it did,
step by step and request by request, is then compared with what the simulator says it would do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capacity.simulator import EngineSetup, SimulationResult
from capacity.simulator import simulate as simulate_requests
from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.metrics import RequestRecord, RequestTable, summarize
from capacity.simulator.schedulers import SchedulerLimits, make_policy
from capacity.simulator.schedulers import Sequence as Request
from capacity.simulator.shapes import sum_rows
from capacity.step import PS_PER_S, AffineStepTimes, StepShape, StepTimes
from capacity.workload import Workload
from capacity_validate.timing import RunClock

BLOCK_TOKENS = 16
POLICY = "vllm-v1"  # synchronous: this loop reads each step's tokens before it schedules the next


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStep:
    """One step as it happened: instants on the run's clock, its shape, and each row's request, tokens and context."""

    start_s: float
    end_s: float
    shape: StepShape
    rows: tuple[tuple[int, int, int], ...]  # request, new tokens, computed before

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """What the real engine did with a workload."""

    workload: Workload
    limits: SchedulerLimits
    num_blocks: int
    records: RequestTable
    steps: tuple[ServedStep, ...]
    taken_at_step: tuple[int, ...]  # before which decision each request was taken in
    tokens: tuple[tuple[int, ...], ...]  # of each request, prompt first
    preemptions: int

    @property
    def summary(self) -> dict[str, Any]:
        return summarize(self.records).to_dict()

    @property
    def busy_s(self) -> float:
        return sum(step.seconds for step in self.steps)


def poisson_workload(
    *,
    requests: int,
    rate_per_s: float,
    prompt_tokens: tuple[int, int],
    output_tokens: tuple[int, int],
    seed: int,
) -> Workload:
    """Exponential gaps from 0 s on, lengths uniform over inclusive ranges."""
    rng = np.random.default_rng(seed)
    arrivals = np.concatenate([[0.0], np.cumsum(rng.exponential(1.0 / rate_per_s, requests - 1))])
    return Workload(
        arrival_s=arrivals,
        prompt_tokens=rng.integers(prompt_tokens[0], prompt_tokens[1] + 1, requests),
        output_tokens=rng.integers(output_tokens[0], output_tokens[1] + 1, requests),
        name="poisson",
    )


def serve(
    model: Any, workload: Workload, limits: SchedulerLimits, *, clock: RunClock | None = None, seed: int = 0
) -> ServedRun:
    """Serve `workload` with a `Transformer`, on `clock`: the wall's, or a CPU thread's own."""
    from capacity_validate.transformer import Row

    rng = np.random.default_rng(seed)
    pool = BlockPool(
        model.num_blocks,
        BLOCK_TOKENS,
        prefix_caching=False,
        max_model_len=limits.max_model_len,
        in_flight_tokens=limits.max_num_batched_tokens,
    )
    policy = make_policy(POLICY, limits, pool)
    count = len(workload)
    tokens: list[list[int]] = [
        rng.integers(0, model.model.vocab_size, int(n)).tolist() for n in workload.prompt_tokens
    ]
    first_scheduled: list[float | None] = [None] * count
    first_token: list[float | None] = [None] * count
    finish: list[float | None] = [None] * count
    steps: list[ServedStep] = []
    taken_at_step: list[int] = []
    preemptions = 0
    clock = clock or RunClock()
    sent = finished = 0
    while finished < count:
        now_s = clock.now_s()
        while sent < count and workload.arrival_s[sent] <= now_s:
            policy.add(_request(workload, sent, pool))
            taken_at_step.append(len(steps))
            sent += 1
        # decide
        step = policy.schedule(int(now_s * PS_PER_S)) if policy.unfinished else None
        if step is None or not step.rows:
            if sent < count:
                clock.wait_until(float(workload.arrival_s[sent]))
            continue
        preemptions += len(step.preempted)
        # compute
        ordered = sorted(step.rows, key=lambda row: row.tokens > 1)
        for row in ordered:
            if first_scheduled[row.sequence.index] is None:
                first_scheduled[row.sequence.index] = now_s
        inputs = model.inputs(
            [
                Row(
                    tokens=tokens[row.sequence.index][row.computed : row.computed + row.tokens],
                    computed=row.computed,
                    blocks=row.sequence.table.blocks[0],
                    samples=1 if row.yields else 0,
                )
                for row in ordered
            ]
        )
        shape = sum_rows(step.rows, model.model.window_tokens)
        chosen = iter(model.next_tokens(inputs))
        # account
        end_s = clock.now_s()
        for row in ordered:
            if row.yields:
                index = row.sequence.index
                tokens[index].append(next(chosen))
                if first_token[index] is None:
                    first_token[index] = end_s
        rows = tuple((row.sequence.index, row.tokens, row.computed) for row in step.rows)
        for request in policy.update(step):
            finish[request.index] = end_s
            finished += 1
        steps.append(ServedStep(start_s=now_s, end_s=clock.now_s(), shape=shape, rows=rows))
    records = RequestTable.of(
        RequestRecord(
            index=i,
            arrival_s=float(workload.arrival_s[i]),
            first_scheduled_s=first_scheduled[i],
            first_token_s=first_token[i],
            finish_s=finish[i],
            prompt_tokens=int(workload.prompt_tokens[i]),
            output_tokens=int(workload.output_tokens[i]),
        )
        for i in range(count)
    )
    return ServedRun(
        workload=workload,
        limits=limits,
        num_blocks=model.num_blocks,
        records=records,
        steps=tuple(steps),
        taken_at_step=tuple(taken_at_step),
        tokens=tuple(map(tuple, tokens)),
        preemptions=preemptions,
    )


def _request(workload: Workload, index: int, pool: BlockPool) -> Request:
    prompt = int(workload.prompt_tokens[index])
    return Request(
        index,
        id=index,
        arrival=int(workload.arrival_s[index] * PS_PER_S),
        prompt_tokens=prompt,
        max_known=prompt + int(workload.output_tokens[index]),
        priority=0,
        table=pool.table(Content(index)),
    )


# comparison


def simulate(
    run: ServedRun, step_times: StepTimes, *, window_tokens: int | None = None, observer: Any = None
) -> SimulationResult:
    """What the simulator says of the same workload, limits and KV blocks."""
    return simulate_requests(
        run.workload,
        EngineSetup(
            step_times=step_times,
            num_blocks=run.num_blocks,
            block_size=BLOCK_TOKENS,
            policy=POLICY,
            limits=run.limits,
            enable_prefix_caching=False,
            window_tokens=window_tokens,
        ),
        mode="jump" if observer is None else "step",
        observer=observer,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleMatch:
    """How far the simulator's schedule follows the real one."""

    steps: int
    equal_steps: int  # from the first on, until they part
    reason: str | None

    @property
    def complete(self) -> bool:
        return self.equal_steps == self.steps


def match_schedule(run: ServedRun, *, window_tokens: int | None = None) -> ScheduleMatch:
    """Replay the run in the simulator, step for step, on a clock that counts decisions.

    Every step takes one unit there, and a request arrives at the decision before which the real loop took it in: so
    nothing depends on when the real clock was read, and rows must be equal without tolerance.
    """
    simulated: list[tuple[tuple[int, int, int], ...]] = []

    def observe(step: Any, engine: Any) -> None:  # noqa: ARG001
        simulated.append(tuple((row.sequence.index, row.tokens, row.computed) for row in step.rows))

    counted = replace(run, workload=replace(run.workload, arrival_s=np.array(run.taken_at_step, dtype=float)))
    simulate(counted, AffineStepTimes(1.0, 0.0), window_tokens=window_tokens, observer=observe)
    for position, real in enumerate(run.steps):
        if position >= len(simulated) or simulated[position] != real.rows:
            return ScheduleMatch(
                steps=len(run.steps), equal_steps=position, reason=f"step {position} differs"
            )
    return ScheduleMatch(steps=len(run.steps), equal_steps=len(run.steps), reason=None)


def step_errors(run: ServedRun, step_times: Any) -> list[tuple[float, float]]:
    """(predicted, measured) seconds of every step of the real run."""
    return [(float(step_times.step_seconds(step.shape)), step.seconds) for step in run.steps]
