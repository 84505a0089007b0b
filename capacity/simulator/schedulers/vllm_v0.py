"""vLLM V0: prefill first. A step admits prompts, whole, or else decodes everybody; it never does both.

Reproduced with its quirks: a decode asks for a free block even when it needs none, so a full cache makes requests
preempt each other repeatedly; what the prefix cache holds for a request is looked up once and remembered.
With `forks_samples` the samples of one prompt are admitted together, as so many sequences: the prompt is computed once,
and each of them goes on with its blocks, which are copied as they are written to. Preempted, a sample comes back alone
(vLLM swapped such groups whole).
With drafts a decode takes places for them too, which those that are refused leave to the next ones; a request that is
swapped in decodes without.
Source: vLLM 0.8.5 `core/scheduler.py` (default policy, recompute or swap), rules as its reference schedules confirm;
0.6.3 for forks.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.content_pool import ContentPool
from capacity.simulator.kv_cache.offload import TierUse
from capacity.simulator.schedulers.policy import QueuedPolicy
from capacity.simulator.schedulers.sequence import Row, SchedulerLimits, Sequence, Speculation, Status, Step

WATERMARK_FRACTION = 0.01  # vLLM 0.8.5 CacheConfig, not a flag


class VllmV0(QueuedPolicy):
    """The V0 scheduler over a `ContentPool`; one step in flight."""

    steps_in_flight = 1
    pool: ContentPool

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: ContentPool,
        *,
        preemption_mode: Literal["recompute", "swap"] = "recompute",
        num_cpu_blocks: int = 0,
        swap_block_ps: int = 0,
        block_bytes: float = 0.0,
        forks_samples: bool = False,
        speculation: Speculation | None = None,
    ) -> None:
        """`num_cpu_blocks` to swap out to; a step waits `swap_block_ps` for each block that it swaps, either way."""
        super().__init__(limits, pool, speculation=speculation)
        self.preemption_mode = preemption_mode
        self.swapped: deque[Sequence] = deque()
        self._free_cpu_blocks = num_cpu_blocks
        self._swap_block_ps = swap_block_ps
        self._block_bytes = block_bytes
        self._swapped_out = self._swapped_in = self._refused = 0
        self._watermark_blocks = int(WATERMARK_FRACTION * pool.num_blocks)
        self._calls = 0
        self._forks = forks_samples
        self._first_samples: dict[int, Sequence] = {}  # those that wait, by their prompt
        self._others: dict[int, list[Sequence]] = {}  # by the first one's index: samples that start with it

    @property
    def unfinished(self) -> int:
        return len(self.running) + self.num_waiting

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.swapped) + sum(map(len, self._others.values()))

    def add(self, sequence: Sequence) -> bool:
        if self.speculation is not None and sequence.sample_of >= 0:
            raise InvalidInput(
                "vLLM V0 drafts for one answer to a prompt: leave out --num-samples, or --speculator"
            )
        if self._forks and sequence.sample_of >= 0:
            first = self._first_samples.setdefault(sequence.sample_of, sequence)
            others = self._others.setdefault(first.index, [])
            if first is not sequence and 1 + len(others) < self.limits.max_num_seqs:
                others.append(sequence)
                return True
        return super().add(sequence)

    def _samples_with(self, first: Sequence) -> list[Sequence]:
        """The samples that start with this one; it is no longer waited for."""
        if self._first_samples.get(first.sample_of) is first:
            del self._first_samples[first.sample_of]
        return self._others.pop(first.index, [])

    # decide

    def schedule(self, now_ps: int = 0) -> Step:  # noqa: ARG002
        self._calls += 1
        step = Step()
        before = self.running.copy()
        budget = Budget(self.limits, len(self.running))
        if not self.swapped:
            self._admit(step, budget)
        if not step.rows:
            if self.limits.priority:
                self._preempt_for_priority(step, budget)
            swapped_before = len(self.swapped)
            self._decode(step)
            if len(step.preempted) == 0 and len(self.swapped) == swapped_before:
                self._swap_in(step, budget)
        if len(step.preempted) > 1:
            step.preempted.sort(key=before.index)
        for row in step.rows:
            row.sequence.table.accessed = self._calls
        if step.rows:
            self.pool.mark_computed()
        return step

    def _admit(self, step: Step, budget: Budget) -> None:
        """Prompts from the head of the queue, each whole; one that can never fit is dropped."""
        limits, pool = self.limits, self.pool
        while self.waiting:
            r = self.waiting[0]
            cached, uncached = self._tokens(r)
            blocks = -(-r.known // pool.block_size)
            too_long = r.known > min(limits.max_model_len, limits.max_num_batched_tokens)
            if too_long or pool.num_blocks - blocks < self._watermark_blocks:
                for dropped in (self.waiting.popleft(), *self._samples_with(r)):
                    dropped.status = Status.FINISHED
                    step.finished.append(dropped)
                continue
            if pool.free_blocks - blocks < self._watermark_blocks:
                break
            sequences = 1 + len(self._others.get(r.index, ()))
            if budget.tokens >= limits.max_num_batched_tokens or not budget.allows(
                max(1, uncached), sequences
            ):
                break
            self.waiting.popleft()
            pool.allocate(r.table, r.known)
            r.placed = r.known
            r.status = Status.RUNNING
            budget.add(max(1, uncached))
            self.running.append(r)
            step.rows.append(Row(r, uncached, cached, 0, True, r.epoch, cached))
            for sample in self._samples_with(r):
                pool.fork(sample.table, r.table)
                sample.placed = r.placed
                sample.status = Status.RUNNING
                budget.add(0)
                self.running.append(sample)
                step.rows.append(Row(sample, 0, sample.known, 0, True, sample.epoch))

    def _tokens(self, r: Sequence) -> tuple[int, int]:
        cached = self.pool.cached_tokens(r.table, r.known)
        return cached, r.known - cached

    def _preempt_for_priority(self, step: Step, budget: Budget) -> None:
        """Requests that stand behind the head of the queue make room for it, if it lacks room."""
        running = sorted(self.running, key=_urgency)
        if self.waiting:
            head = self.waiting.popleft()
            _, uncached = self._tokens(head)
            blocks = -(-head.known // self.pool.block_size)
            while running and _urgency(running[-1]) > _urgency(head):
                fits = self.pool.free_blocks - blocks >= self._watermark_blocks
                if fits and budget.allows(max(1, uncached)):
                    break
                victim = running.pop()
                budget.sequences -= 1
                if self._preempt(victim, step):
                    self.waiting.appendleft(victim)
            self.waiting.appendleft(head)
            self.waiting = deque(sorted(self.waiting, key=_urgency))
        self.running = running

    def _decode(self, step: Step) -> None:
        """Everybody, in list order; who finds no free block drives out the last of those not yet served."""
        queue, self.running = deque(self.running), []
        victims: list[Sequence] = []
        while queue:
            r = queue.popleft()
            drafts = self._drafts_of(r)
            while self.pool.free_blocks < max(self._blocks_to(r, r.known + drafts), 1):
                victim = queue.pop() if queue else r
                if self._preempt(victim, step):
                    victims.append(victim)
                if victim is r:
                    break
            else:
                self._place(r, r.known + drafts)
                self.running.append(r)
                step.rows.append(Row(r, 1 + drafts, r.known - 1, drafts, True, r.epoch))
        self.waiting.extendleft(victims)

    def _drafts_of(self, r: Sequence) -> int:
        """Drafts of its next row: none beyond the last token that it may have."""
        return 0 if self.speculation is None else max(min(self.speculation.k, r.max_known - 1 - r.known), 0)

    def _blocks_to(self, r: Sequence, tokens: int) -> int:
        """Blocks more for so many tokens."""
        return -(-tokens // self.pool.block_size) - len(r.table.blocks)

    def _place(self, r: Sequence, tokens: int) -> None:
        """Places for its tokens up to this number."""
        for token in range(r.placed + 1, tokens + 1):
            self.pool.append(r.table, token)
        r.placed = max(r.placed, tokens)

    def _preempt(self, victim: Sequence, step: Step) -> bool:
        """Free its blocks, by dropping or by swapping them out; True: dropped, so it has to start again."""
        victim.status = Status.WAITING
        held = len(victim.table.blocks)
        self.pool.release(victim.table)
        if self.preemption_mode == "swap":
            if held <= self._free_cpu_blocks:
                self._free_cpu_blocks -= held
                self._swapped_out += held
                step.held_ps += held * self._swap_block_ps
                self.swapped.append(victim)
                return False
            self._refused += 1
        victim.start_again()
        step.preempted.append(victim)
        return True

    def _swap_in(self, step: Step, budget: Budget) -> None:
        pool = self.pool
        while self.swapped:
            r = self.swapped[0]
            held = -(-(r.known - 1) // pool.block_size)
            touched = (r.known - 1) // pool.block_size + 1
            if pool.free_blocks - touched < self._watermark_blocks or not budget.allows(1):
                break
            self.swapped.popleft()
            self._free_cpu_blocks += held
            self._swapped_in += held
            step.held_ps += held * self._swap_block_ps
            pool.allocate(r.table, r.known - 1)
            pool.append(r.table, r.known)
            r.placed = r.known
            r.status = Status.RUNNING
            budget.add(1)
            self.running.append(r)
            step.rows.append(Row(r, 1, r.known - 1, 0, True, r.epoch))

    # account

    @property
    def tier_use(self) -> tuple[TierUse, ...]:
        """What was swapped out and in."""
        if self.preemption_mode == "recompute":
            return ()
        out, back = self._swapped_out, self._swapped_in
        return (
            TierUse(
                name="swap",
                stored=out,
                evicted=back,
                loaded=back,
                held=out - back,
                refused=self._refused,
                stored_bytes=out * self._block_bytes,
                loaded_bytes=back * self._block_bytes,
                hit_tokens=0,
            ),
        )

    def update(self, step: Step) -> list[Sequence]:
        """One token for every row, and its accepted drafts; returns the requests that finished, dropped ones last."""
        finished: list[Sequence] = []
        for row in step.rows:
            r = row.sequence
            tokens = 1
            if self.speculation is not None and row.drafts:
                tokens = min(1 + self.speculation.count_accepted(r, row.drafts), r.max_known - r.known)
            r.known += tokens
            step.emitted.append((r, tokens))
            if r.known >= r.max_known:
                self.pool.release(r.table)
                self.running.remove(r)
                r.status = Status.FINISHED
                finished.append(r)
        step.finished = finished + step.finished
        return step.finished


class Budget:
    """Tokens and sequences of one step; running requests hold their places from the start."""

    __slots__ = ("_limits", "sequences", "tokens")

    def __init__(self, limits: SchedulerLimits, running: int) -> None:
        self._limits = limits
        self.tokens = 0
        self.sequences = running

    def allows(self, tokens: int, sequences: int = 1) -> bool:
        limits = self._limits
        in_budget = self.tokens + tokens <= limits.max_num_batched_tokens
        return in_budget and self.sequences + sequences <= limits.max_num_seqs

    def add(self, tokens: int) -> None:
        self.tokens += tokens
        self.sequences += 1


def _urgency(r: Sequence) -> tuple[int, int]:
    return r.priority, r.arrival
