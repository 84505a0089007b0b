"""TGI v3 scheduler: a request allocates all its blocks at its start, so no request is ever preempted.

Without chunking, a prefill pauses decode. A new batch therefore joins only when enough requests wait relative to the
running ones, or after a number of decode steps. With chunking (if the kernels allow it), prompts and decodes share the
budget of a step. With `--speculate`, a decode row includes drafts, and a request allocates slots for as many more
tokens at its start. Source: TGI `backends/v3/src/{queue,backend,block_allocator}.rs` and the launcher's defaults.
"""

from capacity.simulator.kv_cache.pool import PagedPool
from capacity.simulator.schedulers.batching import Batching
from capacity.simulator.schedulers.sequence import SchedulerLimits, Speculation, Step


class Tgi(Batching):
    """Policy of TGI; `max_num_seqs` is max_batch_size, `max_num_batched_tokens` is max_batch_prefill_tokens."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: PagedPool,
        *,
        asynchronous: bool = False,
        speculation: Speculation | None = None,
        waiting_served_ratio: float = 0.3,
        max_waiting_steps: int = 20,
    ) -> None:
        super().__init__(limits, pool, asynchronous=asynchronous, speculation=speculation)
        self.reserves_to_end = True
        self.waiting_served_ratio = waiting_served_ratio
        self.max_waiting_steps = max_waiting_steps
        self._decode_steps = 0  # since the last prefill

    def schedule(self, now_ps: int = 0) -> Step:  # noqa: ARG002
        step = Step()
        if self.limits.enable_chunked_prefill:
            self._decode(step)
            self._prefill(step, self.limits.max_num_batched_tokens - sum(row.tokens for row in step.rows))
            return self.commit(step)
        if self._may_prefill():
            self._prefill(step, self.limits.max_num_batched_tokens)
        if step.rows:
            self._decode_steps = 0
        else:
            self._decode(step)
            self._decode_steps += 1
        return self.commit(step)

    def _may_prefill(self) -> bool:
        """Return whether a prefill may pause decode: enough requests wait, or enough decode steps have passed."""
        if not self.running:
            return True
        least = int(len(self.running) * self.waiting_served_ratio)
        return len(self.waiting) >= max(least, 1) or self._decode_steps >= self.max_waiting_steps

    def _decode(self, step: Step) -> None:
        for r in self.generation_rows():
            self.add_generation_row(step, r)

    def _prefill(self, step: Step, budget: int) -> None:
        chunking = self.limits.enable_chunked_prefill
        block_size = self.pool.block_size
        for r in [r for r in self.running if r.computed < r.prompt_tokens]:
            tokens = min(r.known - r.computed, budget)
            if tokens > 0:
                self.prefill(step, r, tokens)
                budget -= tokens
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            r = self.waiting[0]
            hit = self.pool.lookup(r.table, r.known - 1)
            wanted = r.known - hit[0]
            padded = -(-wanted // block_size) * block_size
            if padded > budget and not chunking and step.rows:
                return
            slots = self.last_slot(r) + self._drafts
            if self.pool.blocks_needed(r.table, slots, hit) > self.pool.free_blocks:
                return
            self.waiting.popleft()
            tokens = min(wanted, budget) if chunking else wanted
            self.pool.grow(r.table, slots, hit)
            self.start(r, hit)
            self.pool.cache(r.table, min(r.computed + tokens, r.known))
            self.add_context_row(step, r, tokens, hit[0])
            budget -= tokens if chunking else padded
