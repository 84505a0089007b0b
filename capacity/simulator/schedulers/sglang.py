"""SGLang scheduler: prefill first. While any waiting prompt can start, a step only prefills.

A prompt longer than the chunk budget is *the* chunked request. It continues first in every following prefill step, and
there is only one at a time. The number of requests that start is limited by an estimate of the KV that the running
requests will still need: `new_token_ratio` times the outputs that clients allow (max_tokens). If the next request does
not fit, none starts until a running request ends or is retracted. If the estimate was too low, running requests are
retracted and wait behind all others. Source: SGLang 0.5.23 `srt/managers/scheduler.py`, `schedule_policy.py`
(PrefillAdder), `schedule_batch.py`, `srt/mem_cache/prefill_budget.py`; `rules.py` has the changes since 0.5.4.

In a decode engine, requests with KV from a prefill engine form a batch without a forward pass, because their first
token came with the KV. They decode from the next step on (0.5.6 `srt/disaggregation/decode.py`).

With a *receive interval*, requests are taken from the tokenizer only every `recv_interval` decode steps and after each
prefill step: `--scheduler-recv-interval`, `srt/managers/scheduler_recv_skipper.py`.

Prefixes are looked up and evicted in whole pages, the least recently freed first. In contrast, SGLang's tree evicts
whole nodes, as simulated in `capacity.simulator.kv_cache.radix`.

Layers with a window can have a pool of their own (`srt/mem_cache/prefill_budget.py`, SWAPrefillBudget). Here it is a
count of the tokens that running requests keep in it; tokens that only the prefix cache keeps are free. So a cached
prefix is never lost because only its window was evicted, and requests that share a prefix each count its window.

Two rules of SGLang are not reproduced. A prompt is cached here when it is scheduled, so prompts of one step share a
prefix; SGLang caches it when its step ends. With `ignore_eos` and no prefix cache, SGLang simulates when each running
request will end (`add_one_req_ignore_eos`) instead of reserving outputs.
"""

from typing import Any, Literal

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.pool import PagedPool
from capacity.simulator.schedulers.batching import Batching
from capacity.simulator.schedulers.sequence import SchedulerLimits, Sequence, Speculation, Status, Step

CLIPPED_OUTPUT_TOKENS = 4096  # most tokens reserved for an output
INITIAL_RATIO = 0.7  # fraction of outputs reserved at the start, times the conservativeness
MIN_RATIO = 0.14  # times the initial ratio
DECAY_STEPS = 600  # decode steps from the initial to the least ratio
RETRACT_DECODE_STEPS = 20  # expected further tokens per request after a retraction
MAX_PREFILL_TOKENS = 16384  # prompt tokens of a step without chunked prefill
WINDOW_EVICTION_TOKENS = 128  # a request frees this many tokens behind its window at once
LPM_LIMIT = 128  # waiting requests above which longest-prefix-match falls back to first come first served


class Sglang(Batching):
    """Policy of SGLang; `max_num_seqs` is `max_running_requests`.

    `max_num_batched_tokens` is the chunk budget of a prefill step, from 1 to `max_prefill_tokens` unless chunking is
    off. A `recv_interval` of 1 receives requests at every step. Layers with an attention window of `window` tokens have
    a pool of their own with `window_share` times the tokens of `pool`; 0: all layers use `pool`.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: PagedPool,
        *,
        asynchronous: bool = True,
        speculation: Speculation | None = None,
        order: Literal["fcfs", "lpm"] = "fcfs",
        mixed_chunk: bool = False,
        max_prefill_tokens: int = MAX_PREFILL_TOKENS,
        conservativeness: float = 1.0,
        ignore_eos: bool = False,
        recv_interval: int = 1,
        window: int = 0,
        window_share: float = 0.0,
    ) -> None:
        super().__init__(limits, pool, asynchronous=asynchronous, speculation=speculation)
        if order not in ("fcfs", "lpm"):
            raise InvalidInput(f"order is {order!r}: must be fcfs or lpm")
        if recv_interval < 1:
            raise InvalidInput(f"recv_interval is {recv_interval}: must be at least 1")
        self.order = order
        self.mixed_chunk = mixed_chunk
        self.max_prefill_tokens = max_prefill_tokens
        self._initial_ratio = min(INITIAL_RATIO * conservativeness, 1.0)
        self._least_ratio = min(self._initial_ratio * MIN_RATIO, 1.0)
        self.new_token_ratio = self._initial_ratio
        self.ignore_eos = ignore_eos
        self.recv_interval = recv_interval
        self._decodes = 0  # decode steps since requests were last received
        self._not_received = 0  # requests at the end of the queue that the scheduler has not received
        self._chunked: Sequence | None = None
        self._full = False  # no request starts before the running batch becomes smaller
        self._window = window
        self._window_tokens = int(pool.num_blocks * pool.block_size * window_share)
        self._window_used = 0  # tokens of the pool of windows that running requests keep
        self._window_room = 0  # tokens that requests which start in this step can reserve there

    def add(self, sequence: Sequence) -> bool:
        self._not_received += self.recv_interval > 1
        return super().add(sequence)

    def schedule(self, now_ps: int = 0) -> Step:  # noqa: ARG002
        step = Step()
        if self._decodes >= self.recv_interval or not self.running:
            self._decodes = self._not_received = 0
        self._start_loaded(step)
        if step.rows:
            return self.commit(step)
        self._window_used = sum(self._kept_in_windows(r) for r in self.running)
        if self.mixed_chunk:
            rows = self.generation_rows()  # a request that starts in this step decodes from the next on
            self._prefill(step, len(rows) * (1 + self._drafts))
            self._decode(step, rows)
        else:
            self._prefill(step, 0)
            if not step.rows:
                self._decode(step, self.generation_rows())
        self._count_decodes(step)
        return self.commit(step)

    def _count_decodes(self, step: Step) -> None:
        """Count decode steps since requests were last taken from the tokenizer; a prefill step ends the count."""
        if self.recv_interval > 1 and step.rows:
            prefills = any(
                row.tokens > 1 + row.drafts or row.computed < row.sequence.prompt_tokens for row in step.rows
            )
            self._decodes = self.recv_interval if prefills else self._decodes + 1

    def _generates(self, r: Sequence) -> bool:
        """Return whether the request decodes; the chunked request does so only after its last chunk."""
        return r is not self._chunked and super()._generates(r)

    def _start_loaded(self, step: Step) -> None:
        """Start requests with KV from a prefill engine. Their rows compute nothing and yield the first token."""
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            r = self.waiting[0]
            if not self.pool.held_blocks(r.table):
                break
            self.waiting.popleft()
            self.prefill(step, r, 0, self.pool.lookup(r.table, r.known))

    def _prefill(self, step: Step, num_generating: int) -> None:
        rules, page, r = self.limits.rules, self.pool.block_size, self._chunked
        if len(self.running) == (r is not None) or (self._window_tokens and rules.retries_windowed_prompts):
            self._full = False
        if r is None and (self._full or len(self.waiting) <= self._not_received):
            return
        chunking = self.limits.enable_chunked_prefill
        chunk_left = self.limits.max_num_batched_tokens - (num_generating if chunking else 0)
        input_left = self.max_prefill_tokens - num_generating
        promised = num_generating + self._promised_tokens()
        self._window_room = self._window_tokens - self._window_used
        if r is not None:
            memory_left = int(self._free_tokens() - promised)
            tokens = min(chunk_left, memory_left) if memory_left > 0 else chunk_left
            if self._budgets_windows:
                tokens = min(chunk_left, memory_left, self._window_room - page)
            tokens = min(r.known - r.computed, tokens)
            if tokens <= 0 or self.pool.blocks_needed(r.table, r.computed + tokens) > self.pool.free_blocks:
                return
            self.prefill(step, r, tokens)
            self._window_used += tokens
            self._chunked = None if step.rows[-1].yields else r
            if self._chunked is not None:
                self._full = False
                return
            self._window_room -= self._window_budget(r, tokens, chunk_left)
            chunk_left -= self._whole_pages(tokens)
            input_left -= self._whole_pages(tokens)
            promised += self._reserved_tokens(r)
        spent = input_left <= 0 or (chunking and chunk_left <= 0)
        if spent and r is not None and rules.spent_step_ends and self._has_memory(promised):
            return
        self._start_waiting(step, chunk_left, input_left, promised, spent=spent)

    def _start_waiting(
        self, step: Step, chunk_left: int, input_left: int, promised: float, *, spent: bool
    ) -> None:
        """Start waiting requests until one does not fit in the step's budgets or in the KV cache.

        `promised`: tokens of KV that running requests will need. `spent`: a budget is used up, so that none starts.
        """
        rules, page, chunking = self.limits.rules, self.pool.block_size, self.limits.enable_chunked_prefill
        for r in self._order_waiting():
            if len(self.running) >= self.limits.max_num_seqs:
                self._full = True
                break
            if r.in_flight_yields:
                break
            hit = self.pool.lookup(r.table, r.known - 1)
            extend = r.known - hit[0]
            # a loaded request behind a retracted one already has its blocks
            new, limit = self.pool.held_blocks(r.table) <= 0, self._chunk_limit(r, hit, chunk_left)
            if new and (limit is None or not self._can_reserve(r, hit, promised)):
                self._full = bool(self.running)
                break
            limit = chunk_left if limit is None else limit
            if spent:
                break
            limited = not (chunking and rules.chunks_past_prefill_limit)
            if limited and step.rows and self._whole_pages(extend) >= input_left:
                break
            tokens = extend
            if chunking and self._whole_pages(extend) > limit:
                tokens = limit // page * page
                if tokens <= 0:
                    break
            if self.pool.blocks_needed(r.table, hit[0] + tokens, hit) > self.pool.free_blocks:
                break
            self.waiting.remove(r)
            self.prefill(step, r, tokens, hit)
            locked = min(hit[0], self._window)
            self._window_used += tokens + locked
            self._window_room -= self._window_budget(r, tokens, chunk_left) + locked
            if tokens < extend:
                self._chunked = r
                self._full = False
                break
            chunk_left -= self._whole_pages(tokens)
            input_left -= self._whole_pages(tokens)
            promised += self._reserved_tokens(r)
            if not self._has_memory(promised):
                self._full = True
                break
            if input_left <= 0 or (chunking and chunk_left <= 0):
                break

    def _can_reserve(self, r: Sequence, hit: Any, promised: float) -> bool:
        """Return whether the KV cache has room for a request's prompt and expected output."""
        page = self.pool.block_size
        needed = r.known - hit[0] + min(r.asked_known - r.known, CLIPPED_OUTPUT_TOKENS)
        needed += page if self.limits.rules.admits_with_page else 0
        evictable = self.pool.blocks_needed(r.table, hit[0], hit)  # free blocks of the cached prefix
        free = self._free_tokens(evictable * page, min(hit[0], self._window))
        return bool(needed < free - promised)

    @property
    def _budgets_windows(self) -> bool:
        """Return whether the pool of layers with a window has a budget of its own."""
        return self._window_tokens > 0 and self.limits.rules.budgets_windows_apart

    def _kept_in_windows(self, r: Sequence) -> int:
        """Return the tokens that a request keeps: the window of its prompt, chunks in flight, and late outputs."""
        rules, window = self.limits.rules, self._window
        if not self._window_tokens:
            return 0
        outputs = max(r.computed - r.prompt_tokens, 0)
        chunk = max(r.in_flight_tokens - outputs, 0)
        locked = window if rules.locks_windows_only else max(window, self.limits.max_num_batched_tokens)
        every = WINDOW_EVICTION_TOKENS if rules.frees_windows_by_128 else window
        behind = outputs - window - every + (r.prompt_tokens if r.prompt_tokens < every else 0)
        kept = outputs if behind < 0 else window + behind % every
        return min(r.computed - outputs - chunk, locked) + chunk + kept

    def _window_budget(self, r: Sequence, tokens: int, chunk_left: int) -> int:
        """Return the tokens that a prompt part of `tokens` tokens and its outputs reserve in the pool of windows."""
        if not self._budgets_windows:
            return tokens
        window, page, tokens = self._window, self.pool.block_size, self._whole_pages(tokens)
        chunk = min(tokens, chunk_left) if self.limits.enable_chunked_prefill else tokens
        if not self.limits.rules.budgets_window_outputs:
            return max(chunk, window) + page
        return max(chunk - window, 0) + self._window_headroom(r, tokens)

    def _window_headroom(self, r: Sequence, tokens: int) -> int:
        outputs = min(r.asked_known - r.known, CLIPPED_OUTPUT_TOKENS)
        return min(tokens + outputs, self._window) + self.pool.block_size

    def _chunk_limit(self, r: Sequence, hit: Any, chunk_left: int) -> int | None:
        """Return the most tokens of a prompt in this step; None if the pool of windows has no room for the request.

        Only a request that never fits in the pool gets smaller chunks; others wait.
        """
        budget = self._window_budget(r, r.known - hit[0], chunk_left)
        room = self._window_room - min(hit[0], self._window)
        if not self._budgets_windows or budget < room:
            return chunk_left
        most = room - self._window_headroom(r, 0)
        never = self.limits.enable_chunked_prefill and budget >= self._window_tokens
        return min(chunk_left, most) if never and most > 0 else None

    def _free_tokens(self, evictable: int = 0, locked: int = 0) -> int:
        """Return the free tokens, without those of a prefix; before separate budgets, of the smaller pool."""
        free = self.pool.free_blocks * self.pool.block_size - evictable
        if self._window_tokens and not self._budgets_windows:
            return min(free, self._window_room - locked)
        return free

    def _has_memory(self, promised: float) -> bool:
        """Return whether any request could start after those of this step."""
        return self._free_tokens() > promised and not (self._budgets_windows and self._window_room <= 0)

    def _can_decode(self, rows: list[Sequence]) -> bool:
        """Return whether the next tokens and drafts of these requests fit in all pools."""
        tokens = self._window_used + len(rows) * (1 + self._drafts)
        if 0 < self._window_tokens < tokens:
            return False
        return self.generation_blocks(rows) <= self.pool.free_blocks

    def _whole_pages(self, tokens: int) -> int:
        return -(-tokens // self.pool.block_size) * self.pool.block_size

    def _reserved_tokens(self, r: Sequence) -> int:
        """Return how many tokens a request that starts in this step reserves in addition to its prompt."""
        page = self.pool.block_size if self.limits.rules.reserves_page else 0
        return min(r.asked_known - r.prompt_tokens, CLIPPED_OUTPUT_TOKENS) + page

    def _promised_tokens(self) -> float:
        """Return how many more tokens the running requests are expected to generate, without the chunked request."""
        every = self.ignore_eos and self.limits.rules.reserves_ignored_eos
        ratio = 1.0 if every else self.new_token_ratio
        running = (r for r in self.running if r is not self._chunked)
        return ratio * sum(min(r.asked_known - r.known, CLIPPED_OUTPUT_TOKENS) for r in running)

    def _order_waiting(self) -> list[Sequence]:
        received = list(self.waiting)[: len(self.waiting) - self._not_received]
        if self.order == "fcfs" or len(received) > LPM_LIMIT:
            return received
        hits = {r.index: self.pool.lookup(r.table, r.known - 1)[0] for r in received}
        return sorted(received, key=lambda r: -hits[r.index])

    def _decode(self, step: Step, rows: list[Sequence]) -> None:
        if not rows:
            return
        if not self._can_decode(rows):
            rows = self._retract(rows, step)
        else:
            decay = (self._initial_ratio - self._least_ratio) / DECAY_STEPS
            self.new_token_ratio = max(self.new_token_ratio - decay, self._least_ratio)
        for r in rows:
            self.add_generation_row(step, r)

    def _retract(self, rows: list[Sequence], step: Step) -> list[Sequence]:
        """Retract requests (fewest outputs first, then longest prompt) until the others fit; return the others."""
        stay = sorted(rows, key=lambda r: (r.prompt_tokens - r.known, r.prompt_tokens))
        while len(stay) > 1 and not self._can_decode(stay):
            self._retract_last(stay.pop(), step)
        if not self._can_decode(stay):
            return []  # SGLang aborts the last request; the simulator reports the stall
        produced = sum(r.known - r.prompt_tokens for r in stay)
        wanted = sum(r.asked_known - r.prompt_tokens for r in stay)
        ratio = (produced + RETRACT_DECODE_STEPS * len(stay)) / (wanted + 1)
        self.new_token_ratio = min(1.0, ratio)
        kept = {r.index for r in stay}
        return [r for r in rows if r.index in kept]

    def _retract_last(self, r: Sequence, step: Step) -> None:
        """Retract a request; it waits behind all requests that the scheduler has received."""
        self._window_used -= self._kept_in_windows(r)
        self.preempt(r, step)
        self.waiting.popleft()
        self.waiting.insert(len(self.waiting) - self._not_received, r)
        self._full = False

    def _finish(self, r: Sequence) -> None:
        if r.status != Status.WAITING:
            self._full = False
        super()._finish(r)

    def abort(self, r: Sequence) -> None:
        if r is self._chunked:
            self._chunked = None
        if self._not_received and r in list(self.waiting)[len(self.waiting) - self._not_received :]:
            self._not_received -= 1
        super().abort(r)
