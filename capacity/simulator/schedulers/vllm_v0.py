"""vLLM V0 scheduler: prefill first. A step either admits whole prompts or decodes all running requests.

Quirks of vLLM V0 are simulated too. A decode requires a free block even if it will not use one, so requests preempt
each other repeatedly when the cache is full. The prefix hit of a request is looked up once and remembered.

With `forks_samples`, the samples of one prompt are admitted together as separate sequences. The prompt is computed
once, and each sample shares its blocks, which are copied on write. A preempted sample comes back alone (vLLM swapped
such groups as a whole).

With drafts, a decode also allocates slots for the drafts, and later tokens reuse the slots of rejected drafts. A
request decodes without drafts in the step that swaps it in. Source: vLLM 0.8.5 `core/scheduler.py` (default policy,
recompute or swap), checked against schedules recorded from it; 0.6.3 for forks.
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
    """Policy of vLLM V0 over a `ContentPool`, with one step in flight."""

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
        """Create the policy with `num_cpu_blocks` of swap space; a swapped block delays a step by `swap_block_ps`."""
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
        self._first_samples: dict[int, Sequence] = {}  # waiting first samples by prompt
        self._others: dict[int, list[Sequence]] = {}  # index of a first sample -> samples that start with it

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.swapped) + sum(map(len, self._others.values()))

    def add(self, sequence: Sequence) -> bool:
        if self.speculation is not None and sequence.sample_of >= 0:
            raise InvalidInput(
                "vLLM V0 cannot use drafts with several samples: leave out --num-samples or --speculator"
            )
        if self._forks and sequence.sample_of >= 0:
            first = self._first_samples.setdefault(sequence.sample_of, sequence)
            others = self._others.setdefault(first.index, [])
            if first is not sequence and 1 + len(others) < self.limits.max_num_seqs:
                others.append(sequence)
                return True
        return super().add(sequence)

    def _pop_samples(self, first: Sequence) -> list[Sequence]:
        """Remove and return the other samples of a prompt, which are admitted together with its first sample."""
        if self._first_samples.get(first.sample_of) is first:
            del self._first_samples[first.sample_of]
        return self._others.pop(first.index, [])

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
        """Admit whole prompts from the head of the queue; drop those that can never fit."""
        limits, pool = self.limits, self.pool
        while self.waiting:
            r = self.waiting[0]
            cached, uncached = self._cached_and_uncached(r)
            blocks = -(-r.known // pool.block_size)
            too_long = r.known > min(limits.max_model_len, limits.max_num_batched_tokens)
            if too_long or pool.num_blocks - blocks < self._watermark_blocks:
                for dropped in (self.waiting.popleft(), *self._pop_samples(r)):
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
            for sample in self._pop_samples(r):
                pool.fork(sample.table, r.table)
                sample.placed = r.placed
                sample.status = Status.RUNNING
                budget.add(0)
                self.running.append(sample)
                step.rows.append(Row(sample, 0, sample.known, 0, True, sample.epoch))

    def _cached_and_uncached(self, r: Sequence) -> tuple[int, int]:
        cached = self.pool.cached_tokens(r.table, r.known)
        return cached, r.known - cached

    def _preempt_for_priority(self, step: Step, budget: Budget) -> None:
        """Preempt running requests of lower priority than the first waiting request until that request fits."""
        running = sorted(self.running, key=_priority_key)
        if self.waiting:
            head = self.waiting.popleft()
            _, uncached = self._cached_and_uncached(head)
            blocks = -(-head.known // self.pool.block_size)
            while running and _priority_key(running[-1]) > _priority_key(head):
                fits = self.pool.free_blocks - blocks >= self._watermark_blocks
                if fits and budget.allows(max(1, uncached)):
                    break
                victim = running.pop()
                budget.sequences -= 1
                if self._preempt(victim, step):
                    self.waiting.appendleft(victim)
            self.waiting.appendleft(head)
            self.waiting = deque(sorted(self.waiting, key=_priority_key))
        self.running = running

    def _decode(self, step: Step) -> None:
        """Schedule a decode of each running request; without a free block, preempt the last one not yet scheduled."""
        queue, self.running = deque(self.running), []
        victims: list[Sequence] = []
        while queue:
            r = queue.popleft()
            drafts = self._num_drafts(r)
            tokens = r.known + drafts
            blocks = -(-tokens // self.pool.block_size) - len(r.table.blocks)
            while self.pool.free_blocks < max(blocks, 1):
                victim = queue.pop() if queue else r
                if self._preempt(victim, step):
                    victims.append(victim)
                if victim is r:
                    break
            else:
                for token in range(r.placed + 1, tokens + 1):
                    self.pool.append(r.table, token)
                r.placed = max(r.placed, tokens)
                self.running.append(r)
                step.rows.append(Row(r, 1 + drafts, r.known - 1, drafts, True, r.epoch))
        self.waiting.extendleft(victims)

    def _num_drafts(self, r: Sequence) -> int:
        """Return how many draft tokens to schedule for a request in the next step, limited by its maximum length."""
        return 0 if self.speculation is None else max(min(self.speculation.k, r.max_known - 1 - r.known), 0)

    def _preempt(self, victim: Sequence, step: Step) -> bool:
        """Swap or drop the KV blocks of a request; return whether the request must be computed again."""
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
        victim.computed = victim.known - 1
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

    @property
    def tier_use(self) -> tuple[TierUse, ...]:
        """Statistics of the blocks swapped out and in, as one tier; empty without swapping."""
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
        """Append one token and the accepted drafts for every row; return finished requests, dropped ones last."""
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
    """Token and sequence budget of one step; running requests count as sequences from the start."""

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


def _priority_key(r: Sequence) -> tuple[int, int]:
    return r.priority, r.arrival
