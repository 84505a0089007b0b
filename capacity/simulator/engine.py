"""The Python engine loop as a SimPy process: schedule a step, compute its time, record its output.

The policy sets the number of steps in flight: one (synchronous), two (asynchronous) or one per pipeline stage.
`StepTimes` gives the duration of each step.
"""

from collections import deque
from collections.abc import Callable, Generator
from collections.abc import Sequence as Items
from typing import TypeAlias, cast

import simpy

from capacity.base.record import make_from
from capacity.simulator.engines import ENDLESS_PREEMPTION, EngineAccount, EngineState, Reports, stall_reason
from capacity.simulator.front_end_process import FrontEndProcesses
from capacity.simulator.instants import (
    ARRIVE,
    CLIENT,
    CLOCK_ENDS_PS,
    DECIDE,
    SETTLE,
    TIMER,
    Instant,
    call_at,
    clock_overflow_error,
)
from capacity.simulator.kv_cache.pool import JointPool, KvPool, LoadingPool, PagedPool, Table
from capacity.simulator.ledger import EngineLedger
from capacity.simulator.schedulers import Policy, Sequence, Step
from capacity.simulator.schedulers.sequence import Row
from capacity.simulator.setup import EngineSetup
from capacity.simulator.shapes import sum_step
from capacity.simulator.transfer import allocate_computed
from capacity.step import JointStepTimes, SlowestRank, StepShape

MAX_EMPTY_STEPS = 10_000  # consecutive steps without rows: the run cannot progress
MAX_PREEMPTIONS_WITHOUT_TOKEN = 10_000  # since the last sampled token: the run cannot progress


class Engine:
    """One engine: its number, policy, KV pool, steps in flight and mailbox.

    `Engines` documents the methods that it also has. A delivered request passes the front end, if there is one, and
    joins the policy's queue. All other calls wait in the mailbox until the engine schedules its next step.
    """

    def __init__(
        self,
        env: simpy.Environment,
        setup: EngineSetup,
        policy: Policy,
        pool: KvPool,
        *,
        ledger: EngineLedger,
        reports: Reports,
        new_sequence: Callable[[int, int], Sequence | None],
        number: int = 0,
        observer: "StepObserver | None" = None,
        front_end: FrontEndProcesses | None = None,
    ) -> None:
        self.env = env
        self.policy = policy
        self.pool = pool
        self.setup = setup
        self.step_times = setup.step_times
        self.ledger = ledger
        self.reports = reports
        self.new_sequence = new_sequence
        self.number = number
        self.observer = observer
        self.front_end = front_end
        self.alive = True
        self.stalled_by: str | None = None
        self.sequences: dict[int, Sequence] = {}  # requests in the engine
        self.kept: dict[int, tuple[int, Table]] = {}  # rank and KV of requests that left a prefill engine
        self._tokenized: set[int] = set()  # requests still in the front end
        self._mail: deque[Callable[[], None]] = deque()
        self._cancelled: set[int] = set()  # requests whose cancellation is in the mail
        self._loads: deque[tuple[Sequence, int]] = deque()  # (request, tokens to load)
        self._in_flight: deque[Step] = deque()
        self._stage_free_ps = [0] * setup.limits.pipeline_stages
        self._calls = 0  # of the policy's `schedule`
        self._passed = 0  # empty steps of vLLM's queue that the last ended step was before
        self._without_rows = 0
        self._preemptions = 0
        self._ended = False
        self._first = Instant(env, DECIDE, number)
        self._bell: Instant | None = self._first  # set while the engine sleeps; a message triggers it
        self._alarm = False  # while the engine sleeps: the policy has set a wake-up time
        self._fed = False  # requests still arrive by schedule
        has_joint = hasattr(setup.step_times, "joint_ps")
        self._joint = cast(JointStepTimes, setup.step_times if has_joint else SlowestRank(setup.step_times))

    def run(self) -> Generator[simpy.Event, None, None]:
        """Schedule steps, wait for the end of the oldest one and record it; sleep while no step is in flight."""
        env = self.env
        yield self._first
        while self.alive and self.stalled_by is None:
            self._decide(int(env.now))
            if self._in_flight:
                step = self._in_flight.popleft()
                self.ledger.use_kv(self.kv_used_blocks, step.end - int(env.now))
                yield Instant(env, SETTLE, self.number).schedule_at(step.end)
                if self.alive:
                    self._record_step(step)
                    self._passed = step.slots - 1
                    yield Instant(env, DECIDE, self.number).schedule_at(step.end)
            else:
                yield self._sleep()
        self._ended = True

    def _sleep(self) -> Instant:
        """Return the event that ends an idle engine's wait: a call of `_wake`, or the policy's `wake_ps`."""
        bell = self._bell = Instant(self.env, DECIDE, self.number)
        wake_ps = self.policy.wake_ps
        self._alarm = wake_ps is not None
        if wake_ps is not None:
            alarm = Instant(self.env, DECIDE, self.number).schedule_at(wake_ps)
            alarm.callbacks.append(lambda _: self._wake() if self._bell is bell else None)
        return bell

    def _wake(self) -> None:
        if self._bell is not None:
            self._bell.schedule_at(int(self.env.now))
            self._bell = None

    # state

    @property
    def busy(self) -> bool:
        """Whether the engine will act again without another call."""
        rests = self._bell is not None and not self._alarm and not self._fed
        return self.alive and not self._ended and not (rests and not self._tokenized)

    @property
    def kv_used_blocks(self) -> int:
        return self.pool.num_blocks - self.pool.free_blocks

    def state(self) -> EngineState:
        return EngineState(self.policy.num_running, self.policy.num_waiting, self.kv_used_blocks)

    def account(self) -> EngineAccount:
        policy = self.policy
        return make_from(
            EngineAccount,
            self.ledger,
            num_blocks=self.pool.num_blocks,
            free_blocks=self.pool.free_blocks,
            now_ps=int(self.env.now),
            stalled_by=(self.stalled_by or stall_reason(policy.num_waiting, self.pool.num_blocks))
            if self.sequences
            else None,
            tier_use=policy.tier_use,
            rank_requests=tuple(policy.rank_requests),
        )

    # calls from outside

    def feed(self, requests: Items[int], instants_ps: Items[int]) -> None:
        self._fed = True
        self.env.process(self._feed(requests, instants_ps))

    def _feed(self, requests: Items[int], instants_ps: Items[int]) -> Generator[simpy.Event, None, None]:
        now_ps = -1
        for request, at_ps in zip(requests, instants_ps, strict=True):
            if at_ps > now_ps:
                now_ps = at_ps
                yield Instant(self.env, ARRIVE, CLIENT).schedule_at(at_ps)
            self.ledger.columns.arrival_ps[request] = at_ps
            if not self.deliver(request):
                self.reports.on_refusal(self.number, request, at_ps)
        self._fed = False

    def deliver(self, request: int) -> bool:
        """Queue a request, through the front end if there is one; return False if it is rejected at once."""
        if self.front_end is None:
            return self._join(request)
        at_ps = self.front_end.take_in(request, int(self.env.now))
        self._tokenized.add(request)
        call_at(self.env, at_ps, lambda _: self._leave_front_end(request), ARRIVE, TIMER)
        return True

    def _leave_front_end(self, request: int) -> None:
        if not self.alive or request not in self._tokenized:  # its client timed out
            return
        assert self.front_end is not None
        now_ps = int(self.env.now)
        at_ps = self.front_end.engine_arrival_ps(request, now_ps)
        if at_ps > now_ps:
            call_at(self.env, at_ps, lambda _: self._leave_front_end(request), ARRIVE, TIMER)
            return
        self._tokenized.remove(request)
        if not self._join(request):
            self.reports.on_refusal(self.number, request, now_ps)

    def _join(self, request: int) -> bool:
        sequence = self.new_sequence(request, self.ledger.columns.arrival_ps[request])
        if sequence is None or not self.policy.add(sequence):
            return False
        self.sequences[request] = sequence
        if self._bell is not None:
            self._wake()
        return True

    def cancel(self, request: int) -> None:
        def abort() -> None:
            self._cancelled.discard(request)
            sequence = self.sequences.pop(request, None)
            if sequence is not None:
                self.policy.abort(sequence)

        self._tokenized.discard(request)
        self._cancelled.add(request)
        self._post(abort)

    def want_load(self, request: int, tokens: int) -> bool:
        sequence = self.new_sequence(request, self.ledger.columns.arrival_ps[request])
        if sequence is None:
            return False

        def queue_load() -> None:
            self.policy.assign_rank(sequence)
            self.sequences[request] = sequence
            self._loads.append((sequence, tokens))

        self._post(queue_load)
        return True

    def on_kv_arrival(self, request: int) -> None:
        self._post(lambda: self.policy.add_loaded(self.sequences[request]))

    def unload(self, request: int) -> None:
        def give_up_load() -> None:
            sequence = self.sequences.pop(request)
            waiting = next((load for load in self._loads if load[0] is sequence), None)
            if waiting is not None:
                self._loads.remove(waiting)
            else:
                self._pool_of(sequence.rank).release(sequence.table)

        self._post(give_up_load)

    def release_kept(self, request: int) -> None:
        def release() -> None:
            rank, table = self.kept.pop(request)
            self._pool_of(rank).release(table)

        self._post(release)

    def rank_of(self, request: int) -> int:
        if request in self.kept:
            return self.kept[request][0]
        sequence = self.sequences.get(request)
        return 0 if sequence is None else sequence.rank

    def stop(self) -> None:
        self.alive = False

    def _post(self, act: Callable[[], None]) -> None:
        self._mail.append(act)
        self._wake()

    # schedule

    def _decide(self, now_ps: int) -> None:
        """Process the mailbox, begin KV loads, and launch steps up to the limit of steps in flight."""
        while self._mail:
            self._mail.popleft()()
        self._begin_loads(now_ps)
        policy, in_flight = self.policy, self._in_flight
        waits_early = policy.empty_steps == 1  # for the oldest step, as soon as one has no rows
        passed = self._passed if waits_early else 0
        self._passed = 0
        idle_calls = 0
        while policy.unfinished and self.stalled_by is None:
            free = policy.steps_in_flight - passed - sum(step.slots for step in in_flight)
            if not free:
                break
            step = policy.schedule(now_ps)
            self._calls += 1
            step.call = self._calls
            computes = step.rows or step.held_ps
            is_empty = not (computes or step.preempted or step.finished)
            if not is_empty:
                self._launch(step, now_ps)
            elif in_flight:
                in_flight[-1].slots += 1 if policy.staggers else min(policy.empty_steps, free)
            if passed and in_flight:
                passed -= 1
            elif policy.staggers:  # another call may have rows
                idle_calls += is_empty and not in_flight
                if idle_calls == policy.steps_in_flight:
                    break
            elif is_empty or (waits_early and not (computes and in_flight[0].end > now_ps)):
                break

    def _pool_of(self, rank: int) -> PagedPool:
        return cast(PagedPool, self.pool.parts[rank] if isinstance(self.pool, JointPool) else self.pool)

    def _begin_loads(self, now_ps: int) -> None:
        """Begin KV loads in order of arrival. If a load does not fit, later loads of the same rank wait too."""
        full: set[int] = set()
        for load in tuple(self._loads):
            sequence, tokens = load
            if sequence.rank in full:
                continue
            pool = cast(LoadingPool, self._pool_of(sequence.rank))
            if not self._can_reserve_to_end(sequence, tokens, pool) or not pool.load(sequence.table, tokens):
                full.add(sequence.rank)
                continue
            self._loads.remove(load)
            if self.reports.load_begins(self.number, sequence.index, now_ps) <= now_ps:
                self.policy.add_loaded(sequence)

    def _can_reserve_to_end(self, sequence: Sequence, tokens: int, pool: LoadingPool) -> bool:
        """Return whether enough blocks are free to complete this request and all requests that already have blocks.
        Always True if the policy does not reserve blocks up to the last token."""
        if not self.policy.reserves_to_end:
            return True
        last_slot = self.policy.last_slot
        of_rank = (r for r in self.sequences.values() if r.rank == sequence.rank)
        holding = [r for r in of_rank if pool.held_blocks(r.table)]
        promised = sum(pool.blocks_needed(r.table, last_slot(r)) for r in holding)
        needed = pool.blocks_needed(sequence.table, max(last_slot(sequence), tokens))
        return promised + needed <= pool.free_blocks

    # compute

    def _launch(self, step: Step, now_ps: int) -> None:
        """Launch a step and compute its end; it enters each pipeline stage as soon as the stage is free."""
        self.ledger.record_step(step, now_ps)
        shapes = (
            [sum_step(part, self.setup.window_tokens) for part in step.parts or (step,)] if step.rows else []
        )
        duration_ps = step.held_ps + self._step_ps(step, shapes) if shapes else step.held_ps
        self._without_rows = 0 if step.rows else self._without_rows + (not step.held_ps)
        self._preemptions += len(step.preempted)
        if self._without_rows > MAX_EMPTY_STEPS or self._preemptions > MAX_PREEMPTIONS_WITHOUT_TOKEN:
            self.stalled_by = ENDLESS_PREEMPTION
        stages = self._stage_free_ps
        share, rest = divmod(duration_ps, len(stages))
        at_ps = self._sampled_ps(step, now_ps) if self.policy.staggers else now_ps
        for stage, free_ps in enumerate(stages):
            begin_ps = max(at_ps, free_ps)
            if stage == 0:
                step.start = begin_ps
            at_ps = stages[stage] = begin_ps + share + (rest if stage == 0 else 0)
        if at_ps >= CLOCK_ENDS_PS:
            raise clock_overflow_error(at_ps)
        step.end = at_ps
        self.ledger.busy_ps += duration_ps
        if (
            self.setup.launch_lag
            and self._in_flight
            and len(stages) == 1
            and any(s.prefill_tokens for s in shapes)
        ):
            before = self._in_flight[-1]  # its results are read when this step is launched
            before.end = max(before.end, step.start + int(self.setup.launch_lag * (step.end - step.start)))
        self._in_flight.append(step)

    def _sampled_ps(self, step: Step, now_ps: int) -> int:
        """Return when the tokens are known that a staggered step waits for.

        The first stage waits for all tokens that were sampled as many calls before as there are stages, also if the
        step has other requests. Source: vLLM 0.33.0 `v1/worker/gpu/pp_utils.py`, `get_prev_sampled_outputs`.
        """
        stages = len(self._stage_free_ps)
        ends = (
            before.end
            for before in self._in_flight
            if before.call + stages <= step.call and any(_is_awaited(row) for row in before.rows)
        )
        return max(ends, default=now_ps)

    def _step_ps(self, step: Step, shapes: list[StepShape]) -> int:
        duration_ps = self._joint.joint_ps(shapes) if step.parts else self.step_times.step_ps(shapes[0])
        if self.setup.noise is not None:
            duration_ps = self.setup.noise.apply_noise(duration_ps, self.number, self.ledger.steps - 1)
        work = self.ledger.work
        if work is not None:
            work.held_ps += step.held_ps
            work.step(max(shapes, key=lambda shape: shape.num_tokens), duration_ps)
        return duration_ps

    # record

    def _record_step(self, step: Step) -> None:
        """Record a step that has ended, and report the requests that ended with it."""
        finished = self.policy.update(step)
        self.ledger.record_delivery(step.emitted, step.end)
        if step.emitted:
            self._preemptions = 0
        if self.observer is not None:
            self.observer(step, self)
        for r in finished:
            del self.sequences[r.index]
        for r in finished:
            if r.index in self._cancelled:
                continue
            if self.setup.role == "prefill":
                self._keep_kv(r, step.end)
            else:
                self.ledger.record_end(r, step.end)
                self.reports.on_request_end(self.number, r.index, step.end)

    def _keep_kv(self, r: Sequence, now_ps: int) -> None:
        """Allocate again the blocks that a prefilled request just freed, so that its KV is kept until it is sent.

        The KV is lost if the request was preempted while its last tokens were in flight.
        """
        pool = self._pool_of(r.rank)
        table = pool.table(r.table.content)
        kept = allocate_computed(pool, table, r.prompt_tokens, pool.lookup(table, r.prompt_tokens))
        if kept:
            self.kept[r.index] = (r.rank, table)
        self.reports.on_prefill(self.number, r.index, now_ps, kept=kept)


def _is_awaited(row: Row) -> bool:
    """Return whether a row samples a token that a later step may need: not if the request has one output token."""
    return row.yields and row.sequence.asked_known > row.sequence.prompt_tokens + 1


StepObserver: TypeAlias = Callable[[Step, Engine], None]  # called with every completed step
