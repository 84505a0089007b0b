"""vLLM V1 scheduler: continuous batching with chunked prefill, one token budget and preemption by recomputation.

Synchronous scheduling, asynchronous scheduling (two batches in flight) and pipeline micro-batches are one policy. They
differ in the number of steps in flight and in the placeholders that an asynchronous step reserves for tokens that are
not known yet. Asynchronous scheduling with pipeline stages is that of Model Runner V2: a request that decodes in one
call of `schedule` is skipped until as many calls later as there are stages. Source: vLLM 0.33.0
`v1/core/sched/scheduler.py` and `async_scheduler.py`, checked against schedules recorded from vLLM.
"""

from bisect import insort
from collections import deque
from itertools import takewhile

from capacity.simulator.kv_cache.pool import Hit, PagedPool
from capacity.simulator.schedulers.encoding import ImageEncoder
from capacity.simulator.schedulers.policy import QueuedPolicy, insert_loaded, watermark_blocks
from capacity.simulator.schedulers.sequence import Row, SchedulerLimits, Sequence, Speculation, Status, Step

NO_THRESHOLD = 1 << 62  # tokens


class FcfsQueue(deque[Sequence]):
    """Waiting requests in order of arrival; a preempted request goes to the front."""

    add = deque.append
    put_back = deque.appendleft
    pop = deque.popleft


class PriorityQueue(FcfsQueue):
    """Waiting requests, including preempted ones, ordered by (priority, arrival, id)."""

    def add(self, sequence: Sequence) -> None:
        insort(self, sequence, key=lambda r: (r.priority, r.arrival, r.id))

    put_back = add


class VllmV1(QueuedPolicy):
    """Policy of vLLM V1 over a KV pool."""

    aborts = True
    pool: PagedPool

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: PagedPool,
        *,
        asynchronous: bool = False,
        speculation: Speculation | None = None,
    ) -> None:
        super().__init__(limits, pool, speculation=speculation)
        self.asynchronous = asynchronous
        self.staggers = asynchronous and limits.pipeline_stages > 1
        self._calls = 0  # of `schedule`
        self.steps_in_flight = limits.steps_in_flight(asynchronous=asynchronous)
        self.empty_steps = limits.empty_steps(asynchronous=asynchronous)
        self.waiting: FcfsQueue = PriorityQueue() if limits.priority else FcfsQueue()
        self._lookahead = speculation.lookahead_slots if speculation else 0
        self._watermark_blocks = watermark_blocks(limits.watermark, pool.num_blocks)
        self.max_active = limits.max_num_active_seqs or limits.max_num_seqs
        self._since_prefill: int | None = None  # executed steps since the last prefill row
        self._threshold = NO_THRESHOLD  # most tokens of one prefill in this step
        self._admission_bound = False
        self._holds = False  # prefills wait in this step
        self._some_scheduled = False  # of the running requests, in this step
        self._prefill_scheduled = False  # one of these was in its prefill
        self._prefill_started = (
            False  # a request has started in this step with more than one token to compute
        )
        self._order_before: list[Sequence] = []  # running requests at the start of the step
        self._passed_over = 0  # requests that this step still has to skip
        self.encoder = ImageEncoder(limits.max_encoder_tokens) if limits.max_encoder_tokens else None

    def add(self, sequence: Sequence) -> bool:
        self.waiting.add(sequence)
        return True

    def add_loaded(self, sequence: Sequence) -> None:
        if self.limits.priority:
            self.waiting.add(sequence)
        else:
            insert_loaded(self.waiting, sequence, self.pool)

    def schedule(self, now_ps: int = 0) -> Step:  # noqa: ARG002
        step = Step()
        self._calls += 1
        limit = self.limits.long_prefill_token_threshold
        exempt = self.limits.rules.lone_prefill_exempt and self.unfinished <= 1
        self._threshold = NO_THRESHOLD if not limit or exempt else limit
        if self.encoder is not None:
            self.encoder.begin_step(step)
        self._holds = self._holds_prefill()
        self._prefill_scheduled = self._prefill_started = False
        budget = self._schedule_running(step)
        self._some_scheduled = bool(step.rows)
        if not step.preempted:
            self.admit_waiting(step.rows, budget)
            if not self._holds:
                self._admission_bound = not all(r.deferred for r in self.waiting)
        if len(step.preempted) > 1:
            step.preempted.sort(key=self._order_before.index)
        self._commit(step)
        return step

    def _holds_prefill(self) -> bool:
        """Return whether prefills wait for decodes until `prefill_schedule_interval` steps have passed."""
        if self._since_prefill is None or self._since_prefill >= self.limits.prefill_schedule_interval:
            return False
        return not self._admission_bound and not all(r.mid_prefill for r in self.running)

    def _schedule_running(self, step: Step) -> int:
        """Schedule the running requests in order and return the remaining token budget."""
        limits, pool = self.limits, self.pool
        budget = limits.max_num_batched_tokens
        self._order_before = list(self.running)
        self._passed_over = 0
        for r in self._order_before:
            if budget <= 0:
                break
            if r.status != Status.RUNNING:  # preempted for an earlier request
                continue
            if self._passed_over:
                self._passed_over -= 1
                continue
            if self._holds and r.mid_prefill:
                continue
            if self.asynchronous and (
                r.known + r.in_flight_yields >= r.max_known or self._calls < r.next_call
            ):
                continue
            wanted = r.known + r.drafts + r.placeholders - r.computed
            tokens = min(wanted, self._threshold, budget, limits.max_model_len - 1 - r.computed)
            if self.encoder is not None:
                tokens = self.encoder.schedulable_tokens(r, r.computed, tokens)
            if tokens <= 0:
                continue
            pool.leave_window(r.table, r.computed - r.in_flight_tokens * limits.rules.window_waits_for_steps)
            end = r.computed + tokens
            if pool.blocks_needed(r.table, self._slots_needed(end)):
                budget += self._make_room(r, end, step)
            if r.status != Status.RUNNING:  # preempted for itself
                if limits.priority and limits.rules.self_preempt_continues:
                    continue
                break
            pool.cache(r.table, min(end, r.known))
            if self.encoder is not None:
                self.encoder.encode(r, r.computed, tokens)
            budget -= tokens
            self._prefill_scheduled |= r.mid_prefill
            drafts = max(end - r.known - r.placeholders, 0)
            step.rows.append(Row(r, tokens, r.computed, drafts, end >= r.known, r.epoch))
        return budget

    def _slots_needed(self, end: int) -> int:
        """Return the number of KV slots needed to compute tokens up to `end`, including lookahead slots."""
        return min(end + self._lookahead, self.limits.max_model_len)

    def _make_room(self, r: Sequence, end: int, step: Step) -> int:
        """Allocate blocks for a request up to token `end`; if too few are free, preempt other requests and finally the
        request itself. Return the number of scheduled tokens that the budget regains."""
        refunds = 0
        while r.status == Status.RUNNING and not self._take_blocks(r, end):
            victim = self._select_victim()
            is_before = self.running.index(victim) < self.running.index(r)
            refund = self._preempt(victim, step)
            if is_before and not refund and not self.limits.rules.preemption_shifts_index:
                self._passed_over += 1
            refunds += refund
        return refunds

    def _take_blocks(self, r: Sequence, end: int) -> bool:
        """Allocate blocks up to token `end` and its lookahead slots; return False if too few are free."""
        slots = self._slots_needed(end)
        if self.pool.blocks_needed(r.table, slots) > self.pool.free_blocks:
            return False
        self.pool.grow(r.table, slots)
        return True

    def _select_victim(self) -> Sequence:
        if not self.limits.priority:
            return self.running[-1]
        return max(self.running, key=lambda r: (r.priority, r.arrival))

    def _preempt(self, victim: Sequence, step: Step) -> int:
        """Free all blocks of a request and requeue it; return its scheduled tokens, which the budget regains."""
        self.running.remove(victim)
        refund = 0
        for i, row in enumerate(step.rows):
            if row.sequence is victim:
                refund = row.tokens
                del step.rows[i]
                break
        self.pool.release(victim.table)
        if self.encoder is not None:
            self.encoder.cancel_encoding(victim)
            self.encoder.release(victim)
        victim.start_again()
        if self.limits.priority or self.limits.rules.skipped_keep_place:
            self.waiting.put_back(victim)
        else:
            self.waiting.insert(sum(1 for _ in takewhile(lambda r: r.deferred, self.waiting)), victim)
        step.preempted.append(victim)
        return refund

    def admit_waiting(self, rows: list[Row], budget: int) -> None:
        """Start requests from the head of the queue until one does not fit. Skipped requests keep their places."""
        aside: list[Sequence] = []
        while self.waiting and budget > 0 and len(self.running) < self.max_active:
            if self.skips_request(self.waiting[0], rows):
                aside.append(self.defer_first())
                continue
            tokens = self._start(self.waiting[0], rows, budget)
            if not tokens:
                break
            budget -= tokens
        for r in reversed(aside):
            self.waiting.put_back(r)

    def defer_first(self) -> Sequence:
        """Remove the first waiting request from the queue, because this step skips it."""
        r = self.waiting.pop()
        r.deferred = True
        return r

    def skips_request(self, r: Sequence, rows: list[Row]) -> bool:  # noqa: ARG002
        """Return whether the first waiting request is skipped in this step, whose rows so far are `rows`."""
        return self.limits.rules.waits_for_stale_output and r.in_flight_tokens > 0

    def _start(self, r: Sequence, rows: list[Row], budget: int) -> int:
        """Start the first waiting request; return its number of tokens in this step, 0 if it does not fit."""
        hit = self.pool.lookup(r.table, r.known - 1)
        computed: int = hit[0]
        is_prefill = r.known - computed > 1
        if self._holds and is_prefill:
            return 0
        tokens = self._chunk_tokens(r.known - computed, budget)
        if self.encoder is not None:
            tokens = self.encoder.schedulable_tokens(r, computed, tokens)
        if not tokens:
            return 0
        if self.speculation is not None and not is_prefill and self._pads_speculation(computed):
            padded = 1 + self.speculation.k
            starts_unpadded = self.limits.rules.starts_without_room
            pads = computed + padded + starts_unpadded <= self.limits.max_model_len
            if padded > budget if pads else not starts_unpadded:
                return 0
            if pads:
                tokens, r.drafts = padded, self.speculation.k
        if not self._admit(r, tokens, hit):
            r.drafts = 0
            return 0
        if self.encoder is not None:
            self.encoder.encode(r, computed, tokens)
        self.waiting.pop()
        self.running.append(r)
        self._prefill_started |= is_prefill
        r.status = Status.RUNNING
        r.computed = computed
        drafts = max(tokens + computed - r.known, 0)
        rows.append(Row(r, tokens, computed, drafts, computed + tokens >= r.known, r.epoch, computed))
        return tokens

    def _chunk_tokens(self, wanted: int, budget: int) -> int:
        """Return how many prompt tokens to compute in this step; 0 if they exceed the budget and cannot be chunked."""
        tokens = min(wanted, self._threshold)
        if tokens > budget:
            return budget if self.limits.enable_chunked_prefill else 0
        return tokens

    def _pads_speculation(self, computed: int) -> bool:
        """Return whether a request that starts with one token to compute gets drafts. It does if no running request of
        this step is in its prefill, and either some requests run or all other tokens of the request are cached."""
        rules = self.limits.rules
        starts_cached = rules.pads_cached_starts and computed > 0
        return rules.pads_drafts and not self._prefill_scheduled and (self._some_scheduled or starts_cached)

    def _admit(self, r: Sequence, tokens: int, hit: Hit) -> bool:
        pool, limits = self.pool, self.limits
        free = pool.free_blocks - (self._watermark_blocks if self.running else 0)
        end = hit[0] + tokens
        slots = self._slots_needed(end) if limits.rules.admits_with_lookahead else end
        whole = min(r.known, limits.max_model_len)
        if limits.reserve_full_isl and pool.blocks_needed(r.table, whole, hit, capped=True) > free:
            return False
        if pool.blocks_needed(r.table, slots, hit) > free:
            return False
        pool.grow(r.table, slots, hit)
        pool.cache(r.table, min(end, r.known))
        return True

    def _commit(self, step: Step) -> None:
        """Count the scheduled tokens as computed before the step ends; `update` corrects this with the output."""
        for r, tokens, _, drafts, yields, _, _ in step.rows:
            r.computed += tokens
            r.in_flight_tokens += tokens
            r.in_flight_yields += yields
            r.mid_prefill = not yields
            if yields and self.asynchronous:
                r.placeholders += 1 + drafts
                r.next_call = self._calls + self.limits.pipeline_stages
            if self.speculation is not None:
                r.drafts = self.speculation.k if yields and self.asynchronous else 0
        if self._prefill_scheduled or self._prefill_started:
            self._since_prefill = 1
        elif step.rows and self._since_prefill is not None:
            self._since_prefill += 1

    def update(self, step: Step) -> list[Sequence]:
        """Append the sampled tokens and return the finished requests in row order."""
        speculation = self.speculation
        for r, tokens, _, drafts, yields, epoch, _ in step.rows:
            r.in_flight_tokens -= tokens
            r.in_flight_yields -= yields
            if self.encoder is not None and epoch == r.epoch:
                self.encoder.free_computed(r)
            if not yields or r.status == Status.FINISHED:
                continue
            accepted = speculation.count_accepted(r, drafts) if drafts and speculation is not None else 0
            appended = min(1 + accepted, r.max_known - r.known)
            r.known += appended
            step.emitted.append((r, appended))
            if r.known == r.max_known:
                step.finished.append(r)
            if epoch != r.epoch:  # preempted since, so its KV is lost
                continue
            r.computed -= drafts - accepted
            if self.asynchronous:
                r.placeholders -= 1 + drafts
            elif speculation is not None:
                r.drafts = speculation.k
            if self.asynchronous or self.limits.rules.caches_accepted_drafts:
                self.pool.cache(r.table, min(r.computed - r.placeholders, r.known - 1))
        for r in step.finished:
            self._finish(r)
        return step.finished

    def abort(self, r: Sequence) -> None:
        self._finish(r)

    def _finish(self, r: Sequence) -> None:
        if r.status == Status.WAITING:
            self.waiting.remove(r)
        else:
            self.running.remove(r)
        self.pool.release(r.table)
        if self.encoder is not None:
            self.encoder.release(r)
        r.status = Status.FINISHED
