"""Compiled KV offload says of every run what the readable one says: one tier or two, small or slow, loads waited for
or not."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from core_runs import differing, needs_core, open_loop
from long_forms import mostly_slow

from capacity.simulator.kv_cache.offload import Offload, Tier
from capacity.simulator.schedulers import Speculation

pytestmark = needs_core


def random_offload(rng: random.Random) -> Offload:
    near = Tier(
        name="cpu",
        capacity_chunks=rng.choice([None, 0, 2, 5, 20, 100]),
        bytes_per_s=rng.choice([math.inf, 1e6, 1e7, 1e8]),
        latency_s=rng.choice([0, 0.001, 0.02]),
    )
    far = Tier(
        name="disk",
        capacity_chunks=rng.choice([None, 5, 20, 100]),
        bytes_per_s=rng.choice([math.inf, 1e6, 1e7]),
        latency_s=rng.choice([0, 0.01]),
    )
    return Offload(
        tiers=(near, far) if rng.random() < 0.5 else (near,),
        block_bytes=rng.choice([1e3, 1e5, 123.5]),
        chunk_blocks=rng.choice([1, 1, 2, 4]),
        synchronous=rng.random() < 0.3,
    )


@pytest.mark.parametrize("part", mostly_slow(range(6), range(2)))
def test_it_decides_what_the_readable_one_decides(part: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(100 * part, 100 * part + 100):
        rng = random.Random(seed)
        options = {"enable_prefix_caching": True, "policy_options": {"offload": random_offload(rng)}}
        if rng.random() < 0.3:
            options["speculation"] = Speculation(
                rng.choice([1, 3]), (1, 0, 2), lookahead_slots=rng.choice([1, 3])
            )
        if rng.random() < 0.2:
            options["data_parallel_size"] = 2
        found, ours = differing(*open_loop(seed, **options))
        assert found == [], seed
        for use in ours["kv_tiers"]:
            for what in ("stored", "evicted", "loaded", "refused", "hit_tokens"):
                happened[f"{use.name} {what}"] += getattr(use, what) > 0
    assert (
        min(happened[f"cpu {what}"] for what in ("stored", "evicted", "loaded", "refused", "hit_tokens")) >= 5
    )
    assert happened["disk stored"] >= 5
