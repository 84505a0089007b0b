"""TensorRT-LLM in-flight batching: a capacity scheduler selects requests, a micro-batch scheduler the rows of a step.

Generation rows come first, then prompts (whole, or chunked to the token budget) in order of arrival.
GUARANTEED_NO_EVICT admits a request only if the blocks of all requests fit up to their last token. MAX_UTILIZATION
admits a request if the blocks for the next step fit, and pauses the most recently started request when blocks run out.
With *batch wait*, prompts wait for more prompts while other requests generate: up to a number of steps, or until the
step would fill a fraction of the token budget. Source: TensorRT-LLM
`cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp`, `microBatchScheduler.cpp`; `_torch/pyexecutor/py_executor.py`
(batch_wait_timeout_iters, batch_wait_max_tokens_ratio).
"""

from typing import Literal

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.pool import PagedPool
from capacity.simulator.schedulers.batching import Batching
from capacity.simulator.schedulers.sequence import SchedulerLimits, Sequence, Speculation, Step

Capacity = Literal["guaranteed_no_evict", "max_utilization"]


class TensorRtLlm(Batching):
    """Policy of TensorRT-LLM; `max_num_seqs` is max_batch_size, `max_num_batched_tokens` is max_num_tokens.

    `prompts_per_step`: maximum number of prompts in one step. None: as many as fit in the token budget.
    """

    can_hold_prompts = True

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: PagedPool,
        *,
        asynchronous: bool = True,
        speculation: Speculation | None = None,
        capacity: Capacity = "guaranteed_no_evict",
        batch_wait_steps: int = 0,
        batch_wait_tokens_fraction: float = 0.0,
        prompts_per_step: int | None = None,
    ) -> None:
        super().__init__(limits, pool, asynchronous=asynchronous, speculation=speculation)
        if capacity not in ("guaranteed_no_evict", "max_utilization"):
            raise InvalidInput(f"capacity is {capacity!r}: must be guaranteed_no_evict or max_utilization")
        self.reserves_to_end = capacity == "guaranteed_no_evict"
        self.batch_wait_steps = batch_wait_steps
        self.batch_wait_tokens = batch_wait_tokens_fraction * limits.max_num_batched_tokens
        self.prompts_per_step = prompts_per_step
        self._waited = 0

    def schedule(self, now_ps: int = 0) -> Step:  # noqa: ARG002
        step = Step()
        rows = self.generation_rows()
        if self.generation_blocks(rows) > self.pool.free_blocks:
            rows = self._pause(rows, step)
        for r in rows[: self.limits.max_num_seqs]:
            self.add_generation_row(step, r)
        if not step.preempted:
            self._schedule_prompts(
                step, self.limits.max_num_batched_tokens - sum(row.tokens for row in step.rows)
            )
        return self.commit(step)

    def _pause(self, rows: list[Sequence], step: Step) -> list[Sequence]:
        """Preempt the most recently started requests until the other rows fit; return these rows."""
        rows = list(rows)
        while len(self.running) > 1 and self.generation_blocks(rows) > self.pool.free_blocks:
            last = self.running[-1]
            rows = [r for r in rows if r is not last]
            self.preempt(last, step)
        return rows if self.generation_blocks(rows) <= self.pool.free_blocks else []

    def _schedule_prompts(self, step: Step, budget: int) -> None:
        """Schedule started prompts, then new ones in order of arrival until one does not fit in the KV cache."""
        started = [r for r in self.running if r.computed < r.prompt_tokens or r.known - r.computed > 1]
        seats = self.limits.max_num_seqs - len(step.rows)
        most = self.prompts_per_step or seats
        for r in started:
            seats -= 1
            tokens = self._tokens_in_step(r.known - r.computed, budget)
            if tokens <= 0 and self.limits.enable_chunked_prefill:
                continue
            if tokens <= 0 or self.pool.blocks_needed(r.table, r.computed + tokens) > self.pool.free_blocks:
                return
            self.prefill(step, r, tokens)
            budget, most = budget - tokens, most - 1
        if (
            self.waiting
            and not self.holds_prompts
            and not self._waits_for_batch(step, budget, min(seats, most))
        ):
            self._start_prompts(step, budget, seats, most)

    def _start_prompts(self, step: Step, budget: int, seats: int, most: int) -> None:
        """Start up to `most` waiting prompts in order of arrival. A prompt that gets no tokens still takes one of the
        `seats` and its blocks in this step, and the next prompts may use the remaining budget."""
        reserved = 0  # blocks that running requests still need up to their last token
        if self.reserves_to_end:
            reserved = sum(self.pool.blocks_needed(r.table, self._reserved_tokens(r)) for r in self.running)
        place = 0
        while place < len(self.waiting) and min(seats, most, budget, self._free_slots() - place) > 0:
            r = self.waiting[place]
            share = self._tokens_in_step(r.known, budget)  # cached tokens count too
            if r.in_flight_yields or (share <= 0 and not self.limits.enable_chunked_prefill):
                return
            hit = self.pool.lookup(r.table, r.known - 1)
            tokens = min(share, r.known - hit[0])
            if self.reserves_to_end:
                needed = self.pool.blocks_needed(r.table, self._reserved_tokens(r))
            else:
                needed = self.pool.blocks_needed(r.table, hit[0] + tokens, hit)
            if needed + reserved > self.pool.free_blocks:
                return
            seats -= 1
            if tokens <= 0:
                place, reserved = place + 1, reserved + needed
                continue
            del self.waiting[place]
            before = self.pool.free_blocks
            self.prefill(step, r, tokens, hit)
            if self.reserves_to_end:
                reserved += needed - (before - self.pool.free_blocks)
            budget, most = budget - share, most - 1

    def _free_slots(self) -> int:
        return self.limits.max_num_seqs - len(self.running)

    def _reserved_tokens(self, r: Sequence) -> int:
        """Return for how many tokens GUARANTEED_NO_EVICT reserves KV: prompt and max_tokens, last token included."""
        return self.last_slot(r) + 1

    def _tokens_in_step(self, wanted: int, budget: int) -> int:
        """Return how many of `wanted` prompt tokens to compute: all, or whole blocks within the budget if chunked."""
        if wanted <= budget:
            return wanted
        if not self.limits.enable_chunked_prefill:
            return 0
        block = self.pool.block_size
        return budget // block * block

    def _waits_for_batch(self, step: Step, budget: int, most: int) -> bool:
        """Return whether new prompts wait for more prompts: for a limited number of steps, while requests generate."""
        if not self.batch_wait_steps or not step.rows:
            return False
        tokens = 0
        for place, r in enumerate(self.waiting):
            if place >= most or tokens + r.known > budget:
                break
            tokens += r.known
        if tokens == 0:
            return False
        if self._waited < self.batch_wait_steps and len(step.rows) + tokens < self.batch_wait_tokens:
            self._waited += 1
            return True
        self._waited = 0
        return False
