"""The engine loop: decide, compute, account, as in an engine itself, on a SimPy clock of whole picoseconds.

As many steps are in flight as the policy asks for: one (synchronous), two (asynchronous), one per pipeline stage.
It knows no roofline: the duration of a step comes from `StepTimes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from collections.abc import Sequence as Items
from typing import Protocol, cast

import simpy

from capacity.simulator.client import NEVER, Arrivals
from capacity.simulator.jump import NOTHING, JumpV1
from capacity.simulator.kv_cache.pool import KvPool
from capacity.simulator.ledger import Ledger, Sample
from capacity.simulator.metrics import MISSING
from capacity.simulator.schedulers import Policy, Sequence, Step
from capacity.simulator.shapes import sum_rows
from capacity.step import PS_PER_S, JointStepTimes, SlowestRank, StepTimes

ZERO_TIME_STEPS = 10_000  # steps without rows in a row: nothing will ever come of them


class StepObserver(Protocol):
    """Sees every completed step of a run that is stepped one at a time."""

    def __call__(self, step: Step, engine: Engine) -> None: ...


class Engine:
    """One engine: its policy, its KV pool, its steps in flight. With `jumps`, regular decode steps are leapt over."""

    def __init__(
        self,
        env: simpy.Environment,
        policy: Policy,
        pool: KvPool,
        step_times: StepTimes,
        *,
        client: Arrivals,
        ledger: Ledger,
        new_sequence: Callable[[int, int], Sequence | None],
        jumps: bool = False,
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
        self.now_ps = int(env.now)
        self.jump: JumpV1 | None = None
        if jumps and policy.regular and JumpV1.can_follow(policy, pool):
            self.jump = JumpV1(
                policy, step_times, ledger, window_tokens=window_tokens, settles=not client.reacts
            )
        self._irregular = False  # the policy itself has to decide the next step
        self._next_sample_ps = 0 if sample_ps is not None else NEVER
        self._stage_free_ps = [0] * pipeline_stages
        self._in_flight: deque[Step] = deque()
        self._ending: Step | None = None
        self._last_end_ps = MISSING
        self._without_rows = 0
        self._joint = cast(
            JointStepTimes, step_times if hasattr(step_times, "joint_ps") else SlowestRank(step_times)
        )

    def run(self) -> Generator[simpy.Event, None, None]:
        """Until no request is left, or none can ever proceed.

        Up to the next event of anyone else nobody can meet this engine, so it need not wait on the clock till then.
        """
        env, client, jump = self.env, self.client, self.jump
        now_ps = int(env.now)
        others_ps = env.peek()
        while self.stalled_by is None:
            if client.due_ps <= now_ps:
                self._receive(client.take(now_ps))
            if jump is not None and (jump.active or self._takes_over(jump)):
                wake_ps = jump.advance(now_ps, client.due_ps, self._next_sample_ps)
                if wake_ps < 0:
                    wake_ps = client.due_ps if wake_ps == NOTHING else self._spell_out(jump, now_ps)
            else:
                wake_ps = self._step(now_ps)
            if wake_ps > now_ps:
                if wake_ps == NEVER:
                    if self.policy.unfinished:
                        self.stalled_by = self._stall_reason()
                    break
                if self._next_sample_ps < wake_ps:
                    self._sample_until(wake_ps)
                if others_ps <= wake_ps:
                    yield env.timeout(wake_ps - env.now)
                    others_ps = env.peek()
                self.now_ps = now_ps = wake_ps
                while client.due_ps < now_ps:  # who came before a step ends stands before whom its end brings
                    # one instant at a time where one that is turned away makes room for another
                    self._receive(client.take(client.due_ps if client.reacts else now_ps - 1))
            if self._ending is not None:
                self._complete(self._settle(self._ending, now_ps), now_ps)
            elif jump is not None and jump.done is not None:
                self._complete(jump.settle(), now_ps)
        yield env.timeout(now_ps - env.now)

    # its state now

    @property
    def num_running(self) -> int:
        return self.policy.num_running

    @property
    def num_waiting(self) -> int:
        """Requests inside that hold no place in the batch."""
        return self.policy.num_waiting

    @property
    def kv_used_blocks(self) -> int:
        return self.pool.num_blocks - self.pool.free_blocks

    @property
    def stall(self) -> str:
        """Why nothing can proceed, where requests are left and nothing is due."""
        return self.stalled_by or self._stall_reason()

    # decide

    def _takes_over(self, jump: JumpV1) -> bool:
        return not self._irregular and jump.take_over(self._in_flight, self._last_end_ps)

    def _spell_out(self, jump: JumpV1, now_ps: int) -> int:
        """Something is not regular: the policy itself decides the next step."""
        self._last_end_ps = jump.last_end
        pending = jump.spell_out()
        if pending is not None:
            self._in_flight.append(pending)
            self._stage_free_ps[0] = pending.end
        self._irregular = True
        return now_ps

    def _step(self, now_ps: int) -> int:
        """Schedule one step, or wait for the oldest in flight; returns when to wake up."""
        policy, in_flight = self.policy, self._in_flight
        if len(in_flight) < policy.steps_in_flight and policy.unfinished:
            step = policy.schedule(now_ps)
            self._irregular = False
            if step.rows or step.preempted or step.finished or step.held_ps:
                self._launch(step, now_ps)
                return now_ps
        if not in_flight:
            wake_ps = policy.wake_ps
            return self.client.due_ps if wake_ps is None else min(wake_ps, self.client.due_ps)
        self._ending = in_flight.popleft()
        end_ps = self._ending.end
        self.ledger.use_kv(self.kv_used_blocks, end_ps - now_ps)
        return end_ps

    def _launch(self, step: Step, now_ps: int) -> None:
        self.ledger.scheduled(step, now_ps)
        duration_ps = 0
        if step.rows:
            duration_ps = step.held_ps + self._step_ps(step)
            self._without_rows = 0
        elif step.held_ps:
            duration_ps = step.held_ps
        else:
            self._without_rows += 1
            if self._without_rows > ZERO_TIME_STEPS:
                self.stalled_by = (
                    "requests preempt each other without end: the KV cache is too small for them"
                )
        stages = self._stage_free_ps
        share, rest = divmod(duration_ps, len(stages))
        at_ps = now_ps
        for stage, free_ps in enumerate(stages):
            begin_ps = max(at_ps, free_ps)
            if stage == 0:
                step.start = begin_ps
            at_ps = stages[stage] = begin_ps + share + (rest if stage == 0 else 0)
        step.end = at_ps
        self.ledger.busy_ps += duration_ps
        self._in_flight.append(step)

    def _step_ps(self, step: Step) -> int:
        shapes = [sum_rows(part.rows, self.window_tokens) for part in step.parts or (step,)]
        duration_ps = self._joint.joint_ps(shapes) if step.parts else self.step_times.step_ps(shapes[0])
        work = self.ledger.work
        if work is not None:
            work.held_ps += step.held_ps
            work.step(max(shapes, key=lambda shape: shape.num_tokens), duration_ps)
        return duration_ps

    # account

    def _settle(self, step: Step, now_ps: int) -> Items[Sequence]:
        """Account for a step that ends now; returns the requests that it finished."""
        self._ending = None
        finished = self.policy.update(step)
        self._last_end_ps = now_ps
        for r, _ in step.emitted:
            self.ledger.delivered(r, now_ps)
        if self.observer is not None:
            self.observer(step, self)
        return finished

    def _complete(self, finished: Items[Sequence], now_ps: int) -> None:
        for r in finished:
            self.ledger.finished(r, now_ps)
        if not self.client.reacts:
            return
        for r in finished:
            self._receive(self.client.completed(r.index, now_ps))

    def _receive(self, sent: list[tuple[int, int]]) -> None:
        """Take requests in, each with the instant at which it was sent; those turned away may bring others."""
        for request, sent_ps in sent:
            self.ledger.arrival_ps[request] = sent_ps
            sequence = self.new_sequence(request, sent_ps)
            if sequence is None or not self.policy.add(sequence):
                self.ledger.rejected += 1
                self._receive(self.client.completed(request, sent_ps))

    def _sample_until(self, wake_ps: int) -> None:
        used = self.kv_used_blocks
        assert self.sample_ps is not None
        while self._next_sample_ps < wake_ps:
            at_ps = self._next_sample_ps
            waiting = self.num_waiting + self.client.waiting_by(at_ps)
            self.ledger.samples.append(
                Sample(
                    time_s=at_ps / PS_PER_S, running=self.num_running, waiting=waiting, kv_used_blocks=used
                )
            )
            self._next_sample_ps += self.sample_ps

    def _stall_reason(self) -> str:
        return (
            f"{self.policy.num_waiting} requests wait and none can be scheduled: the first needs more KV blocks than "
            f"the {self.pool.num_blocks} there are, and no request behind it is tried"
        )
