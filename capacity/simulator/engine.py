"""The engine loop: decide, compute, account, as in an engine itself, on a SimPy clock of whole picoseconds.

As many steps are in flight as the policy asks for: one (synchronous), two (asynchronous), one per pipeline stage.
It knows no roofline: a step's duration is whatever the `StepTimes` that it is given says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, Protocol

import simpy

from capacity.schedulers import Policy, Step
from capacity.simulator.client import Client
from capacity.simulator.ledger import Ledger, Sample
from capacity.step import PS_PER_S, StepShape, StepTimes, windowed_pairs

ZERO_TIME_STEPS = 10_000  # steps without rows in a row: nothing will ever come of them


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
