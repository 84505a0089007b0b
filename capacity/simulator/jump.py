"""vLLM V1 without a loop over the batch: decode steps in closed form, between one scheduling event and the next.

While all is regular, every running request that has finished its prompt takes part in every step with one token.
Then the batch is a few sums (its size, its contexts, how many contexts stand at each place within a block, the step
at which each request ends), and a series of decode steps is one arithmetic series. What is not regular (a
preemption, a starved request) is handed to the policy itself: the group is spelled out request by request, the
policy decides one step, and the group forms again. Equal, bit for bit, to stepping one at a time.

Synchronous and asynchronous engines differ in one thing: the latter schedules while the step before is *pending*.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from collections.abc import Sequence as Items
from math import sqrt
from operator import mul
from typing import Any, TypeGuard

from capacity.simulator.client import NEVER
from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.pool import KvPool
from capacity.simulator.kv_cache.run_pool import RunPool
from capacity.simulator.ledger import Ledger
from capacity.simulator.schedulers import Policy, Row, Sequence, Status, Step
from capacity.simulator.schedulers.vllm_v1 import VllmV1
from capacity.simulator.shapes import new_tuple, sum_rows
from capacity.step import StepShape, StepTimes

FINISHED = Status.FINISHED
NOTHING = -1  # nothing could be scheduled and nothing is pending
IRREGULAR = -2  # the policy itself has to decide


class Running(dict[int, Sequence]):
    """The running list, by ticket, with O(1) removal; what `VllmV1` needs of a list while it only admits."""

    _next = 0

    def append(self, sequence: Sequence) -> None:
        sequence.ticket = self._next
        self[self._next] = sequence
        self._next += 1

    def last(self) -> Sequence:
        return next(reversed(self.values()))


class Pending:
    """A step, or the last of a leap, that is scheduled and not yet accounted."""

    __slots__ = ("decodes", "duration", "end", "finishing", "rows", "start")

    def __init__(
        self, rows: list[Row], decodes: int, finishing: list[Sequence], start: int, duration: int
    ) -> None:
        self.rows = rows  # prompts' shares, and whatever else is not in the group
        self.decodes = decodes  # rows of the group
        self.finishing = finishing  # requests of both kinds that this step completes, in row order
        self.start = start
        self.duration = duration
        self.end = start + duration


class BlockBuckets:
    """Which members of a decode group have something to do in a `BlockPool`, by the place of their context in a block.

    A member takes a block at one such place, completes one at another, leaves one behind its window at a third; at
    all others its blocks stay as they are. In its first two steps it is always visited: the chunk that it comes from
    may still be in flight. `place` is the member's computed tokens modulo the block size, before the step.
    """

    def __init__(self, pool: BlockPool, *, asynchronous: bool) -> None:
        self._pool = pool
        self._lag = (
            1 if asynchronous else 0
        )  # computed tokens that are still in flight when a step is decided
        size = pool.block_size
        full = 0 if asynchronous else -1  # a block is full when its last token is known
        places = {0, full % size} | {(w - 1 + self._lag) % size for w in pool.windows if w is not None}
        self._places = sorted(places)
        self.clear()

    def clear(self) -> None:
        self._members: list[dict[int, Sequence]] = [{} for _ in range(self._pool.block_size)]
        self._fresh: list[tuple[int, Sequence]] = []  # (clock of the first step, member)

    def add(self, r: Sequence, clock: int) -> None:
        self._members[-r.offset % self._pool.block_size][r.ticket] = r
        self._fresh.append((clock, r))

    def remove(self, r: Sequence) -> None:
        del self._members[-r.offset % self._pool.block_size][r.ticket]

    def due(self, clock: int) -> list[Sequence]:
        """Members to visit before the step at `clock`, in the order of the running list."""
        size, members = self._pool.block_size, self._members
        found: dict[int, Sequence] = {}
        for place in self._places:
            found.update(members[(clock - place) % size])
        if self._fresh:
            self._fresh = [(first, r) for first, r in self._fresh if clock - first <= 1]
            found.update(
                (r.ticket, r) for _, r in self._fresh if members[-r.offset % size].get(r.ticket) is r
            )
        return [found[ticket] for ticket in sorted(found)]

    def steps_until_due(self, clock: int) -> int:
        """Steps from `clock` on until another visit."""
        if self._fresh:
            return 1
        size, members = self._pool.block_size, self._members
        for steps in range(1, size):
            if any(members[(clock + steps - place) % size] for place in self._places):
                return steps
        return size

    def blocks_needed(self, due: list[Sequence], clock: int) -> int:
        needed = self._pool.blocks_needed
        return sum(needed(r.table, r.offset + clock + 1) for r in due)

    def allocate(
        self, due: list[Sequence], chunks: list[tuple[Sequence, int]], clock: int, pending: Pending | None
    ) -> None:
        """What the policy does for each running request, in list order: leave the window, grow, cache."""
        pool = self._pool
        in_flight = {row.sequence.ticket: row.tokens for row in pending.rows} if pending is not None else {}
        visits = [(r.ticket, r, 1) for r in due]
        if chunks:
            visits = sorted(
                visits + [(r.ticket, r, tokens) for r, tokens in chunks], key=lambda visit: visit[0]
            )
        chunked = {r.ticket for r, _ in chunks}
        for ticket, r, tokens in visits:
            if ticket in chunked:
                computed, known = r.computed, r.known
                processed = computed - in_flight.get(ticket, 0)
            else:
                computed = r.offset + clock
                known = computed + 1 - self._lag
                processed = computed - (in_flight.get(ticket, 1) if pending is not None else 0)
            pool.leave_window(r.table, processed)
            pool.grow(r.table, computed + tokens)
            pool.cache(r.table, min(computed + tokens, known))


class JumpV1:
    """The regular state of a `VllmV1` engine, and the leaps that it takes.

    `advance` schedules as far as nothing can change the decision, returns when to wake up, and `settle` accounts
    for what has ended by then. `spell_out` hands the state to the policy, `take_over` takes it back.
    """

    def __init__(
        self,
        policy: VllmV1,
        step_times: StepTimes,
        ledger: Ledger,
        *,
        window_tokens: int | None,
        settles: bool = False,
    ) -> None:
        # a completion until then matters to nobody but `finished`: it may be accounted for before its instant
        self.settle_by = NEVER if settles else -1
        self.finished: Callable[[Sequence, int], None] = ledger.finished
        self.policy = policy
        self.pool: Any = policy.pool
        self.step_times = step_times
        self.ledger = ledger
        self.window_tokens = window_tokens
        self._asynchronous = policy.asynchronous
        self._budget = policy.limits.max_num_batched_tokens
        self._buckets: BlockBuckets | None = None
        if isinstance(policy.pool, BlockPool):
            self._buckets = BlockBuckets(policy.pool, asynchronous=policy.asynchronous)
        self.active = False
        self.pending: Pending | None = None
        self.done: Pending | None = None
        self._block_size: int = self.pool.block_size
        self._places = range(1, self._block_size + 1)
        self._squares = [place * place for place in self._places]
        self.last_end = -1
        self._pieces: dict[int, tuple[int, int, int, int]] = {}  # by size: from, to, base, per context token
        self._clear()

    @staticmethod
    def can_follow(policy: Policy, pool: KvPool) -> TypeGuard[VllmV1]:
        """Whether the policy has a regular state at all: V1 without drafts, pipeline stages and prefill cadence."""
        return (
            isinstance(policy, VllmV1)
            and isinstance(pool, BlockPool | RunPool)
            and policy.speculation is None
            and policy.limits.pipeline_stages == 1
            and policy.limits.prefill_schedule_interval == 1
        )

    def _clear(self) -> None:
        self._clock = 0  # decode steps that the group has been scheduled for
        self._size = 0
        self._contexts = 0  # sum over the group of the contexts of its next step
        # members by the clock, modulo block size, at which they need a new block; twice: slices never wrap
        self._phases = [0] * (2 * self._block_size)
        self._ends: list[tuple[int, int, Sequence]] = []  # (clock of the last step, ticket, member)
        self._growing = 0  # members whose next context is still below the window
        self._saturations: list[tuple[int, int]] = []  # (clock from which it fills the window, ticket)
        self._growing_contexts = 0  # sum of their next contexts
        self._saturated_contexts = 0
        self._prefilling: list[Sequence] = []
        self._ahead: tuple[int, int, int] | None = None  # what `_look_ahead` found, until the group changes
        if self._buckets is not None:
            self._buckets.clear()

    # the group

    def _join(self, r: Sequence, computed: int, clock: int) -> None:
        """`r` takes its next decode step, which computes token number `computed`, at `clock`."""
        offset = computed - clock
        r.offset = offset
        self._size += 1
        self._contexts += computed + 1
        self._ahead = None
        if self._buckets is not None:
            self._buckets.add(r, clock)
        else:
            place, phases = -offset % self._block_size, self._phases
            phases[place] += 1
            phases[place + self._block_size] += 1
        heapq.heappush(self._ends, (r.max_known - 2 - offset, r.ticket, r))
        if self.window_tokens is not None:
            full_at = self.window_tokens - 1 - offset
            if full_at <= clock:
                self._saturated_contexts += self.window_tokens
            else:
                self._growing += 1
                self._growing_contexts += computed + 1
                heapq.heappush(self._saturations, (full_at, r.ticket))

    # decide

    def advance(self, now: int, next_arrival: int, next_sample: int) -> int:
        """Schedule the next steps; returns the instant to wake up at, NOTHING, or IRREGULAR.

        From `next_arrival` on a schedule may differ; a leap ends with the step that spans `next_sample` (NEVER:
        there is none).
        """
        policy, buckets, size = self.policy, self._buckets, self._size
        waiting = policy.waiting
        if size and buckets is None and not waiting and not self._prefilling:
            return self._leaps(now, next_arrival if next_arrival < next_sample else next_sample)
        pool = self.pool
        due: list[Sequence] = []
        if buckets is not None:
            due = buckets.due(self._clock)
            new_blocks = buckets.blocks_needed(due, self._clock)
        else:
            new_blocks = self._phases[self._clock % self._block_size] if size else 0
        rows: list[Row] = []
        budget: int = self._budget - size
        if budget < 0 or new_blocks > pool.free_blocks:
            return IRREGULAR
        chunks: list[tuple[Sequence, int]] = []
        if self._prefilling:
            found = self._chunks(budget, pool.free_blocks - new_blocks)
            if found is None:
                return IRREGULAR
            chunks = found
            for r, tokens in chunks:
                rows.append(Row(r, tokens, r.computed, 0, r.computed + tokens >= r.known, r.epoch))
                budget -= tokens
        if buckets is not None:
            buckets.allocate(due, chunks, self._clock, self.pending)
        else:
            for r, tokens in chunks:
                pool.grow(r.table, r.computed + tokens)
                pool.cache(r.table, min(r.computed + tokens, r.known))
            if new_blocks:
                pool.take(new_blocks)
        if waiting:
            if budget > 0 and len(policy.running) < policy.max_active:
                policy.admit_waiting(rows, budget)
            if waiting and not policy.limits.priority:
                next_arrival = NEVER  # who arrives now stands behind a head that cannot start
        if rows:
            return self._mixed_step(rows, now, next_arrival if next_arrival < next_sample else next_sample)
        if size:
            return self._leap(now, next_arrival if next_arrival < next_sample else next_sample)
        pending = self.pending
        if pending is None:
            return NOTHING
        self.done, self.pending = pending, None
        self.ledger.use_kv(pool.num_blocks - pool.free_blocks, pending.end - now)
        return pending.end

    def quiet_until(self, now: int) -> int:
        """No request ends before this instant if nobody arrives; `now` where that cannot be told in advance."""
        pending, size = self.pending, self._size
        if self.policy.waiting:
            return now
        if pending is not None and pending.finishing:
            return pending.end
        if not size or self._prefilling:
            return now
        first, slope, steps = self._ahead or self._look_ahead()
        if size > self._budget or (steps // self._block_size + 1) * size > self.pool.free_blocks:
            return now  # a preemption may let the others end sooner
        start = pending.end if pending is not None else now
        return start + first * steps + slope * (steps * (steps - 1) // 2)

    def _chunks(self, budget: int, free: int) -> list[tuple[Sequence, int]] | None:
        """The next chunk of every unfinished prompt; None if the budget or the pool would decide by list order."""
        policy = self.policy
        threshold = policy.threshold()
        chunks: list[tuple[Sequence, int]] = []
        for r in self._prefilling:
            tokens = r.known - r.computed
            if 0 < threshold < tokens:
                tokens = threshold
            if budget <= 0:
                return None
            if tokens > budget:
                if r is not policy.running.last():
                    return None
                tokens = budget
            free -= self.pool.blocks_needed(r.table, r.computed + tokens)
            if free < 0:
                return None
            budget -= tokens
            chunks.append((r, tokens))
        return chunks if free >= 0 else None

    def _mixed_step(self, rows: list[Row], now: int, next_event: int) -> int:
        """One step of the group and `rows`."""
        decodes, ledger = self._size, self.ledger
        windows = self._contexts if self.window_tokens is None else self._window_contexts()
        shape = sum_rows(
            rows, self.window_tokens, decodes=decodes, contexts=self._contexts, window_contexts=windows
        )
        duration = self.step_times.step_ps(shape)
        if ledger.work is not None:
            ledger.work.step(shape, duration)
        finishing = self._group_step(1)
        clock = self._clock
        still: list[Sequence] = []
        for r, tokens, computed, _, yields, _, _ in rows:
            r.computed = computed + tokens
            if not yields:
                still.append(r)
            elif r.known + 1 >= r.max_known:
                finishing.append(r)
            else:
                self._join(r, r.computed, clock)
        self._prefilling = still
        if len(finishing) > 1:
            finishing.sort(key=_ticket)
        ledger.decided(rows, decodes, now)
        start = now if self.pending is None else self.pending.end
        return self._launch(Pending(rows, decodes, finishing, start, duration), now, next_event)

    def _launch(self, step: Pending, now: int, next_event: int) -> int:
        """Put one step on its way; returns when to wake up."""
        ledger, ending = self.ledger, step
        ledger.busy_ps += step.duration
        if self._asynchronous:
            pending = self.pending
            self.pending = step
            if pending is None:
                return now
            ending = pending
        else:
            self.last_end = now
        end = ending.end
        ledger.use_kv(self.pool.num_blocks - self.pool.free_blocks, end - now)
        if ending.rows or ending.finishing:
            self._end(ending, next_event)
        else:
            ledger.gaps.add(end - self.last_end, ending.decodes)
            self.last_end = end
        return end

    def _leaps(self, now: int, next_event: int) -> int:
        """Leaps of the group alone: one after the other, if it matters to nobody what happens before `next_event`."""
        pool, begin = self.pool, now
        while True:
            blocks = self._phases[self._clock % self._block_size]
            if self._size > self._budget or blocks > pool.free_blocks:
                return IRREGULAR if now == begin else now
            if blocks:
                pool.take(blocks)
            now = self._leap(now, next_event)
            if now >= next_event or self.done is not None or self.settle_by < 0 or not self._size:
                return now

    def _leap(self, now: int, next_event: int) -> int:
        """As many decode steps of the group alone as nothing interferes with."""
        size, pending, ledger = self._size, self.pending, self.ledger
        first, slope, steps = self._ahead or self._look_ahead()
        if steps > 1:
            if pending is None:
                if self._asynchronous:
                    steps = 1
                elif next_event < NEVER:
                    steps = _steps_until(next_event - now, first, slope, steps)
            elif next_event <= pending.end or (
                pending.finishing and (self.policy.waiting or pending.end > self.settle_by)
            ):
                steps = 1
            elif next_event < NEVER:  # the pending step leads up to the second schedule of the leap
                steps = _steps_until(next_event - pending.end, first, slope, steps - 1) + 1
        if steps > 1:
            if pending is not None:
                end = pending.end
                ledger.use_kv(self.pool.num_blocks - self.pool.free_blocks, end - now)
                now = end
                self.pending = None
                if pending.rows or pending.finishing:
                    self._end(pending, next_event)
                else:
                    ledger.gaps.add(end - self.last_end, pending.decodes)
                    self.last_end = end
            if self._buckets is not None:
                steps = min(steps, self._buckets.steps_until_due(self._clock))
            else:
                steps = self._take_blocks(steps, first, slope)
        ledger.steps += steps
        ledger.rows += steps * size
        if ledger.work is not None:
            total = first * steps + slope * (steps * (steps - 1) // 2)
            ledger.work.leap(self._shape, size, self._contexts, steps, total)
        finishing = self._group_step(steps)
        if steps == 1:
            start = now if self.pending is None else self.pending.end
            return self._launch(Pending([], size, finishing, start, first), now, next_event)
        total = first * steps + slope * (steps * (steps - 1) // 2)
        last = first + slope * (steps - 1)
        ledger.busy_ps += total
        end = now + total
        if self._asynchronous:
            end -= last
            steps -= 1  # the last one is pending
            self.pending = Pending([], size, finishing, end, last)
        if self._buckets is not None:  # no block changes hands between its events
            ledger.use_kv(self.pool.num_blocks - self.pool.free_blocks, end - now)
        else:
            ledger.kv_busy_ps += end - now
        ledger.gaps.add_series(first, slope, steps, size)
        self.last_end = end
        if finishing and not self._asynchronous:
            self._end(Pending([], 0, finishing, end - last, last), next_event)
        return end

    def _look_ahead(self) -> tuple[int, int, int]:
        """(time of the group's next step, its growth from step to step, steps for which that and the group hold)."""
        size, contexts = self._size, self._contexts
        known = self._pieces.get(size)
        if known is not None and known[0] <= contexts <= known[1]:
            _, most, base, per_context = known
            first, slope = base + per_context * contexts, per_context * size
            steps = (most - contexts) // size + 1 if most != NEVER else NEVER
        else:
            first, slope, steps = self._decode_piece()
        until_end = self._ends[0][0] - self._clock + 1
        self._ahead = ahead = (first, slope, until_end if until_end < steps else steps)
        return ahead

    def _decode_piece(self) -> tuple[int, int, int]:
        """(time of the group's next step, its growth from step to step, steps for which that holds)."""
        size, contexts = self._size, self._contexts
        if self.window_tokens is not None:
            return self._windowed_piece()
        known = self._pieces.get(size)
        if known is None or not known[0] <= contexts <= known[1]:
            shape = self._shape()
            piece = self.step_times.decode_piece(shape)
            if piece is None:
                return self.step_times.step_ps(shape), 0, 1
            most = NEVER if piece.max_context_tokens is None else piece.max_context_tokens
            if piece.max_window_context_tokens is not None:
                most = min(most, piece.max_window_context_tokens)
            known = (contexts, most, piece.base_ps, piece.context_ps + piece.window_context_ps)
            self._pieces[size] = known
        _, most, base, per_context = known
        return base + per_context * contexts, per_context * size, (most - contexts) // size + 1

    def _windowed_piece(self) -> tuple[int, int, int]:
        """The same where contexts count twice: whole, and clipped to the window."""
        size, contexts, growing = self._size, self._contexts, self._growing
        windows = self._window_contexts()
        shape = self._shape()
        piece = self.step_times.decode_piece(shape)
        if piece is None:
            return self.step_times.step_ps(shape), 0, 1
        first = piece.base_ps + piece.context_ps * contexts + piece.window_context_ps * windows
        steps = NEVER
        if piece.max_context_tokens is not None:
            steps = (piece.max_context_tokens - contexts) // size + 1
        if growing:
            steps = min(steps, self._saturations[0][0] - self._clock)
            if piece.max_window_context_tokens is not None:
                steps = min(steps, (piece.max_window_context_tokens - windows) // growing + 1)
        return first, piece.context_ps * size + piece.window_context_ps * growing, steps

    def _window_contexts(self) -> int:
        """Sum of the next step's contexts, each clipped to the window."""
        if self.window_tokens is None:
            return self._contexts
        return self._growing_contexts + self._saturated_contexts

    def _shape(self) -> StepShape:
        """The group's next step, alone."""
        contexts = self._contexts
        windows = contexts if self.window_tokens is None else self._window_contexts()
        return new_tuple(StepShape, (0, 0, 0, 0, 0, 0, 0, self._size, 0, contexts, windows))

    def _group_step(self, steps: int) -> list[Sequence]:
        """Move the group's clock; returns the members that the last of these steps completes, and drops them."""
        clock = self._clock = self._clock + steps
        self._contexts += self._size * steps
        self._ahead = None
        if self._growing:
            self._saturate(steps)
        ends = self._ends
        finishing: list[Sequence] = []
        while ends and ends[0][0] < clock:
            r = heapq.heappop(ends)[2]
            finishing.append(r)
            self._leave(r)
        return finishing

    def _saturate(self, steps: int) -> None:
        """Growing contexts grow, and those that reach the window stay there."""
        self._growing_contexts += self._growing * steps
        saturations, window = self._saturations, self.window_tokens
        assert window is not None
        while saturations and saturations[0][0] <= self._clock:
            heapq.heappop(saturations)
            self._growing -= 1
            self._growing_contexts -= window
            self._saturated_contexts += window

    def _leave(self, r: Sequence) -> None:
        offset, clock, window = r.offset, self._clock, self.window_tokens
        self._size -= 1
        self._contexts -= offset + clock + 1
        if self._buckets is not None:
            self._buckets.remove(r)
        else:
            place, phases = -offset % self._block_size, self._phases
            phases[place] -= 1
            phases[place + self._block_size] -= 1
        if window is not None:
            full_at = window - 1 - offset
            if full_at <= clock:
                self._saturated_contexts -= window
            else:
                self._growing -= 1
                self._growing_contexts -= offset + clock + 1
                self._saturations.remove((full_at, r.ticket))
                heapq.heapify(self._saturations)

    def _take_blocks(self, steps: int, first: int, slope: int) -> int:
        """Take the blocks of a leap's steps after the first; fewer steps, if there are not enough: returns how many.

        Step j takes its blocks at the instant I_j at which it is scheduled, and so adds to the KV use from then on.
        Synchronous: I_j = j·first + slope·j(j-1)/2. Asynchronous: I_j = (j-1)·first + slope·(j-1)(j-2)/2, I_0 = 0.
        """
        pool, ledger, phases, block_size = self.pool, self.ledger, self._phases, self._block_size
        free: int = pool.free_blocks
        if (steps + block_size - 2) // block_size * self._size > free:
            steps = self._fitting(steps, free)
            if steps == 1:
                return 1
        last = steps - 1
        used = pool.num_blocks - free
        clock = self._clock % block_size + 1
        if last <= block_size:
            block_ps, duration = (0, first) if self._asynchronous else (used * first, first + slope)
            for blocks in phases[clock : clock + last]:
                used += blocks
                block_ps += used * duration
                duration += slope
        else:
            taken, places, squares = self._cycled_moments(phases[clock : clock + block_size], last)
            if self._asynchronous:
                constant, linear = 2 * (slope - first), 2 * first - 3 * slope
            else:
                constant, linear = 0, 2 * first - slope
            # twice I_j = constant + linear·j + slope·j²
            end = constant + (linear + slope * steps) * steps
            used += taken
            block_ps = (used * end - constant * taken - linear * places - slope * squares) // 2
        ledger.kv_block_ps += block_ps
        if used > ledger.kv_peak_blocks:
            ledger.kv_peak_blocks = used
        if used != pool.num_blocks - free:
            pool.take(free + used - pool.num_blocks)
        return steps

    def _moments(self, blocks: list[int]) -> tuple[int, int, int]:
        """Sums of blocks_j, j·blocks_j and j²·blocks_j over j = 1, 2, ..."""
        return sum(blocks), sum(map(mul, blocks, self._places)), sum(map(mul, blocks, self._squares))

    def _cycled_moments(self, blocks: list[int], last: int) -> tuple[int, int, int]:
        """The same up to j = `last`, where blocks_j repeats with its length."""
        cycle = len(blocks)
        times, rest = divmod(last, cycle)
        b0, b1, b2 = self._moments(blocks)
        r0, r1, r2 = self._moments(blocks[:rest])
        pairs = times * (times - 1) // 2
        shift = times * cycle
        taken = times * b0 + r0
        places = times * b1 + cycle * pairs * b0 + r1 + shift * r0
        squares = times * b2 + 2 * cycle * pairs * b1 + cycle * cycle * (pairs * (2 * times - 1) // 3) * b0
        return taken, places, squares + r2 + 2 * shift * r1 + shift * shift * r0

    def _fitting(self, steps: int, free: int) -> int:
        """The longest start of a leap that finds blocks for all its steps; those of the first are taken already."""
        block_size: int = self.pool.block_size
        phases, clock = self._phases, self._clock
        cycles = min((steps - 1) // block_size, free // self._size)
        free -= cycles * self._size
        fitting = cycles * block_size + 1
        while fitting < steps:
            free -= phases[(clock + fitting) % block_size]
            if free < 0:
                break
            fitting += 1
        return fitting

    # account

    def _end(self, step: Pending, next_event: int) -> None:
        """Account for a step at once, or leave it to `settle`: at its end something else may see or answer."""
        if not step.finishing:
            self._account(step)
        elif step.end <= self.settle_by and step.end <= next_event:
            for r in self._account(step):
                self.finished(r, step.end)
        else:
            self.done = step

    def settle(self) -> Items[Sequence]:
        """Account for the step that ends now; returns the requests that it finished."""
        done = self.done
        assert done is not None
        self.done = None
        return self._account(done)

    def _account(self, step: Pending) -> Items[Sequence]:
        ledger, policy, pool = self.ledger, self.policy, self.pool
        now = step.end
        if step.decodes:
            ledger.gaps.add(now - self.last_end, step.decodes)
        for r, _, _, _, yields, _, _ in step.rows:
            if yields:
                ledger.delivered(r, now)
        running = policy.running
        for r in step.finishing:
            r.known = r.max_known
            pool.finish(r.table, r.known - 1)
            del running[r.ticket]
            r.status = FINISHED
        self.last_end = now
        return step.finishing

    # hand over

    def spell_out(self) -> Step | None:
        """Give every request its own state back; returns the step that is pending, row by row."""
        policy, pool, pending, clock = self.policy, self.pool, self.pending, self._clock
        grouped = {r.ticket for _, _, r in self._ends}
        explicit = {row.sequence.ticket: row for row in pending.rows} if pending else {}
        finishing = {r.ticket for r in pending.finishing} if pending else set()
        step = Step(start=pending.start, end=pending.end) if pending else None
        for r in policy.running.values():
            row = explicit.get(r.ticket)
            ends = r.ticket in finishing
            if r.ticket in grouped or (ends and row is None):
                r.computed = r.max_known - 1 if ends else r.offset + clock
                r.known = r.computed if pending else r.computed + 1
                if self._buckets is None:
                    r.table.held = -(-r.computed // pool.block_size)
                    pool.cache(r.table, r.computed - (1 if pending else 0))
                if row is None:
                    r.last_token = self.last_end
                    if step is not None:
                        row = Row(r, 1, r.computed - 1, 0, True, r.epoch)
            if row is not None and step is not None:
                step.rows.append(row)
                r.in_flight_tokens += row.tokens
                if row.yields:
                    r.in_flight_yields += 1
                    r.placeholders = 1
        policy.running = list(policy.running.values())
        self._clear()
        self.pending = None
        self.active = False
        return step

    def take_over(self, in_flight: Any, last_end: int) -> bool:
        """Form the group from the policy's state, if that is regular; `in_flight` is emptied then."""
        policy = self.policy
        if len(in_flight) > (1 if policy.asynchronous else 0):
            return False
        step: Step | None = in_flight[0] if in_flight else None
        if step is not None and (
            not step.rows or step.preempted or any(row.epoch != row.sequence.epoch for row in step.rows)
        ):
            return False
        rows = {row.sequence.index: row for row in step.rows} if step is not None else {}
        self._clear()
        pending = Pending([], 0, [], step.start, step.end - step.start) if step is not None else None
        running = Running()
        for r in policy.running:
            running.append(r)
            row = rows.get(r.index)
            r.in_flight_tokens = r.in_flight_yields = r.placeholders = 0
            grouped = r.last_token == last_end
            if row is not None and pending is not None:
                ends = row.yields and r.known + 1 >= r.max_known
                if row.yields and grouped and row.tokens == 1:
                    pending.decodes += 1
                else:
                    pending.rows.append(row)
                if ends:
                    pending.finishing.append(r)
                    r.offset = 0
                elif row.yields:
                    self._join(r, r.computed, 0)
                else:
                    self._prefilling.append(r)
            elif r.known - r.computed == 1 and grouped and step is None:
                self._join(r, r.computed, 0)
            else:
                self._prefilling.append(r)
        policy.running = running
        in_flight.clear()
        self.pending = pending
        self.last_end = last_end
        self.active = True
        return True


def _ticket(r: Sequence) -> int:
    return r.ticket


def _steps_until(wait: int, first: int, slope: int, most: int) -> int:
    """The least number of steps (of first, first + slope, ... ps) that last `wait` ps or more, but at most `most`."""
    if wait <= first:
        return 1
    if not slope:
        return min(-(-wait // first), most)
    linear = first - slope / 2
    steps = int((sqrt(linear * linear + 2.0 * slope * wait) - linear) / slope)  # wrong by one at most
    if steps > most:
        return most
    if steps < 1:
        steps = 1
    total = first * steps + slope * (steps * (steps - 1) // 2)
    while total < wait:
        total += first + slope * steps
        steps += 1
    last = first + slope * (steps - 1)
    while total - last >= wait:
        total -= last
        last -= slope
        steps -= 1
    return steps if steps < most else most
