"""One serving engine on a SimPy clock: arrivals in, steps decided by a policy, records and a summary out.

Simulated time is whole picoseconds. The engine loop is decide, compute, account, as in the engine itself, with as
many steps in flight as the policy asks for: one (synchronous), two (asynchronous), one per pipeline stage.
It knows no roofline: a step's duration is whatever the `StepTimes` that it is given says.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import simpy

from capacity.errors import InvalidInput, Stalled
from capacity.kv_cache.block_pool import BlockPool
from capacity.kv_cache.content import Content
from capacity.metrics import MISSING, GapCounter, LatencySummary, RequestTable, summarize
from capacity.schedulers import Policy, SchedulerLimits, Sequence, Speculation, Step, make_policy
from capacity.step import PS_PER_S, StepShape, StepTimes, picoseconds, windowed_pairs
from capacity.workload import Workload

ZERO_TIME_STEPS = 10_000  # steps without rows in a row: nothing will ever come of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The engine's state at one instant."""

    time_s: float
    running: int
    waiting: int
    kv_used_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """What one engine did with one workload.

    `status`: complete; stalled (`reason` says why nothing can proceed); interrupted. KV utilisation and batch size
    are means over the time and the steps in which the engine was busy. `prefix_cache_hit_fraction` is of the prompt
    tokens at first admission; None where prefix caching is off.
    """

    summary: LatencySummary
    records: RequestTable
    series: tuple[Sample, ...]
    status: Literal["complete", "stalled", "interrupted"]
    reason: str | None
    steps: int
    preemptions: int
    rejected: int
    prefix_cache_hit_fraction: float | None
    kv_utilization_mean: float
    kv_utilization_peak: float
    mean_batch_size: float
    busy_s: float

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.summary.to_dict(),
            "status": self.status,
            "reason": self.reason,
            "rejected": self.rejected,
            "preemptions": self.preemptions,
            "prefix_cache_hit_fraction": self.prefix_cache_hit_fraction,
            "kv_utilization_mean": self.kv_utilization_mean,
            "kv_utilization_peak": self.kv_utilization_peak,
            "mean_batch_size": self.mean_batch_size,
            "steps": self.steps,
        }


class Client:
    """Sends the workload's requests: on the clock, after another's completion, or within a cap on those in flight."""

    def __init__(self, workload: Workload) -> None:
        self._arrival_ps = np.rint(workload.arrival_s * PS_PER_S).astype(np.int64).tolist()
        self._cap = workload.concurrency
        self._in_flight = 0
        self._next = 0
        self._ready: list[tuple[int, int]] = []  # requests that became ready by a completion
        self._held: deque[int] = deque()  # ready, but the cap is reached
        self._followers: dict[int, list[int]] = {}
        self._think_ps: list[int] = []
        if workload.after_request is not None and workload.think_s is not None:
            self._think_ps = np.rint(workload.think_s * PS_PER_S).astype(np.int64).tolist()
            for request, trigger in enumerate(workload.after_request.tolist()):
                if trigger >= 0:
                    self._followers.setdefault(trigger, []).append(request)
            self._timed: Items[int] = np.flatnonzero(workload.after_request < 0).tolist()
        else:
            self._timed = range(len(self._arrival_ps))
        self._timed_ps = [self._arrival_ps[i] for i in self._timed] if self._followers else self._arrival_ps

    def next_ps(self) -> int | None:
        """When the next request will be sent, as far as is known now; None: none is."""
        if self._cap is not None and self._in_flight >= self._cap:
            return None
        times = [self._ready[0][0]] if self._ready else []
        if self._next < len(self._timed_ps):
            times.append(self._timed_ps[self._next])
        return min(times, default=None)

    def take(self, now_ps: int) -> list[tuple[int, int]]:
        """(request, instant sent) of everything sent until now, in order."""
        sent: list[tuple[int, int]] = []
        while True:
            due_ps = self._timed_ps[self._next] if self._next < len(self._timed_ps) else None
            if (
                self._ready
                and self._ready[0][0] <= now_ps
                and (due_ps is None or self._ready[0] < (due_ps, self._timed[self._next]))
            ):
                at_ps, request = heapq.heappop(self._ready)
            elif due_ps is not None and due_ps <= now_ps:
                at_ps, request = due_ps, self._timed[self._next]
                self._next += 1
            else:
                return sent
            if self._cap is not None and self._in_flight >= self._cap:
                self._held.append(request)
            else:
                self._in_flight += 1
                sent.append((request, at_ps))

    def completed(self, request: int, now_ps: int) -> list[tuple[int, int]]:
        """A request is done (or was turned away): (request, instant) of what is sent in its place."""
        self._in_flight -= 1
        for follower in self._followers.pop(request, ()):
            heapq.heappush(self._ready, (now_ps + self._think_ps[follower], follower))
        if self._held and self._cap is not None and self._in_flight < self._cap:
            self._in_flight += 1
            return [(self._held.popleft(), now_ps)]
        return []

    def waiting_by(self, instant_ps: int) -> int:
        """Requests due by then that `take` has not handed out yet."""
        if self._cap is not None:
            return 0
        timed = bisect_right(self._timed_ps, instant_ps, lo=self._next) - self._next
        return timed + sum(1 for at_ps, _ in self._ready if at_ps <= instant_ps)


class Ledger:
    """What happened: columns per request and running sums per step, all in whole numbers."""

    def __init__(self, workload: Workload) -> None:
        count = len(workload)
        blank = array("q", [MISSING]) * count
        zeros = array("q", [0]) * count
        self.arrival_ps = array("q", blank)
        self.first_scheduled_ps = array("q", blank)
        self.first_token_ps = array("q", blank)
        self.finish_ps = array("q", blank)
        self.output_tokens = array("q", zeros)
        self.cached_tokens = array("q", zeros)
        self.preemptions = array("q", zeros)
        self.gaps = GapCounter()
        self.steps = 0
        self.rows = 0
        self.busy_ps = 0
        self.rejected = 0
        self.total_preemptions = 0
        self.kv_block_ps = 0
        self.kv_busy_ps = 0
        self.kv_peak_blocks = 0
        self.hit_tokens = 0
        self.queried_tokens = 0
        self.samples: list[Sample] = []

    def scheduled(self, step: Step, now_ps: int) -> None:
        self.total_preemptions += len(step.preempted)
        for r in step.preempted:
            self.preemptions[r.index] += 1
        if step.rows:
            self.steps += 1
            self.rows += len(step.rows)
        first_scheduled_ps = self.first_scheduled_ps
        for row in step.rows:
            index = row.sequence.index
            if first_scheduled_ps[index] == MISSING:
                first_scheduled_ps[index] = now_ps
                self.cached_tokens[index] = row.cached
                self.hit_tokens += row.cached
                self.queried_tokens += row.sequence.prompt_tokens

    def emitted(self, step: Step, now_ps: int) -> None:
        add = self.gaps.add
        for r, _ in step.emitted:
            if r.last_token == MISSING:
                r.first_token = now_ps
                self.first_token_ps[r.index] = now_ps
            else:
                add(now_ps - r.last_token)
            r.last_token = now_ps

    def finished(self, r: Sequence, now_ps: int) -> None:
        self.finish_ps[r.index] = now_ps
        self.output_tokens[r.index] = r.known - r.prompt_tokens

    def table(self, workload: Workload) -> RequestTable:
        def column(values: array[int]) -> Any:
            return np.frombuffer(values, dtype=np.int64) if len(values) else np.empty(0, dtype=np.int64)

        arrival_ps = column(self.arrival_ps).copy()
        unsent = arrival_ps == MISSING
        arrival_ps[unsent] = np.rint(workload.arrival_s[unsent] * PS_PER_S).astype(np.int64)
        return RequestTable(
            arrival_ps=arrival_ps,
            first_scheduled_ps=column(self.first_scheduled_ps),
            first_token_ps=column(self.first_token_ps),
            finish_ps=column(self.finish_ps),
            prompt_tokens=workload.prompt_tokens,
            output_tokens=column(self.output_tokens),
            cached_tokens=column(self.cached_tokens),
            preemptions=column(self.preemptions),
        )


class StepObserver(Protocol):
    """Sees every completed step of a run that is stepped one at a time."""

    def __call__(self, step: Step, engine: Engine) -> None: ...


class Engine:
    """The engine loop: decide, compute, account."""

    def __init__(
        self,
        env: simpy.Environment,
        policy: Policy,
        pool: Any,
        step_times: StepTimes,
        *,
        client: Client,
        ledger: Ledger,
        new_sequence: Any,
        pipeline_stages: int = 1,
        window_tokens: int | None = None,
        sample_ps: int | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        self.env = env
        self.policy = policy
        self.pool = pool
        self.step_times = step_times
        self.client = client
        self.ledger = ledger
        self.new_sequence = new_sequence
        self.window_tokens = window_tokens
        self.sample_ps = sample_ps
        self.observer = observer
        self.stalled_by: str | None = None
        self._next_sample_ps = 0
        self._stage_free_ps = [0] * pipeline_stages
        self._in_flight: deque[Step] = deque()

    @property
    def now_ps(self) -> int:
        return int(self.env.now)

    def run(self) -> Generator[simpy.Event, None, None]:
        policy, in_flight = self.policy, self._in_flight
        without_rows = 0
        while True:
            self._receive()
            # decide
            if len(in_flight) < policy.steps_in_flight and policy.unfinished:
                step = policy.schedule(self.now_ps)
                if step.rows or step.preempted or step.finished:
                    self._launch(step)
                    without_rows = 0 if step.rows else without_rows + 1
                    if without_rows > ZERO_TIME_STEPS:
                        self.stalled_by = "requests preempt each other without end: the KV cache is too small"
                        return
                    continue
            # compute
            if in_flight:
                step = in_flight.popleft()
                yield from self._sleep_until(step.end)
                self._account(step)
                continue
            wake_ps = self.client.next_ps()
            if wake_ps is None:
                if policy.unfinished:
                    self.stalled_by = self._stall_reason()
                return
            self._idle_samples(wake_ps)
            yield self.env.timeout(wake_ps - self.now_ps)

    def _receive(self) -> None:
        for request, sent_ps in self.client.take(self.now_ps):
            self._submit(request, sent_ps)

    def _submit(self, request: int, sent_ps: int) -> None:
        pending = [(request, sent_ps)]
        while pending:
            index, at_ps = pending.pop()
            self.ledger.arrival_ps[index] = at_ps
            sequence = self.new_sequence(index, at_ps)
            if sequence is None or not self.policy.add(sequence):
                self.ledger.rejected += 1
                pending.extend(self.client.completed(index, at_ps))

    def _launch(self, step: Step) -> None:
        self.ledger.scheduled(step, self.now_ps)
        duration_ps = self.step_times.step_ps(self.shape(step)) if step.rows else 0
        stages = self._stage_free_ps
        share, rest = divmod(duration_ps, len(stages))
        at_ps = self.now_ps
        for stage, free_ps in enumerate(stages):
            begin_ps = max(at_ps, free_ps)
            if stage == 0:
                step.start = begin_ps
            at_ps = stages[stage] = begin_ps + share + (rest if stage == 0 else 0)
        step.end = at_ps
        self.ledger.busy_ps += duration_ps
        self._in_flight.append(step)

    def _account(self, step: Step) -> None:
        now_ps = self.now_ps
        finished = self.policy.update(step)
        self.ledger.emitted(step, now_ps)
        for r in finished:
            self.ledger.finished(r, now_ps)
        if self.observer is not None:
            self.observer(step, self)
        for r in finished:
            for request, sent_ps in self.client.completed(r.index, now_ps):
                self._submit(request, sent_ps)

    def _sleep_until(self, wake_ps: int) -> Generator[simpy.Event, None, None]:
        now_ps = self.now_ps
        used = self.pool.num_blocks - self.pool.free_blocks
        ledger = self.ledger
        ledger.kv_block_ps += used * (wake_ps - now_ps)
        ledger.kv_busy_ps += wake_ps - now_ps
        ledger.kv_peak_blocks = max(ledger.kv_peak_blocks, used)
        if self.sample_ps is not None:
            while self._next_sample_ps < wake_ps:
                self._sample(self._next_sample_ps, used)
        yield self.env.timeout(wake_ps - now_ps)

    def _idle_samples(self, wake_ps: int) -> None:
        if self.sample_ps is not None:
            used = self.pool.num_blocks - self.pool.free_blocks
            while self._next_sample_ps < wake_ps:
                self._sample(self._next_sample_ps, used)

    def _sample(self, at_ps: int, used: int) -> None:
        policy = self.policy
        waiting = policy.num_waiting + self.client.waiting_by(at_ps)
        self.ledger.samples.append(
            Sample(time_s=at_ps / PS_PER_S, running=policy.num_running, waiting=waiting, kv_used_blocks=used)
        )
        assert self.sample_ps is not None
        self._next_sample_ps += self.sample_ps

    def shape(self, step: Step) -> StepShape:
        """The step's sums. A row is a decode row if one known token is left to compute, its drafts aside."""
        window = self.window_tokens
        p_seqs = p_tokens = p_pairs = p_context = p_window_pairs = p_window_context = completed = 0
        d_seqs = d_drafts = d_context = d_window = 0
        for row in step.rows:
            tokens, computed = row.tokens, row.computed
            context = computed + tokens
            if tokens - row.drafts == 1 and row.yields and computed >= row.sequence.prompt_tokens:
                d_seqs += 1
                d_drafts += row.drafts
                d_context += context
                d_window += context if window is None else min(context, window)
            elif tokens:
                p_seqs += 1
                p_tokens += tokens
                pairs = tokens * computed + tokens * (tokens + 1) // 2
                p_pairs += pairs
                p_context += context
                completed += row.yields
                if window is None:
                    p_window_pairs += pairs
                    p_window_context += context
                else:
                    p_window_pairs += windowed_pairs(tokens, computed, window)
                    p_window_context += min(context, window + tokens - 1)
        return StepShape(
            p_seqs, p_tokens, p_pairs, p_context, p_window_pairs, p_window_context, completed,
            d_seqs, d_drafts, d_context, d_window,
        )  # fmt: skip

    def _stall_reason(self) -> str:
        return (
            f"{self.policy.num_waiting} requests wait and none can be scheduled: the first needs more KV blocks than "
            f"the {self.pool.num_blocks} there are, and no request behind it is tried"
        )


def simulate_engine(
    workload: Workload,
    *,
    step_times: StepTimes,
    num_blocks: int,
    block_size: int = 16,
    policy: str = "vllm-v1-async",
    limits: SchedulerLimits | None = None,
    enable_prefix_caching: bool = True,
    kv_windows: tuple[int | None, ...] = (None,),
    window_tokens: int | None = None,
    speculation: Speculation | None = None,
    goodput_ms: Mapping[str, float] | None = None,
    sample_interval_s: float | None = None,
    observer: StepObserver | None = None,
) -> SimulationResult:
    """Simulate `workload` on one engine.

    `num_blocks` are usable KV blocks of `block_size` tokens (vLLM's log figure less its null block). `kv_windows`
    lists the groups of layers that share the pool, `window_tokens` clips contexts in the step shapes.
    Every request runs to its `output_tokens` or to `limits.max_model_len`; a prompt that leaves no room for one
    token is turned away, as vLLM's front-end does, and counts as failed. Raises InvalidInput.
    """
    limits = limits or SchedulerLimits()
    if num_blocks < 1 or block_size < 1:
        raise InvalidInput(
            f"the KV cache must have at least 1 block of at least 1 token, not {num_blocks} of {block_size}"
        )
    pool = BlockPool(
        num_blocks,
        block_size,
        prefix_caching=enable_prefix_caching,
        windows=kv_windows,
        max_model_len=limits.max_model_len,
        in_flight_tokens=limits.max_num_batched_tokens,
    )
    options: dict[str, Any] = {} if speculation is None else {"speculation": speculation}
    scheduler = make_policy(policy, limits, pool, **options)
    ledger = Ledger(workload)
    env = simpy.Environment(initial_time=0)
    engine = Engine(
        env,
        scheduler,
        pool,
        step_times,
        client=Client(workload),
        ledger=ledger,
        new_sequence=_sequence_maker(workload, pool, limits.max_model_len),
        pipeline_stages=limits.pipeline_stages,
        window_tokens=window_tokens,
        sample_ps=None if sample_interval_s is None else picoseconds(sample_interval_s),
        observer=observer,
    )
    env.process(engine.run())
    status: Literal["complete", "stalled", "interrupted"] = "complete"
    reason = None
    try:
        env.run()
    except KeyboardInterrupt:
        status, reason = "interrupted", f"interrupted at {env.now / PS_PER_S:.3f} s of simulated time"
    if engine.stalled_by is not None:
        status, reason = "stalled", engine.stalled_by
    records = ledger.table(workload)
    busy_ps = ledger.kv_busy_ps
    return SimulationResult(
        summary=summarize(records, gaps=ledger.gaps, goodput_ms=goodput_ms),
        records=records,
        series=tuple(ledger.samples),
        status=status,
        reason=reason,
        steps=ledger.steps,
        preemptions=ledger.total_preemptions,
        rejected=ledger.rejected,
        prefix_cache_hit_fraction=(
            ledger.hit_tokens / max(1, ledger.queried_tokens) if enable_prefix_caching else None
        ),
        kv_utilization_mean=ledger.kv_block_ps / (busy_ps * num_blocks) if busy_ps else 0.0,
        kv_utilization_peak=ledger.kv_peak_blocks / num_blocks,
        mean_batch_size=ledger.rows / ledger.steps if ledger.steps else 0.0,
        busy_s=busy_ps / PS_PER_S,
    )


def _sequence_maker(workload: Workload, pool: Any, max_model_len: int) -> Any:
    """A function that turns request `index` into a Sequence when it is sent; None: it is turned away."""
    prompts = workload.prompt_tokens.tolist()
    outputs = workload.output_tokens.tolist()
    priorities = workload.priority.tolist() if workload.priority is not None else None
    runs = workload.block_runs(pool.block_size) if pool.prefix_caching else None

    def content(index: int) -> Content:
        if runs is None:
            return Content(index)
        keys: list[int] = []
        stops: list[int] = []
        stop = 0
        for first, blocks in runs.runs_of(index):
            stop += blocks
            keys.append(first)
            stops.append(stop)
        return Content(("private", index), keys, stops)

    def new_sequence(index: int, sent_ps: int) -> Sequence | None:
        prompt_tokens = prompts[index]
        if prompt_tokens >= max_model_len:
            return None
        return Sequence(
            index,
            id=index,
            arrival=sent_ps,
            prompt_tokens=prompt_tokens,
            max_known=min(prompt_tokens + outputs[index], max_model_len),
            priority=priorities[index] if priorities is not None else 0,
            table=pool.table(content(index)),
        )

    return new_sequence


__all__ = ["Client", "Engine", "Ledger", "Sample", "SimulationResult", "Stalled", "simulate_engine"]
