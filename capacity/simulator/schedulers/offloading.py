"""vLLM V1 with KV offload: KV that the GPU's prefix cache evicted is loaded back instead of recomputed.

If the tiers below the GPU have more of the first waiting request's prefix than the GPU has, the request allocates
blocks for this whole prefix at once. It waits for the load outside the queue while others are admitted, and then runs
with the loaded KV. Blocks are allocated only if the remaining blocks of all unfinished prompts also fit; otherwise
requests could wait for each other's blocks forever. A prefix that is being loaded for another request is not loaded
twice; the request waits for that load. If a prompt is loaded completely, one token is recomputed. In vLLM, a GPU block
whose copy to a tier is in progress cannot be reused before the copy ends; the simulator may reuse it as soon as its
request frees it. Source: vLLM 0.33 v1/core/sched/scheduler.py and distributed/kv_transfer/kv_connector/v1/offloading.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.offload import Offload, TierHit, TierStack, TierUse
from capacity.simulator.kv_cache.pool import PagedPool
from capacity.simulator.schedulers.sequence import Row, SchedulerLimits, Sequence, Status, Step
from capacity.simulator.schedulers.vllm_v1 import VllmV1


@dataclass(slots=True)
class PendingLoad:
    """Request whose KV is being loaded: its first `tokens` tokens will be on the GPU at `end_ps`."""

    sequence: Sequence
    tokens: int
    keys: tuple[Hashable, ...]
    end_ps: int


class OffloadingV1(VllmV1):
    """`VllmV1` with KV tiers (host memory, disk) below the KV pool of the GPU."""

    def __init__(self, limits: SchedulerLimits, pool: PagedPool, *, offload: Offload, **options: Any) -> None:
        super().__init__(limits, pool, **options)
        if not pool.prefix_caching:
            raise InvalidInput("KV offload requires the prefix cache: set --enable-prefix-caching")
        self.tiers = TierStack(offload, pool.block_size)
        self._now_ps = 0
        self._held_ps = 0
        self._loading: list[PendingLoad] = []
        self._loaded: deque[Sequence] = deque()  # hold blocks, so they start before `waiting`
        self._on_the_way: set[Hashable] = set()

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self._loading) + len(self._loaded)

    @property
    def wake_ps(self) -> int | None:
        return min((arrival.end_ps for arrival in self._loading), default=None)

    def schedule(self, now_ps: int = 0) -> Step:
        self._now_ps, self._held_ps = now_ps, 0
        self._finish_loads()
        step = super().schedule(now_ps)
        step.held_ps = self._held_ps
        for row in step.rows:
            self._reserve_chunks(row, step)
        return step

    def admit_waiting(self, rows: list[Row], budget: int) -> None:
        """Start requests whose KV has arrived, then waiting ones; skip a request if its prefix is being loaded."""
        aside: list[Sequence] = []
        while budget > 0 and len(self.running) < self.max_active:
            if self._loaded:
                tokens = self._resume(self._loaded[0], rows, budget)
            elif self.waiting:
                match self._try_load(self.waiting[0]):
                    case "begun":
                        continue
                    case "elsewhere":
                        aside.append(self.defer_first())
                        continue
                    case "no room":
                        break
                tokens = self._start(self.waiting[0], rows, budget)
            else:
                break
            if not tokens:
                break
            budget -= tokens
        for r in reversed(aside):
            self.waiting.put_back(r)

    def _resume(self, r: Sequence, rows: list[Row], budget: int) -> int:
        """Start a request whose KV has arrived; return its number of tokens in this step, 0 if it does not fit."""
        is_prefill = r.known - r.computed > 1
        tokens = self._chunk_tokens(r.known - r.computed, budget)
        if (self._holds and is_prefill) or not tokens or not self._take_blocks(r, r.computed + tokens):
            return 0
        self.pool.cache(r.table, min(r.computed + tokens, r.known))
        self._loaded.popleft()
        self.running.append(r)
        self._prefill_started |= is_prefill
        r.status = Status.RUNNING
        yields = r.computed + tokens >= r.known
        rows.append(Row(r, tokens, r.computed, 0, yields, r.epoch, r.computed))
        return tokens

    def _try_load(self, r: Sequence) -> Literal["nothing", "begun", "elsewhere", "no room"]:
        """Start to load the first waiting request's chunks that lower tiers have and the GPU lacks. Return "begun" if
        the load starts, "nothing" if there are no such chunks, "elsewhere" if another request loads one of them, "no
        room" if too few blocks are free."""
        pool, size = self.pool, self.tiers.chunk_tokens
        keys = self._chunk_keys(r, r.known)
        hit = pool.lookup(r.table, r.known - 1)
        tier_hit = self.tiers.find(keys, hit[0] // size, self._now_ps)
        tokens = (hit[0] // size + len(tier_hit.keys)) * size
        if tokens - hit[0] < size:
            return "nothing"
        if not self._on_the_way.isdisjoint(tier_hit.keys):
            return "elsewhere"
        whole = max(tokens, min(r.known, self.limits.max_model_len))
        wanted = whole if self.limits.reserve_full_isl else tokens
        free = pool.free_blocks - self._promised_blocks() - (self._watermark_blocks if self.running else 0)
        if pool.blocks_needed(r.table, wanted, hit) > free:
            return "no room"
        self.waiting.pop()
        pool.grow(r.table, tokens, hit)
        r.loaded = min(tokens, r.known - 1) - hit[0]
        r.stored_chunks = tokens // size
        self._count_tier_hits(r, tier_hit, hit[0])
        self._begin_load(PendingLoad(r, tokens, tier_hit.keys, self.tiers.load(tier_hit, self._now_ps)))
        return "begun"

    def _promised_blocks(self) -> int:
        """Return how many more blocks are needed to complete the prompts that have only some of their blocks."""
        pool = self.pool
        holders = [arrival.sequence for arrival in self._loading]
        holders += self._loaded
        holders += [r for r in self.running if r.computed < r.prompt_tokens]
        return sum(int(pool.blocks_needed(r.table, r.known)) for r in holders)

    def _count_tier_hits(self, r: Sequence, tier_hit: TierHit, gpu_tokens: int) -> None:
        """Add the prompt tokens that tiers provide at a request's first admission to the hits of these tiers."""
        if r.preemptions:
            return
        size, at = self.tiers.chunk_tokens, gpu_tokens
        begin = gpu_tokens // size
        for number, tier in enumerate(tier_hit.tiers):
            end = min((begin + number + 1) * size, r.known - 1)
            self.tiers.stores[tier].hit_tokens += end - at
            at = end

    def _begin_load(self, arrival: PendingLoad) -> None:
        if self.tiers.offload.synchronous:
            self._held_ps = max(self._held_ps, arrival.end_ps - self._now_ps)
            arrival.end_ps = self._now_ps
        self._loading.append(arrival)
        self._on_the_way.update(arrival.keys)
        if arrival.end_ps <= self._now_ps:
            self._finish_loads()

    def _finish_loads(self) -> None:
        """Add KV whose load has ended to the prefix cache, and make its requests ready to run."""
        due = [arrival for arrival in self._loading if arrival.end_ps <= self._now_ps]
        if not due:
            return
        self._loading = [arrival for arrival in self._loading if arrival.end_ps > self._now_ps]
        for arrival in sorted(due, key=lambda arrival: arrival.end_ps):
            r = arrival.sequence
            self._on_the_way.difference_update(arrival.keys)
            self.pool.cache(r.table, arrival.tokens)
            r.computed = min(arrival.tokens, r.known - 1)
            self._loaded.append(r)

    def _reserve_chunks(self, row: Row, step: Step) -> None:
        """Reserve space in the first tier for the chunks that this row completes."""
        r, size = row.sequence, self.tiers.chunk_tokens
        known = min(row.computed + row.tokens - row.drafts, r.known)
        chunks = known // size
        if chunks <= r.stored_chunks:
            return
        keys = self._chunk_keys(r, known)
        new = self.tiers.stores[0].reserve(keys[r.stored_chunks :], self._now_ps)
        if new is None:
            return
        r.stored_chunks = chunks
        if new:
            self.tiers.stores[0].touch(keys)
            step.stores.append(new)

    def _chunk_keys(self, r: Sequence, tokens: int) -> list[Hashable]:
        """Return the keys of the full chunks of the request's first tokens."""
        chunks = tokens // self.tiers.chunk_tokens
        known = r.chunk_keys
        if len(known) < chunks:
            known += self.tiers.chunk_keys(r.table.content, tokens, first=len(known))
        return known[:chunks]

    @property
    def tier_use(self) -> tuple[TierUse, ...]:
        return tuple(store.statistics() for store in self.tiers.stores)

    def update(self, step: Step) -> list[Sequence]:
        finished = super().update(step)
        for keys in step.stores:
            self.tiers.store(keys, step.end)
        return finished

    def _finish(self, r: Sequence) -> None:
        for arrival in self._loading:
            if arrival.sequence is r:
                self._loading.remove(arrival)
                self._on_the_way.difference_update(arrival.keys)
                self.waiting.put_back(r)
                break
        else:
            if r in self._loaded:
                self._loaded.remove(r)
                self.waiting.put_back(r)
        super()._finish(r)
