"""Prefix cache hit rate of a workload, for all cache sizes at once.

The cache is an LRU of KV blocks that evicts a request's deepest block first (vLLM's order). Such a cache is a stack: a
block is hit at capacity C exactly if fewer than C other blocks were used since its own last use (Mattson 1970). One
pass over the trace therefore gives the hit rate at all capacities, without a simulation.
"""

from dataclasses import dataclass

import numpy as np

from capacity.base.errors import InvalidInput, UnknownName
from capacity.pool.resolve import ResolvedPool
from capacity.step import prefill_shape
from capacity.workload import Workload
from capacity.workload.columns import IntArray

ROUTINGS = ("round-robin", "least-tokens", "prefix")
PREFIX_SHARE = 0.5  # SGLang router's --cache-threshold as first released, 2024-12: assumed to be typical


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReuseCurve:
    """Depth in the LRU stack of every block at the time when a prompt looks it up (-1: the block was not used before).

    In the methods, `capacity_blocks` is the cache size in blocks of `block_tokens`; None: unlimited. The hits are exact
    if requests run one after another and each fits the cache. Concurrent requests find each other's blocks earlier.
    """

    block_tokens: int
    depth: IntArray  # of each looked-up block
    tokens: IntArray  # in each looked-up block (the last of a prompt may be partial)
    request: IntArray  # that looked it up
    prompt_tokens: IntArray  # of each request
    gap_s: np.ndarray[tuple[int, ...], np.dtype[np.float64]]  # since its last use; infinite: never

    def hits(self, capacity_blocks: int | None = None) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Return a mask of the blocks in `depth`: true for cache hits."""
        if capacity_blocks is not None and capacity_blocks < 0:
            raise InvalidInput(f"a cache of {capacity_blocks} blocks: must be at least 0")
        seen = self.depth >= 0
        return seen if capacity_blocks is None else seen & (self.depth < capacity_blocks)

    def block_hit_fraction(self, capacity_blocks: int | None = None) -> float:
        return float(self.hits(capacity_blocks).mean()) if len(self.depth) else 0.0

    def token_hit_fraction(self, capacity_blocks: int | None = None) -> float:
        """Return the fraction of all prompt tokens that need no prefill."""
        return float(self.tokens[self.hits(capacity_blocks)].sum() / self.prompt_tokens.sum())

    def hit_tokens(self, capacity_blocks: int | None = None) -> IntArray:
        """Return the cached tokens of each request."""
        hit = self.hits(capacity_blocks)
        counted = np.bincount(self.request[hit], weights=self.tokens[hit], minlength=len(self.prompt_tokens))
        return counted.astype(np.int64)

    @property
    def knee_blocks(self) -> int:
        """Return the smallest capacity (blocks) with the same hit rate as an unlimited cache."""
        return int(self.depth.max()) + 1 if len(self.depth) else 0


def reuse_curve(workload: Workload, block_tokens: int, *, as_engine: bool = False) -> ReuseCurve:
    """Return the reuse curve of `workload`, whose requests run one after another in order of arrival.

    By default blocks count as in most trace analyses: prompts only, including a partial last block (traces hash it
    too). `as_engine`: as in vLLM, full blocks of prompt and response, and at least one prompt token is computed again.
    vLLM then stores the last block of a fully cached prompt twice; the curve ignores the copy. Raises InvalidInput if
    the workload has no information on shared content.
    """
    content = workload.content
    if content is None:
        raise InvalidInput(
            f"{workload.name} has no information about shared prompts: use a trace with block hashes (hash_ids), "
            "or conversations"
        )
    prompts = workload.prompt_tokens
    if as_engine:
        runs = content.block_runs(block_tokens, output_tokens=np.maximum(workload.output_tokens - 1, 0))
        looked_up = (prompts - 1) // block_tokens
    else:
        runs = content.block_runs(block_tokens, partial=True)
        looked_up = -(-prompts // block_tokens)
    totals = np.concatenate(([0], np.cumsum(runs.counts)))
    per_request = totals[runs.offsets[1:]] - totals[runs.offsets[:-1]]
    owner = np.repeat(np.arange(len(workload)), per_request)
    first = np.concatenate(([0], np.cumsum(per_request)))
    index = np.arange(len(owner)) - first[owner]  # of each block in its request
    ids = np.repeat(runs.first_ids - totals[:-1], runs.counts) + np.arange(len(owner))
    depth_backwards, last_use = _stack_depths(_reverse_runs(ids, first), first[owner])
    depth, last = _reverse_runs(depth_backwards, first), _reverse_runs(last_use, first)
    used_s = workload.arrival_s[owner]
    gap_s = np.where(last >= 0, used_s - used_s[np.maximum(last, 0)], np.inf)
    wanted = index < looked_up[owner]
    size = np.minimum(block_tokens, prompts[owner] - index * block_tokens)
    return ReuseCurve(
        block_tokens=block_tokens,
        depth=depth[wanted],
        tokens=size[wanted],
        request=owner[wanted],
        prompt_tokens=prompts,
        gap_s=gap_s[wanted],
    )


def _reverse_runs(values: IntArray, first: IntArray) -> IntArray:
    """Return the values of each request in reverse order, because the cache evicts the deepest block first."""
    length = np.diff(first)
    within = np.arange(len(values)) - np.repeat(first[:-1], length)
    backwards: IntArray = values[np.repeat(first[1:] - 1, length) - within]
    return backwards


def _stack_depths(ids: IntArray, begins: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for each access to a block, the block's depth in the LRU stack when its request begins, and the first
    access of the earlier request that last used the block (-1: none). `begins`: first access of each access's request.

    If p is the previous access to the block, its depth is the number of distinct blocks accessed after p and before
    `begins`. This is the number of accesses before `begins` whose own previous access is not after p, less p + 1.
    Computed for all accesses together, in ranges of 1, 2, 4, ... accesses sorted by previous access: O(n log^2 n).
    """
    count = len(ids)
    previous = np.full(count, -1, dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    same = ids[order][1:] == ids[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    again = np.flatnonzero(previous >= 0)
    last, begin = previous[again], begins[again]
    fewer = np.zeros(len(again), dtype=np.int64)
    stride = count + 2
    size = 1
    while size <= count:
        padded = np.full(-(-count // size) * size, count, dtype=np.int64)
        padded[:count] = previous
        rows = np.sort(padded.reshape(-1, size), axis=1)
        keys = (rows + 1 + np.arange(len(rows))[:, None] * stride).ravel()
        inside = (begin & size) > 0
        block = begin[inside] // (2 * size) * 2
        fewer[inside] += np.searchsorted(keys, block * stride + last[inside] + 1, side="right") - block * size
        size *= 2
    depth = np.full(count, -1, dtype=np.int64)
    depth[again] = fewer - (last + 1)
    # the access before, as any access of the same request: they share its time
    return depth, np.where(previous >= 0, begins[np.maximum(previous, 0)], -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSavings:
    """Prefill of a trace with and without a cache, on one engine, without queueing."""

    capacity_tokens: int
    token_hit_fraction: float
    mean_prefill_s: float  # of a request
    mean_prefill_cached_s: float
    saved_fraction: float  # of prefill GPU time, and so of what input tokens cost
    usd_per_million_input_tokens: float | None  # without the cache; None: no price
    usd_per_million_input_tokens_cached: float | None


def prefill_savings(
    resolved: ResolvedPool,
    curve: ReuseCurve,
    capacity_blocks: int | None = None,
    *,
    usd_per_gpu_hour: float | None = None,
) -> PrefillSavings:
    """Return the prefill time and cost that cache hits save; `capacity_blocks` None: the pool's own KV cache.

    Each prompt runs in one step that reads its cached tokens as context. The saved fraction of time is below the token
    hit rate, because attention still reads the prefix, and the time of short prompt parts depends on reading weights
    and launching kernels.
    """
    if capacity_blocks is None:
        capacity_blocks = resolved.memory.require_fit().kv_capacity_tokens // curve.block_tokens
    hit = np.minimum(curve.hit_tokens(capacity_blocks), curve.prompt_tokens - 1)
    window = resolved.model.window_tokens
    pairs = np.stack([curve.prompt_tokens, hit], axis=1)
    distinct, counts = np.unique(pairs, axis=0, return_counts=True)
    plain = cached = 0.0
    for (tokens, cached_tokens), count in zip(distinct.tolist(), counts.tolist(), strict=True):
        whole = prefill_shape(1, tokens, window_tokens=window)
        rest = prefill_shape(1, tokens - cached_tokens, cached_tokens=cached_tokens, window_tokens=window)
        plain += count * resolved.step_model.step_seconds(whole)
        cached += count * resolved.step_model.step_seconds(rest)
    requests = len(curve.prompt_tokens)
    usd_per_s = None if usd_per_gpu_hour is None else resolved.pool.num_gpus * usd_per_gpu_hour / 3600
    millions = float(curve.prompt_tokens.sum()) / 1e6
    return PrefillSavings(
        capacity_tokens=capacity_blocks * curve.block_tokens,
        token_hit_fraction=curve.token_hit_fraction(capacity_blocks),
        mean_prefill_s=plain / requests,
        mean_prefill_cached_s=cached / requests,
        saved_fraction=1 - cached / plain,
        usd_per_million_input_tokens=None if usd_per_s is None else plain * usd_per_s / millions,
        usd_per_million_input_tokens_cached=None if usd_per_s is None else cached * usd_per_s / millions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedReuse:
    """Hit rate of requests routed over replicas with separate caches, and the load imbalance of that routing."""

    routing: str
    replicas: int
    token_hit_fraction: float
    largest_share: float  # of the prefilled (not cached) tokens, on the busiest replica; 1/replicas is even


def routed_reuse(
    workload: Workload,
    block_tokens: int,
    *,
    replicas: int,
    routing: str,
    capacity_blocks: int | None = None,
    as_engine: bool = False,
) -> RoutedReuse:
    """Return the hit rate if requests are routed over `replicas`, each with its own cache of `capacity_blocks`.

    `routing` selects the replica of a request. `round-robin`: each replica in turn. `least-tokens`: the replica with
    the fewest prompt tokens so far. `prefix`: the replica with the longest prefix of this prompt, if that is more than
    `PREFIX_SHARE` of the prompt, else as `least-tokens`. Raises InvalidInput or UnknownName.
    """
    if replicas < 1:
        raise InvalidInput(f"{replicas} replicas: must be at least 1")
    if routing not in ROUTINGS:
        raise UnknownName("routing", routing, ROUTINGS)
    chosen = _routes(workload, block_tokens, replicas, routing)
    hit, prefilled = 0.0, [0.0] * replicas
    for replica in range(replicas):
        mine = np.flatnonzero(chosen == replica)
        if len(mine):
            part = workload.select(mine)
            tokens = float(part.prompt_tokens.sum())
            curve = reuse_curve(part, block_tokens, as_engine=as_engine)
            hits = curve.token_hit_fraction(capacity_blocks) * tokens
            hit += hits
            prefilled[replica] = tokens - hits
    return RoutedReuse(
        routing=routing,
        replicas=replicas,
        token_hit_fraction=hit / float(workload.prompt_tokens.sum()),
        largest_share=max(prefilled) / sum(prefilled),
    )


def _routes(workload: Workload, block_tokens: int, replicas: int, routing: str) -> IntArray:
    requests = len(workload)
    if routing == "round-robin":
        return np.arange(requests) % replicas
    content = workload.content
    runs = content.block_runs(block_tokens, partial=True) if content is not None else None
    routed_tokens = [0] * replicas
    holding: list[set[int]] = [set() for _ in range(replicas)]
    routes = np.empty(requests, dtype=np.int64)
    for request, tokens in enumerate(workload.prompt_tokens.tolist()):
        route = routed_tokens.index(min(routed_tokens))
        if routing == "prefix" and runs is not None:
            ids = runs.request_block_ids(request)
            # chained identities: the held ones come first
            matched = [
                next((i for i, block in enumerate(ids) if block not in held), len(ids)) for held in holding
            ]
            if max(matched) > PREFIX_SHARE * len(ids):
                route = matched.index(max(matched))
            holding[route].update(ids)
        routed_tokens[route] += tokens
        routes[request] = route
    return routes
