"""A small continuous-batching engine: the package's scheduler policies drive a real transformer in real time.

Each step is scheduled by the same policy object as in the simulator, with block tables from the simulator's KV pool.
The run is then compared with the simulation step by step and request by request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING, Any

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
from capacity_validate.step_inputs import InputRow
from capacity_validate.timing import RunClock

if TYPE_CHECKING:
    from capacity_validate.transformer import GraphedTransformer, Transformer

BLOCK_TOKENS = 16
POLICY = "vllm-v1"  # synchronous: this loop reads each step's tokens before it schedules the next


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """A step of a real run: times, shape, and (request, new tokens, tokens computed before) for each request."""

    start_s: float
    end_s: float
    shape: StepShape
    rows: tuple[tuple[int, int, int], ...]  # request, new tokens, computed before

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """The result of serving a workload with the real loop: request times, steps, and generated tokens."""

    workload: Workload
    limits: SchedulerLimits
    num_blocks: int
    records: RequestTable
    steps: tuple[EngineStep, ...]
    taken_at_step: tuple[int, ...]  # the scheduling decision before which each request was accepted
    tokens: tuple[tuple[int, ...], ...]  # tokens of each request, prompt first
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
    """Return requests with exponential inter-arrival times from 0 s and uniform lengths in inclusive ranges."""
    rng = np.random.default_rng(seed)
    arrivals = np.concatenate([[0.0], np.cumsum(rng.exponential(1.0 / rate_per_s, requests - 1))])
    return Workload(
        arrival_s=arrivals,
        prompt_tokens=rng.integers(prompt_tokens[0], prompt_tokens[1] + 1, requests),
        output_tokens=rng.integers(output_tokens[0], output_tokens[1] + 1, requests),
        name="poisson",
    )


def run_engine(
    executor: "Transformer | GraphedTransformer",
    workload: Workload,
    limits: SchedulerLimits,
    *,
    clock: RunClock | None = None,
    seed: int = 0,
) -> EngineRun:
    """Serve `workload` with real steps. `clock` measures wall time, or the CPU time of this thread."""
    loop = _ServingLoop(executor, workload, limits, clock=clock or RunClock(), seed=seed)
    while loop.finished < len(workload):
        loop.take_arrivals()
        loop.step()
    return loop.result()


class _ServingLoop:
    """The continuous-batching loop. Each step schedules requests, runs the model, and records tokens and times."""

    def __init__(
        self,
        executor: "Transformer | GraphedTransformer",
        workload: Workload,
        limits: SchedulerLimits,
        *,
        clock: RunClock,
        seed: int,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.executor, self.workload, self.limits, self.clock = executor, workload, limits, clock
        self.pool = BlockPool(
            executor.num_blocks,
            BLOCK_TOKENS,
            prefix_caching=False,
            max_model_len=limits.max_model_len,
            in_flight_tokens=limits.max_num_batched_tokens,
        )
        self.policy = make_policy(POLICY, limits, self.pool)
        self.tokens: list[list[int]] = [
            rng.integers(0, executor.model.vocab_size, int(n)).tolist() for n in workload.prompt_tokens
        ]
        self.first_scheduled_s: dict[int, float] = {}
        self.first_token_s: dict[int, float] = {}
        self.finish_s: dict[int, float] = {}
        self.blocks: dict[int, np.ndarray] = {}  # block ids of running requests, in the executor's format
        self.steps: list[EngineStep] = []
        self.taken_at_step: list[int] = []
        self.preemptions = 0

    @property
    def finished(self) -> int:
        return len(self.finish_s)

    def take_arrivals(self) -> None:
        """Pass every request that has arrived to the scheduler."""
        self.now_s = self.clock.now_s()
        arrival_s = self.workload.arrival_s
        while (sent := len(self.taken_at_step)) < len(arrival_s) and arrival_s[sent] <= self.now_s:
            prompt = int(self.workload.prompt_tokens[sent])
            self.policy.add(
                Request(
                    sent,
                    id=sent,
                    arrival=int(arrival_s[sent] * PS_PER_S),
                    prompt_tokens=prompt,
                    max_known=prompt + int(self.workload.output_tokens[sent]),
                    priority=0,
                    table=self.pool.table(Content(sent)),
                )
            )
            self.taken_at_step.append(len(self.steps))

    def step(self) -> None:
        """Run one step, or wait for the next arrival if nothing can run."""
        # decide
        step = self.policy.schedule(int(self.now_s * PS_PER_S)) if self.policy.unfinished else None
        if step is None or not step.rows:
            if (sent := len(self.taken_at_step)) < len(self.workload):
                self.clock.wait_until(float(self.workload.arrival_s[sent]))
            return
        self.preemptions += len(step.preempted)
        for sequence in step.preempted:
            self.blocks.pop(sequence.index, None)
        # compute
        ordered = sorted(step.rows, key=lambda row: row.tokens > 1)
        for row in ordered:
            self.first_scheduled_s.setdefault(row.sequence.index, self.now_s)
        inputs = self.executor.inputs(
            [
                InputRow(
                    tokens=self.tokens[row.sequence.index][row.computed : row.computed + row.tokens],
                    computed=row.computed,
                    blocks=self._blocks(row.sequence.index, row.sequence.table.blocks[0]),
                    samples=1 if row.yields else 0,
                )
                for row in ordered
            ]
        )
        shape = sum_rows(step.rows, self.executor.model.window_tokens)
        sampled = iter(self.executor.next_tokens(inputs))
        # account
        end_s = self.clock.now_s()
        for row in ordered:
            if row.yields:
                self.tokens[row.sequence.index].append(next(sampled))
                self.first_token_s.setdefault(row.sequence.index, end_s)
        rows = tuple((row.sequence.index, row.tokens, row.computed) for row in step.rows)
        self.finish_s |= {request.index: end_s for request in self.policy.update(step)}
        self.steps.append(EngineStep(start_s=self.now_s, end_s=self.clock.now_s(), shape=shape, rows=rows))

    def _blocks(self, index: int, held: Sequence[int]) -> np.ndarray:
        """Return a request's KV block ids as an array. Only new ids are converted, as in real engines."""
        known = self.blocks.get(index, np.empty(0, dtype=np.int64))
        if len(known) < len(held):
            known = np.concatenate([known, np.asarray(held[len(known) :], dtype=np.int64)])
            self.blocks[index] = known
        return known[: len(held)]

    def result(self) -> EngineRun:
        return EngineRun(
            workload=self.workload,
            limits=self.limits,
            num_blocks=self.executor.num_blocks,
            records=RequestTable.from_records(self._record(i) for i in range(len(self.workload))),
            steps=tuple(self.steps),
            taken_at_step=tuple(self.taken_at_step),
            tokens=tuple(map(tuple, self.tokens)),
            preemptions=self.preemptions,
        )

    def _record(self, index: int) -> RequestRecord:
        return RequestRecord(
            index=index,
            arrival_s=float(self.workload.arrival_s[index]),
            first_scheduled_s=self.first_scheduled_s.get(index),
            first_token_s=self.first_token_s.get(index),
            finish_s=self.finish_s.get(index),
            prompt_tokens=int(self.workload.prompt_tokens[index]),
            output_tokens=int(self.workload.output_tokens[index]),
        )


def simulate(
    run: EngineRun, step_times: StepTimes, *, window_tokens: int | None = None, observer: Any = None
) -> SimulationResult:
    """Simulate the workload of a real run, with the same limits and number of KV blocks."""
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
        observer=observer,
    )


def count_equal_steps(run: EngineRun, *, window_tokens: int | None = None) -> int:
    """Return how many steps the run and its simulation schedule identically before the first difference.

    This simulation does not depend on real time: every step takes one time unit, and a request arrives at time n if
    the real loop accepted it just before step n. The two must therefore schedule exactly the same steps.
    """
    simulated: list[tuple[tuple[int, int, int], ...]] = []

    def observe(step: Any, engine: Any) -> None:  # noqa: ARG001
        simulated.append(tuple((row.sequence.index, row.tokens, row.computed) for row in step.rows))

    counted = replace(run, workload=replace(run.workload, arrival_s=np.array(run.taken_at_step, dtype=float)))
    simulate(counted, AffineStepTimes(1.0, 0.0), window_tokens=window_tokens, observer=observe)
    pairs = zip_longest((step.rows for step in run.steps), simulated[: len(run.steps)])
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def step_errors(run: EngineRun, step_times: Any) -> list[tuple[float, float]]:
    """Return (predicted, measured) seconds of every step of the real run."""
    return [(float(step_times.step_seconds(step.shape)), step.seconds) for step in run.steps]
