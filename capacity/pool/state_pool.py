"""Memory for recurrent states, apart from KV: its slots bound how many requests run at once.

    states   = rest x ratio / (1 + ratio)        rest: what weights and activations leave
    slots    = (states - one slot) // one slot   one slot: the state of every linear layer, of one request
    requests = slots // states a request         with prefix caching some are of cached prefixes and of tracking

KV has what is left. Source: SGLang, srt/mem_cache/kv_cache_configurator.py, read 2026-11. A log of 0.5 on an H100
(Qwen3.8-27B at fp8, --mem-fraction-static 0.85): 124 slots of 147 MiB in 17.9 GiB, KV 20.2 GiB. What drafts keep of
states on top is not counted.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from capacity.model.layers import KvCacheGroup
from capacity.pool.settings import PoolSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePool:
    """Slots for recurrent states on one GPU, and the requests that they let run at once."""

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
    """Whether states have memory of their own: an engine that does so, and a model that mixes them with KV."""
    if settings.engine.state_memory_ratio is None:
        return False
    kinds = {group.kind == "linear" for group in settings.model.kv_cache_groups(settings.kv_cache_dtype)}
    return kinds == {True, False}


def state_pool(settings: PoolSettings, layers: Iterable[int], rest_bytes: float) -> StatePool | None:
    """The states of these layers on one GPU that has so much left for them and KV; None where they share a pool."""
    ratio, held = settings.engine.state_memory_ratio, set(layers)
    if ratio is None or not has_state_pool(settings):
        return None
    slot = sum(_bytes(group, held, settings.pool.tensor_parallel_size) for group in _linear(settings))
    each = settings.engine.states_per_request if settings.prefix_caching else 1
    if slot == 0:
        return None
    asked = None if settings.prefix_caching else settings.pool.max_num_seqs
    slots = math.floor((rest_bytes * ratio / (1 + ratio) - slot) / slot) if asked is None else asked
    return StatePool(slots=max(slots, 0), slot_bytes=slot, states_per_request=each)


def _linear(settings: PoolSettings) -> Iterable[KvCacheGroup]:
    return (g for g in settings.model.kv_cache_groups(settings.kv_cache_dtype) if g.kind == "linear")


def _bytes(group: KvCacheGroup, held: set[int], tensor_parallel_size: int) -> float:
    """One request's state of those of a group's layers that stand here, on one GPU."""
    share = math.ceil(group.num_kv_heads / tensor_parallel_size) / group.num_kv_heads
    return group.state_bytes_per_sequence / group.num_layers * len(held.intersection(group.layers)) * share
