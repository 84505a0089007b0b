"""vLLM V1: continuous batching with chunked prefill, one token budget, recompute preemption.

Synchronous, asynchronous (two batches in flight) and pipeline micro-batches are one policy: they differ in how many
steps may be in flight and in the placeholders that an asynchronous step reserves for tokens not yet known.
Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` and `async_scheduler.py`; rules as the reference schedules confirm.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from capacity.simulator.kv_cache.pool import Hit, PagedPool
from capacity.simulator.schedulers.encoding import ImageEncoder
from capacity.simulator.schedulers.policy import QueuedPolicy, cache_full, insert_loaded
from capacity.simulator.schedulers.sequence import Row, SchedulerLimits, Sequence, Speculation, Status, Step

RUNNING, FINISHED = Status.RUNNING, Status.FINISHED  # a look-up in an Enum costs as much as several calls
new_tuple = tuple.__new__  # a NamedTuple's own constructor, without its detour


class WaitingQueue(Protocol):
    """Who waits, in the order in which they are tried."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence]: ...
    def head(self) -> Sequence: ...
    def pop(self) -> Sequence: ...
    def add(self, sequence: Sequence) -> None: ...
    def put_back(self, sequence: Sequence) -> None: ...
    def remove(self, sequence: Sequence) -> None: ...


class FcfsQueue(deque[Sequence]):
    """Arrival order; a preempted request goes to the front."""

    add = deque.append
    put_back = deque.appendleft
    pop = deque.popleft

    def head(self) -> Sequence:
        return self[0]


class PriorityQueue:
    """Lowest (priority, arrival, id) first, whoever comes back included."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, object, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[-1] for entry in self._heap)

    def head(self) -> Sequence:
        return self._heap[0][-1]

    def pop(self) -> Sequence:
        return heapq.heappop(self._heap)[-1]

    def add(self, sequence: Sequence) -> None:
        entry = (sequence.priority, sequence.arrival, sequence.id, sequence.index, sequence)
        heapq.heappush(self._heap, entry)

    put_back = add

    def remove(self, sequence: Sequence) -> None:
        self._heap = [entry for entry in self._heap if entry[-1] is not sequence]
        heapq.heapify(self._heap)


class VllmV1(QueuedPolicy):
    """The V1 scheduler over a KV pool. `schedule()` decides a step, `update()` takes its output."""

    wake_ps: int | None = None  # no decision of this policy waits for the clock
    aborts = True

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: PagedPool,
        *,
        asynchronous: bool = False,
        speculation: Speculation | None = None,
    ) -> None:
        self.limits = limits
        self.pool = pool
        self.asynchronous = asynchronous
        self.speculation = speculation
        self.steps_in_flight = limits.pipeline_stages + (
            1 if asynchronous and limits.pipeline_stages == 1 else 0
        )
        self.running: list[Sequence] = []
        self.waiting: WaitingQueue = PriorityQueue() if limits.priority else FcfsQueue()
        self._lookahead = speculation.lookahead_slots if speculation else 0
        self._watermark_blocks = int(limits.watermark * pool.num_blocks)
        self.max_active = limits.max_num_active_seqs or limits.max_num_seqs
        self._windowed = pool.windowed  # else nothing ever leaves a window
        self._since_prefill: int | None = None  # executed steps since the last one with a prefill row
        self._admission_bound = False
        self._order_before: list[Sequence] = []  # the running list at the beginning of a step
        self.encoder = ImageEncoder(limits.max_encoder_tokens) if limits.max_encoder_tokens else None

    def add(self, sequence: Sequence) -> bool:
        self.waiting.add(sequence)
        return True

    def add_loaded(self, sequence: Sequence) -> None:
        if isinstance(self.waiting, FcfsQueue):
            insert_loaded(self.waiting, sequence, self.pool)
        else:
            self.waiting.add(sequence)

    # decide

    def schedule(self, now_ps: int = 0) -> Step:  # noqa: ARG002
        limits = self.limits
        step = Step()
        if self.encoder is not None:
            self.encoder.begin(step)
        budget = limits.max_num_batched_tokens
        threshold = self.threshold()
        holds = self._holds_prefill()
        budget = self._schedule_running(step, budget, threshold, holds)
        if not step.preempted and not holds:
            self.admit_waiting(step.rows, budget)
        if not holds:
            self._admission_bound = len(self.waiting) > 0
        if len(step.preempted) > 1:
            step.preempted.sort(key=self._order_before.index)
        self._commit(step)
        return step

    def threshold(self) -> int:
        """Most tokens of one prefill in this step; 0: no limit."""
        limit = self.limits.long_prefill_token_threshold
        return 0 if limit and self.limits.lone_prefill_exempt and self.unfinished <= 1 else limit

    def _holds_prefill(self) -> bool:
        """Prefill cadence: prefills wait while decodes run, unless requests are kept waiting anyway."""
        if self._since_prefill is None or self._since_prefill >= self.limits.prefill_schedule_interval:
            return False
        return not self._admission_bound and any(r.computed >= r.prompt_tokens for r in self.running)

    def _schedule_running(self, step: Step, budget: int, threshold: int, holds: bool) -> int:
        limits, pool, rows, asynchronous = self.limits, self.pool, step.rows, self.asynchronous
        lookahead, last_slot, windowed = self._lookahead, limits.max_model_len - 1, self._windowed
        order = self._order_before = list(self.running)
        for r in order:
            if budget <= 0:
                break
            if r.status is not RUNNING:  # preempted for one before it
                continue
            computed, known, placeholders = r.computed, r.known, r.placeholders
            if holds and computed < r.prompt_tokens:
                continue
            if asynchronous and known + r.in_flight_yields >= r.max_known:
                continue
            tokens = known + r.drafts + placeholders - computed
            if 0 < threshold < tokens:
                tokens = threshold
            if tokens > budget:
                tokens = budget
            end = computed + tokens
            if end > last_slot:
                end, tokens = last_slot, last_slot - computed
            if r.images and tokens > 0:
                tokens = self._up_to_image(r, computed, tokens)
                end = computed + tokens
            if tokens <= 0:
                continue
            if windowed:
                pool.leave_window(r.table, computed - r.in_flight_tokens)
            if end + lookahead > r.room:
                budget += self._make_room(r, end, step)
                if r.status is not RUNNING:  # it was the last to be preempted for itself
                    if limits.priority and limits.self_preempt_continues:
                        continue
                    break
            if end >= r.next_full:
                cache_full(pool, r, min(end, known))
            if r.images:
                self._encode(r, computed, tokens)
            budget -= tokens
            drafts = end - known - placeholders
            row = (r, tokens, computed, drafts if drafts > 0 else 0, end >= known, r.epoch, 0)
            rows.append(new_tuple(Row, row))
        return budget

    def _up_to_image(self, r: Sequence, computed: int, tokens: int) -> int:
        return tokens if self.encoder is None else self.encoder.reach(r, computed, tokens)

    def _encode(self, r: Sequence, computed: int, tokens: int) -> None:
        if self.encoder is not None:
            self.encoder.encode(r, computed, tokens)

    def _make_room(self, r: Sequence, end: int, step: Step) -> int:
        """Blocks for its tokens up to `end`: others are preempted until there are, itself at last. Returns refunds."""
        refunds = 0
        while r.status is RUNNING and not self._take_blocks(r, end):
            refunds += self._preempt(self._victim(), step)
        return refunds

    def _take_blocks(self, r: Sequence, end: int) -> bool:
        """Blocks for its tokens up to `end`, and for the look-ahead; False: they are not free."""
        pool, table = self.pool, r.table
        slots = min(end + self._lookahead, self.limits.max_model_len)
        if pool.blocks_needed(table, slots) > pool.free_blocks:
            return False
        pool.grow(table, slots)
        r.room = -(-slots // pool.block_size) * pool.block_size
        return True

    def _victim(self) -> Sequence:
        running: list[Sequence] = self.running
        if not self.limits.priority:
            return running[-1]
        return max(running, key=lambda r: (r.priority, r.arrival))

    def _preempt(self, victim: Sequence, step: Step) -> int:
        """Free all its blocks and send it back; returns the budget refunded."""
        self.running.remove(victim)
        refund = 0
        for i, row in enumerate(step.rows):
            if row.sequence is victim:
                refund = row.tokens
                del step.rows[i]
                break
        self.pool.release(victim.table)
        if self.encoder is not None:
            self.encoder.take_back(victim)
            self.encoder.release(victim)
        victim.computed = victim.drafts = victim.placeholders = 0
        victim.room = victim.next_full = 0
        victim.epoch += 1
        victim.preemptions += 1
        victim.status = Status.WAITING
        self.waiting.put_back(victim)
        step.preempted.append(victim)
        return refund

    def admit_waiting(self, rows: list[Row], budget: int) -> None:
        """Start requests from the head of the queue, until one does not fit: nobody behind it is tried."""
        running, waiting, max_active = self.running, self.waiting, self.max_active
        threshold = self.threshold() if self.limits.long_prefill_token_threshold else 0
        while waiting and budget > 0 and len(running) < max_active:
            tokens = self._start(waiting.head(), rows, budget, threshold)
            if not tokens:
                break
            budget -= tokens

    def _start(self, r: Sequence, rows: list[Row], budget: int, threshold: int) -> int:
        """Start the head of the queue; returns its tokens in this step, 0 if it does not fit."""
        hit = self.pool.lookup(r.table, r.known - 1)
        computed: int = hit[0]
        tokens = r.known - computed
        if 0 < threshold < tokens:
            tokens = threshold
        if tokens > budget:
            if not self.limits.enable_chunked_prefill:
                return 0
            tokens = budget
        if r.images:
            tokens = self._up_to_image(r, computed, tokens)
            if not tokens:
                return 0
        if self.speculation is not None and self._pads_speculation(r, computed, rows):
            tokens = 1 + self.speculation.k
            if tokens > budget:
                return 0
            r.drafts = self.speculation.k
        if not self._admit(r, tokens, hit):
            r.drafts = 0
            return 0
        if r.images:
            self._encode(r, computed, tokens)
        self.waiting.pop()
        self.running.append(r)
        r.status = RUNNING
        r.computed = computed
        drafts = tokens + computed - r.known
        yields = drafts >= 0
        row = (r, tokens, computed, drafts if yields else 0, yields, r.epoch, computed)
        rows.append(new_tuple(Row, row))
        return tokens

    def _pads_speculation(self, r: Sequence, computed: int, rows: list[Row]) -> bool:
        """A request that needs one token is padded to a verification row while no prefill runs beside it."""
        return r.known - computed == 1 and all(row.computed >= row.sequence.prompt_tokens for row in rows)

    def _admit(self, r: Sequence, tokens: int, hit: Hit) -> bool:
        pool, limits, table, known = self.pool, self.limits, r.table, r.known
        free = pool.free_blocks
        if self._watermark_blocks and self.running:
            free -= self._watermark_blocks
        end = hit[0] + tokens
        slots = end + self._lookahead
        if slots > limits.max_model_len:
            slots = limits.max_model_len
        if limits.reserve_full_isl and end != known:
            whole = min(known, limits.max_model_len)
            if pool.blocks_needed(table, whole, hit, capped=True) > free:
                return False
        if pool.blocks_needed(table, slots, hit) > free:
            return False
        pool.grow(table, slots, hit)
        r.room = -(-slots // pool.block_size) * pool.block_size
        cache_full(pool, r, min(end, known))
        return True

    def _commit(self, step: Step) -> None:
        """Count the scheduled tokens as computed, at once: the step's output corrects it."""
        asynchronous, speculation = self.asynchronous, self.speculation
        for r, tokens, _, drafts, yields, _, _ in step.rows:
            r.computed += tokens
            r.in_flight_tokens += tokens
            if yields:
                r.in_flight_yields += 1
                if asynchronous:
                    r.placeholders += 1 + drafts
            if speculation is not None:
                r.drafts = speculation.k if yields and asynchronous else 0
        if self.limits.prefill_schedule_interval > 1 and step.rows:
            self._count_cadence(step.rows)

    def _count_cadence(self, rows: list[Row]) -> None:
        """Steps since the last one with a prefill row."""
        if any(row.computed < row.sequence.prompt_tokens for row in rows):
            self._since_prefill = 1
        elif self._since_prefill is not None:
            self._since_prefill += 1

    # account

    def update(self, step: Step) -> list[Sequence]:
        """Append what the step sampled; returns the requests that it finished, in row order."""
        asynchronous, speculation, emitted = self.asynchronous, self.speculation, step.emitted
        finished: list[Sequence] = []
        for r, tokens, _, drafts, yields, epoch, _ in step.rows:
            r.in_flight_tokens -= tokens
            if r.images and epoch == r.epoch and self.encoder is not None:
                self.encoder.computed(r)
            if not yields:
                continue
            r.in_flight_yields -= 1
            if r.status is FINISHED:
                continue
            accepted = speculation.accepted(r, drafts) if drafts and speculation is not None else 0
            before = r.known
            known = before + 1 + accepted
            if known >= r.max_known:
                known = r.max_known
                finished.append(r)
            r.known = known
            emitted.append((r, known - before))
            if epoch != r.epoch:  # preempted since: nothing of it is computed
                continue
            if drafts:
                r.computed -= drafts - accepted
            if asynchronous:
                r.placeholders -= 1 + drafts
            elif speculation is not None:
                r.drafts = speculation.k
            computed = r.computed - r.placeholders
            if computed >= r.next_full:
                cache_full(self.pool, r, min(computed, known))
        for r in finished:
            self._finish(r)
        step.finished.extend(finished)
        return finished

    def abort(self, r: Sequence) -> None:
        self._finish(r)

    def _finish(self, r: Sequence) -> None:
        if r.status == Status.WAITING:
            self.waiting.remove(r)
        else:
            self.running.remove(r)
        self.pool.release(r.table)
        if r.images and self.encoder is not None:
            self.encoder.release(r)
        r.status = Status.FINISHED
