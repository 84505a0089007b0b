"""One engine of several: it runs only as far as it must, because what comes next to it is for others to say.

An engine that stands alone knows when its next request comes. One behind a router does not, so its decisions wait:
`key` is when `proceed` has to be called next, and until then nothing that others can see happens to it. Settling a step
comes before arrivals at the same instant, deciding the next one after them, as in an engine that stands alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import cast

import simpy

from capacity.simulator.client import NEVER
from capacity.simulator.driven import DECIDE, NEVER_KEY, SETTLE, Action, Owner
from capacity.simulator.engine import Engine, StepObserver
from capacity.simulator.kv_cache.pool import KvPool, LoadingPool
from capacity.simulator.ledger import Ledger
from capacity.simulator.schedulers import Policy, Sequence
from capacity.simulator.transfer import Load
from capacity.step import StepTimes


class _Door:
    """The engine loop's view of its arrivals: none of its business here."""

    due_ps = NEVER
    reacts = True

    def take(self, now_ps: int) -> list[tuple[int, int]]:  # noqa: ARG002
        return []

    def completed(self, request: int, now_ps: int) -> list[tuple[int, int]]:  # noqa: ARG002
        return []

    def waiting_by(self, instant_ps: int) -> int:  # noqa: ARG002
        return 0


class Replica(Engine):
    """An engine with a mailbox: a `DrivenEngine`."""

    def __init__(
        self,
        env: simpy.Environment,
        policy: Policy,
        pool: KvPool,
        step_times: StepTimes,
        *,
        number: int,
        owner: Owner,
        queue_limit: int | None = None,
        ledger: Ledger,
        new_sequence: Callable[[int, int], Sequence | None],
        jumps: bool = False,
        pipeline_stages: int = 1,
        window_tokens: int | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        super().__init__(
            env,
            policy,
            pool,
            step_times,
            client=_Door(),
            ledger=ledger,
            new_sequence=new_sequence,
            jumps=jumps,
            pipeline_stages=pipeline_stages,
            window_tokens=window_tokens,
            observer=observer,
        )
        self.number = number
        self.owner = owner
        self.key = NEVER_KEY
        self.alive = True
        self.draining = False
        self.sequences: dict[int, Sequence] = {}  # requests inside
        self._queue_limit = queue_limit
        self._settle_by_ps = -1  # completions until then move nobody else
        if self.jump is not None:
            self.jump.finished = self._finished
        self._mail: deque[tuple[int, Sequence | None, Action | None]] = deque()  # (instant, one of the two)
        self._new = 0  # requests in the mail
        self._loads: deque[Load] = deque()  # KV that waits for blocks here, in order
        self._wake_ps: int | None = None  # end of the step that runs and has to be settled

    def run(self) -> Generator[simpy.Event, None, None]:
        """Not a process of its own: the cluster drives it."""
        raise NotImplementedError

    @property
    def requests(self) -> list[int]:
        """Everyone inside or in the mail, in order of arrival."""
        mailed = (sequence.index for _, sequence, _ in self._mail if sequence is not None)
        return [*self.sequences, *mailed]

    @property
    def num_waiting(self) -> int:
        return self.policy.num_waiting + self._new

    # from outside

    def deliver(self, at_ps: int, request: int, action: Action | None = None) -> None:
        """A request, or an action, reaches the engine at `at_ps`: it is taken up when the next step is decided.

        What depends on the state at this very instant is settled now: whether a request is turned away, and, where
        steps are taken one by one, its place in the queues (a data-parallel rank is chosen by them).
        """
        if action is not None:
            self._mail.append((at_ps, None, action))
        elif not self._accept(request, at_ps):
            return
        if self._wake_ps is not None:
            return
        now_ps = self.now_ps
        if at_ps <= now_ps:
            self.key = 4 * now_ps + DECIDE
        elif self.key < NEVER_KEY and self.key & 3 == SETTLE:
            self.catch_up(at_ps)
        elif self.key != 4 * now_ps + DECIDE:
            self.now_ps = at_ps
            self.key = 4 * at_ps + DECIDE

    def catch_up(self, at_ps: int) -> None:
        """Take the decode steps that are put off, up to the one that is under way at `at_ps`."""
        if self._wake_ps is None and self.now_ps < at_ps and self.key < NEVER_KEY and self.key & 3 == SETTLE:
            if self._settle_by_ps >= 0:
                self._settle_by_ps = at_ps
            self._decide(at_ps, at_ps)

    def proceed(self, horizon_ps: int, action_ps: int) -> None:
        """Do what is due at `key`. Nobody will deliver a request before `horizon_ps`, or an action before
        `action_ps`, but in answer to this."""
        if self._wake_ps is not None:
            self._settle_step()
            return
        if self.key & 3 == DECIDE:
            self.now_ps = max(self.now_ps, self.key >> 2)
        self._decide(horizon_ps, action_ps)

    def proceed_until(self, limit_key: int, horizon_ps: int, action_ps: int) -> int:
        """Do all that is due before `limit_key`, where it moves no other engine; returns the key after that."""
        self._settle_by_ps = (limit_key - 1) >> 2
        key = self.key
        while key < limit_key:
            if self._wake_ps is not None:
                self._settle_step()
            else:
                at_ps = key >> 2
                if key & 3 == DECIDE and at_ps > self.now_ps:
                    self.now_ps = at_ps
                self._decide(horizon_ps, action_ps)
            if not self.alive:
                return NEVER_KEY
            key = self.key
        return key

    def stop(self) -> None:
        """Nothing more happens here."""
        self.alive = False
        self.key = NEVER_KEY

    # the loop

    def _decide(self, horizon_ps: int, action_ps: int) -> None:
        now_ps, mail, jump = self.now_ps, self._mail, self.jump
        while mail:
            at_ps, sequence, action = mail[0]
            if at_ps > now_ps:
                break
            mail.popleft()
            if sequence is not None:
                self._new -= 1
                self.policy.add(sequence)
                self.sequences[sequence.index] = sequence
            elif action is not None:
                action(now_ps)
        if self._loads:
            action_ps = min(action_ps, self._start_loads(now_ps))
            horizon_ps = min(horizon_ps, action_ps)
        if mail:
            horizon_ps = min(horizon_ps, mail[0][0])
        while True:
            if jump is not None and (jump.active or self._takes_over(jump)):
                jump.settle_by = self._settle_by_ps
                wake_ps = jump.advance(now_ps, horizon_ps, action_ps)
                if now_ps < wake_ps < NEVER and jump.done is None and self.stalled_by is None:
                    self.now_ps = wake_ps
                    self._rest()
                    return
                if wake_ps < 0:
                    wake_ps = NEVER if wake_ps == -1 else self._spell_out(jump, now_ps)
                if jump.done is not None:
                    if jump.done.finishing:
                        self._runs_until(wake_ps)
                        return
                    jump.settle()
                    break
            else:
                wake_ps = self._step(now_ps)
                if self._ending is not None:
                    self._runs_until(wake_ps)
                    return
            if wake_ps > now_ps or self.stalled_by is not None:
                break
            if self._loads:  # whoever was admitted may have cached what one of them needs
                horizon_ps = action_ps = now_ps
        if self.stalled_by is not None:
            self.key = NEVER_KEY
        elif wake_ps == NEVER:
            self.key = NEVER_KEY if not mail else 4 * max(now_ps, mail[0][0]) + DECIDE
        elif jump is not None and jump.active:
            self.now_ps = wake_ps
            self._rest()
        else:
            self.key = 4 * wake_ps + DECIDE  # the policy waits for the clock

    def _runs_until(self, wake_ps: int) -> None:
        self._wake_ps = wake_ps
        self.key = 4 * wake_ps + SETTLE

    def _settle_step(self) -> None:
        now_ps, jump = self._wake_ps, self.jump
        assert now_ps is not None
        self._wake_ps = None
        self.now_ps = now_ps
        if self._ending is not None:
            finished = self._settle(self._ending, now_ps)
        else:
            assert jump is not None
            finished = jump.settle()
        for r in finished:
            del self.sequences[r.index]
        self._rest()
        for r in finished:
            self.owner.finished(self, r, now_ps)

    def _finished(self, sequence: Sequence, now_ps: int) -> None:
        """A request has ended, and nobody has to wait for that instant to hear it."""
        del self.sequences[sequence.index]
        self.owner.finished(self, sequence, now_ps)

    def _rest(self) -> None:
        """Between two steps: when must the next be decided?"""
        now_ps, jump = self.now_ps, self.jump
        quiet_ps = now_ps
        if (
            not self._mail and not self._loads
        ):  # loads are tried at every decision: others may cache what they need
            if jump is not None and jump.active:
                quiet_ps = jump.quiet_until(now_ps)
                if quiet_ps > now_ps:
                    self.key = 4 * quiet_ps + SETTLE
                    return
            if not self.policy.unfinished and not self._in_flight and (jump is None or jump.pending is None):
                self.key = NEVER_KEY
                return
        self.key = 4 * now_ps + DECIDE

    # requests

    def _accept(self, request: int, at_ps: int) -> bool:
        """Take a request in, or into the mail; False: it is turned away."""
        full = self._queue_limit is not None and self.num_waiting >= self._queue_limit
        sequence = None if full else self.new_sequence(request, self.ledger.arrival_ps[request])
        if sequence is None or (self.jump is None and not self.policy.add(sequence)):
            self.owner.refused(self, request, at_ps)
            return False
        if self.jump is None:
            self.sequences[request] = sequence
        else:
            self._new += 1
            self._mail.append((at_ps, sequence, None))
        return True

    def want(self, load: Load, now_ps: int) -> None:  # noqa: ARG002
        """A request whose KV comes from elsewhere: it is loaded as soon as there are blocks for it."""
        self.sequences[load.sequence.index] = load.sequence
        self._loads.append(load)

    def _start_loads(self, now_ps: int) -> int:
        """Begin the transfers that there are blocks for; returns when the first of them ends."""
        first_ps = NEVER
        pool = cast(LoadingPool, self.pool)
        while self._loads and self._ends_in_time(self._loads[0], pool):
            if not pool.load(self._loads[0].sequence.table, self._loads[0].tokens):
                break
            load = self._loads.popleft()
            end_ps = load.begin(now_ps)
            if end_ps <= now_ps:
                self.policy.add_loaded(load.sequence)
            else:  # whoever sends it delivers it
                first_ps = min(first_ps, end_ps)
        return first_ps

    def _ends_in_time(self, load: Load, pool: LoadingPool) -> bool:
        """Whether a policy that never gives up a request can promise this one its blocks to the end."""
        if not self.policy.reserves_to_end:
            return True
        last_slot = self.policy.last_slot
        holding = [r for r in self.sequences.values() if pool.held_blocks(r.table)]
        promised = sum(pool.blocks_needed(r.table, last_slot(r)) for r in holding)
        needed = pool.blocks_needed(load.sequence.table, max(last_slot(load.sequence), load.tokens))
        return promised + needed <= pool.free_blocks

    def unload(self, load: Load) -> None:
        """The KV of a request no longer comes: give up its place in the queue for blocks, or its blocks."""
        del self.sequences[load.sequence.index]
        if load in self._loads:
            self._loads.remove(load)
        else:
            cast(LoadingPool, self.pool).release(load.sequence.table)

    def cancel(self, request: int, now_ps: int) -> None:
        """Abort a request that is inside; nothing, if it is not."""
        sequence = self.sequences.pop(request, None)
        if sequence is None:
            return
        if self.jump is not None and self.jump.active:
            self._spell_out(self.jump, now_ps)
        self.policy.abort(sequence)
