"""Layout of one GPU's KV blocks, as in vLLM's hybrid KV manager.

Models that mix full attention with windows or linear layers divide their layers into groups of equal size. Each group
has its own block table, and all groups allocate from one block pool. Source: vLLM 0.33.0, v1/core/kv_cache_utils.py,
2026-11.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

from capacity.base.record import make_from
from capacity.model.layers import KvCacheGroup
from capacity.model.parts import Eviction
from capacity.pool.settings import PoolSettings

WINDOW_EVICTION_TOKENS = (
    128  # SGLang frees tokens behind the window in groups: SGLANG_SWA_EVICTION_INTERVAL, 0.5.23
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Layout of one GPU's KV blocks: size of a block, and the groups of layers for which a request needs blocks.

    A block stores `block_tokens` tokens for all layers of one group. A request needs, in each of the `full_groups`,
    blocks for all its tokens; in each of the `window_groups`, blocks for at most the given number of tokens; and in
    each of the `state_groups`, one block. `shrinks`: whether requests hold their whole prompts until the prefill ends,
    and then only the tokens in their attention windows. `window_share`: layers with a window of `pool_window` tokens
    have a pool of their own, with this many tokens for each token of the other layers; `block_bytes` includes it.
    """

    block_tokens: int
    block_bytes: int
    full_groups: int
    window_groups: tuple[int, ...]
    state_groups: int
    window_tokens: tuple[int, ...] = ()  # attention window of each window group
    shrinks: bool = False
    pool_window: int = 0
    window_share: float = 0.0

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """Return the attention window of each group in tokens; None: full attention, 1: recurrent state."""
        return (*(None,) * self.full_groups, *self.window_tokens, *(1,) * self.state_groups)

    @property
    def groups(self) -> int:
        return self.full_groups + len(self.window_groups) + self.state_groups

    def blocks_of_request(self, tokens: int) -> int:
        """Return the maximum number of blocks that a request of `tokens` tokens holds at the same time."""
        whole = math.ceil(tokens / self.block_tokens)
        windows = sum(min(whole, math.ceil(cap / self.block_tokens) + 1) for cap in self.window_groups)
        return self.full_groups * whole + windows + self.state_groups

    def requests_held(self, blocks: int, tokens: int) -> float:
        """Return the number of requests of `tokens` tokens that fit in `blocks` blocks; it may be fractional.

        Each request needs the maximum number of blocks that it holds at any time. If requests free blocks when their
        prefill ends (`shrinks`), only one request needs that maximum; each other request needs the blocks of its
        attention windows. In a separate pool of windows, a request needs `window_pool_tokens`.
        """
        most = self.blocks_of_request(tokens)
        if self.window_share:
            windows = (
                blocks * self.block_tokens * self.window_share / window_pool_tokens(tokens, self.pool_window)
            )
            return min(blocks / most, windows)
        if not self.shrinks or blocks < most:
            return blocks / most
        whole = math.ceil(tokens / self.block_tokens)
        after = sum(min(whole, math.ceil(kept / self.block_tokens) + 1) for kept in self.window_tokens)
        return 1 + (blocks - most) / after

    def capacity_tokens(self, blocks: int) -> int:
        """Return the KV cache size in tokens, as vLLM logs it."""
        return blocks // self.groups * self.block_tokens if self.groups else 0

    def longest_request(self, blocks: int, limit: int) -> int:
        """Return the length in tokens, at most `limit`, of the longest request that fits in `blocks` blocks."""
        return bisect_right(range(1, limit + 1), blocks, key=self.blocks_of_request)


def kv_layout(settings: PoolSettings, layers: Iterable[int] | None = None) -> KvLayout:
    """Return the layout of one GPU's KV blocks for `layers` (None: all), as in vLLM's hybrid KV manager.

    Layers with the same kind of cache (full, window, state) form one group, and a block has the pages of all layers of
    its group. If a model mixes kinds, all groups have the same number of layers: the number of layers of the least
    frequent kind. If the most frequent kind has less than 1.5 times as many layers, its number is used instead.
    Incomplete groups are padded. With linear layers, the block grows until an attention page holds one state, unless
    the engine stores states separately (`StatePool`). With decode context parallelism, a block covers n times as many
    tokens if n GPUs share a context.
    """
    model, engine, pool = settings.model, settings.engine, settings.pool
    kinds = _layer_kinds(settings, range(model.num_layers) if layers is None else layers)
    if not kinds:  # no KV is kept; 4 bytes are a token's id
        kinds = [_LayerKind(kind="full", num_layers=1, token_bytes=4.0)]
    share = engine.window_pools.get(
        f"{model.model_type}:{settings.profile.architecture}", engine.window_pools.get(model.model_type, 0.0)
    )
    separate = [kind for kind in kinds if kind.kind == "window" and kind.eviction == "none"] if share else []
    kinds = [kind for kind in kinds if kind not in separate]
    if not engine.window_aware_kv:
        kinds = [
            replace(kind, kind="full") if kind.kind == "window" and kind.eviction == "none" else kind
            for kind in kinds
        ]
    # MLA kernels have their own block size
    default_tokens = engine.mla_block_size if model.caches_latents else engine.block_size
    block_tokens = pool.block_size or default_tokens
    states = [kind for kind in kinds if kind.kind == "linear"]
    growing = [kind for kind in kinds if kind.kind != "linear"]
    if states and growing and engine.state_memory_ratio is not None:
        kinds = growing
    elif states and growing:  # multiply the block size until an attention page holds one state
        state = max(kind.state_bytes for kind in states)
        page = max(kind.token_bytes for kind in growing) * block_tokens
        block_tokens *= max(1, math.ceil(state / page))
    length, in_flight = settings.max_model_len, settings.max_num_batched_tokens
    if len({kind.kind_key for kind in kinds}) <= 1:
        layout = _uniform_layout(kinds, block_tokens, length, in_flight)
        layout = _add_window_pool(layout, separate, share)
        return replace(layout, block_tokens=block_tokens * pool.decode_context_parallel_size)
    return _hybrid_layout(kinds, block_tokens, length, in_flight)


def _add_window_pool(layout: KvLayout, kinds: list["_LayerKind"], share: float) -> KvLayout:
    """Return the layout with a separate pool for these layers with windows, whose bytes are added to the blocks.

    Source: SGLang, HybridSWAPoolConfigurator in srt/model_executor/pool_configurator.py, 0.5.8 to 0.5.23, 2026-11.
    """
    if not kinds:
        return layout
    token = share * sum(kind.token_bytes * kind.num_layers for kind in kinds)
    return replace(
        layout,
        block_bytes=math.ceil(layout.block_bytes + token * layout.block_tokens),
        pool_window=max(kind.window_tokens or 0 for kind in kinds),
        window_share=share,
    )


def window_pool_tokens(tokens: int, window: int) -> int:
    """Return the most tokens that a request of `tokens` tokens holds in a separate pool of windows after its prefill.

    It keeps the window at the end of its prompt for the prefix cache, and of its output the window and up to
    WINDOW_EVICTION_TOKENS more tokens. Source: SGLang 0.5.23, srt/mem_cache/common.py, free_swa_out_of_window_slots.
    """
    return min(tokens, 2 * window + WINDOW_EVICTION_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerKind:
    """The layers of one GPU that have the same kind of KV cache: full, window or recurrent state."""

    kind: str
    num_layers: int
    token_bytes: float  # per layer and GPU
    state_bytes: float = 0.0  # per layer and GPU
    window_tokens: int | None = None
    chunked: bool = False
    eviction: Eviction = "none"

    @classmethod
    def from_group(cls, group: KvCacheGroup, layers: set[int], tp: int) -> "_LayerKind":
        heads = group.num_kv_heads
        share = math.ceil(heads / tp) / heads
        return make_from(
            cls,
            group,
            num_layers=len(layers.intersection(group.layers)),
            token_bytes=group.bytes_per_token / group.num_layers * share,
            state_bytes=group.state_bytes_per_sequence / group.num_layers * share,
        )

    @property
    def kind_key(self) -> tuple[str, int | None]:
        """Return the key of this kind of KV cache: its name and window, independent of the page size."""
        return (self.kind, self.window_tokens if self.kind == "window" else None)

    def cap_tokens(self, length: int, tokens_in_flight: int) -> int:
        """Return the maximum tokens of a request that a layer with a window keeps, with the chunk being computed."""
        window = self.window_tokens or length
        return min(window - (0 if self.chunked else 1) + tokens_in_flight, length)


def _layer_kinds(settings: PoolSettings, layers: Iterable[int]) -> list[_LayerKind]:
    """Return the kinds of KV cache that `layers` need on one GPU."""
    held, ranks = set(layers), settings.pool.tensor_parallel_size
    groups = settings.model.kv_cache_groups(settings.kv_cache_dtype)
    kinds = [_LayerKind.from_group(group, held, ranks) for group in groups]
    return [kind for kind in kinds if kind.num_layers]


def _uniform_layout(kinds: list[_LayerKind], block_tokens: int, length: int, in_flight: int) -> KvLayout:
    is_state = any(kind.kind == "linear" for kind in kinds)
    pages = [kind.state_bytes if is_state else kind.token_bytes * block_tokens for kind in kinds]
    block = sum(page * kind.num_layers for page, kind in zip(pages, kinds, strict=True))
    windowed = [kind for kind in kinds[:1] if kind.kind == "window"]
    windows = tuple(kind.cap_tokens(length, in_flight) for kind in windowed)
    return KvLayout(
        block_tokens=block_tokens,
        block_bytes=math.ceil(block),
        full_groups=0 if is_state or windows else 1,
        window_groups=windows,
        state_groups=1 if is_state else 0,
        window_tokens=tuple(kind.window_tokens or length for kind in windowed),
        shrinks=any(kind.eviction in ("after prompt", "after scoring") for kind in windowed),
    )


def _hybrid_layout(kinds: list[_LayerKind], block_tokens: int, length: int, in_flight: int) -> KvLayout:
    counts: dict[tuple[str, int | None], int] = {}
    for kind in kinds:
        counts[kind.kind_key] = counts.get(kind.kind_key, 0) + kind.num_layers
    least, most = min(counts.values()), max(counts.values())
    group_size = most if most < 1.5 * least else least
    page = max(kind.token_bytes for kind in kinds) * block_tokens
    full, windows, states = 0, [], 0
    window_tokens: list[int] = []
    for key, count in counts.items():
        number = math.ceil(count / group_size)
        sample = next(kind for kind in kinds if kind.kind_key == key)
        if sample.kind == "full":
            full += number
        elif sample.kind == "window":
            windows += [sample.cap_tokens(length, in_flight)] * number
            window_tokens += [sample.window_tokens or length] * number
        else:
            states += number
    return KvLayout(
        block_tokens=block_tokens,
        block_bytes=math.ceil(page * group_size),
        full_groups=full,
        window_groups=tuple(windows),
        state_groups=states,
        window_tokens=tuple(window_tokens),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePool:
    """Memory for recurrent states on one GPU, separate from the KV cache; it limits the number of concurrent requests.

        states   = rest x ratio / (1 + ratio)        rest: memory after weights and activations
        slots    = (states - one slot) // one slot   one slot: the state of every linear layer, for one request
        requests = slots // states per request       prefix caching also uses slots, for cached prefixes and tracking

    The KV cache gets the remaining memory. Source: SGLang, srt/mem_cache/kv_cache_configurator.py, read 2026-11. A log
    of SGLang 0.5 on an H100 (Qwen3.8-27B at fp8, --mem-fraction-static 0.85) shows 124 slots of 147 MiB in 17.9 GiB,
    and 20.2 GiB of KV. The additional states of drafts are not counted.
    """

    slots: int
    slot_bytes: float
    states_per_request: int

    @property
    def used_bytes(self) -> int:
        return math.ceil(self.slots * self.slot_bytes)

    @property
    def requests(self) -> int:
        return self.slots // self.states_per_request


def has_state_pool(settings: PoolSettings) -> bool:
    """Return whether recurrent states have memory separate from the KV cache.

    The engine must support this, and the model must have both states and KV.
    """
    if settings.engine.state_memory_ratio is None:
        return False
    kinds = {group.kind == "linear" for group in settings.model.kv_cache_groups(settings.kv_cache_dtype)}
    return kinds == {True, False}


def state_pool(settings: PoolSettings, layers: Iterable[int], rest_bytes: float) -> StatePool | None:
    """Return the state pool of `layers` within `rest_bytes` of one GPU; None if states are stored in KV blocks."""
    ratio = settings.engine.state_memory_ratio
    if ratio is None or not has_state_pool(settings):
        return None
    states = [kind for kind in _layer_kinds(settings, layers) if kind.kind == "linear"]
    slot = sum(kind.state_bytes * kind.num_layers for kind in states)
    if slot == 0:
        return None
    each = settings.engine.states_per_request if settings.prefix_caching else 1
    asked = None if settings.prefix_caching else settings.pool.max_num_seqs
    slots = math.floor((rest_bytes * ratio / (1 + ratio) - slot) / slot) if asked is None else asked
    return StatePool(slots=max(slots, 0), slot_bytes=slot, states_per_request=each)


def max_concurrency(
    layout: KvLayout, states: StatePool | None, blocks: int, tokens: int, needed: int
) -> float:
    """Return how many requests of `tokens` tokens fit in `blocks` KV blocks and in the state pool, if there is one.

    `needed`: blocks of one such request on the pipeline stage that needs most.
    """
    own = layout.shrinks or layout.window_share
    held = layout.requests_held(blocks, tokens) if own else blocks / needed
    return held if states is None else min(held, states.requests)
