"""Tiers of KV below the GPU: of nothing, of a given size, endless; the exact LRU curve; chunks are conserved."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from engine_runs import differences, random_run, run_engine
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from offloaded_runs import BLOCK, STEPS, offload, prefixed, run, tier

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.offload import Offload, Tier, TierStack, TierStore, sum_tier_use
from capacity.techniques.prefix_cache import reuse_curve
from capacity.workload import PromptContent, Workload


def one_by_one(count: int, prefixes: int, seed: int = 0, prompt: int = 101) -> Workload:
    """Requests so far apart that each is alone."""
    rng = np.random.default_rng(seed)
    content = PromptContent.from_segments(
        [[(int(rng.integers(prefixes)), 800), (1000 + i, prompt)] for i in range(count)]
    )
    return Workload(
        arrival_s=np.arange(count) * 5.0,
        prompt_tokens=np.full(count, 800 + prompt),
        output_tokens=np.full(count, 10),
        content=content,
    )


def cached(result: SimulationResult) -> int:
    return int(result.records.cached_tokens.sum())


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 10**6))
def test_a_tier_of_size_zero_is_no_tier(seed: int) -> None:
    workload, options = random_run(seed)
    options |= {"kv_windows": (None,), "enable_prefix_caching": True, "sample_interval_s": None}
    plain = run_engine(workload, **options)
    none = run_engine(workload, **options, policy_options={"offload": offload(tier(0))})
    assert [name for name in differences(plain, none) if name != "kv_tiers"] == []
    (use,) = none.kv_tiers
    assert (use.stored, use.loaded, use.hit_tokens) == (0, 0, 0)


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 10**6),
    chunks=st.sampled_from((None, 3, 10, 40)),
    rate=st.sampled_from((math.inf, 1e9, 1e8)),
    chunk_blocks=st.sampled_from((1, 1, 2, 3)),
    synchronous=st.booleans(),
)
def test_chunks_and_tokens_are_conserved(
    seed: int, chunks: int | None, rate: float, chunk_blocks: int, synchronous: bool
) -> None:
    workload, options = random_run(seed)
    options |= {"kv_windows": (None,), "enable_prefix_caching": True, "sample_interval_s": None}
    spec = offload(tier(chunks, rate), chunk_blocks=chunk_blocks, synchronous=synchronous)
    result = run_engine(workload, **options, policy_options={"offload": spec})
    assert result.status == "complete", result.reason  # and no blocks leaked
    (use,) = result.kv_tiers
    assert use.stored - use.evicted == use.held
    assert chunks is None or use.held <= chunks
    assert use.loaded_bytes == use.loaded * chunk_blocks * 1e6
    records = result.records
    served = records.output_tokens > 0
    assert (records.cached_tokens[served] < records.prompt_tokens[served]).all()
    assert result.prefix_cache_hit_fraction is not None
    on_gpu = result.prefix_cache_hit_fraction * max(1, int(records.prompt_tokens[served].sum()))
    assert round(on_gpu) + use.hit_tokens == int(records.cached_tokens[served].sum())
    wanted = np.minimum(workload.output_tokens, options["limits"].max_model_len - workload.prompt_tokens)
    assert (records.output_tokens[served] == wanted[served]).all()
    assert (records.first_scheduled_ps[served] >= records.arrival_ps[served]).all()
    again = run_engine(workload, **options, policy_options={"offload": spec})
    assert not differences(result, again)


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async"])
def test_an_endless_tier_over_an_endless_link_is_an_endless_prefix_cache(policy: str) -> None:
    """Requests one by one: the very same instants, whatever the GPU's own cache has lost."""
    workload = one_by_one(60, 20)
    endless = run(workload, 10**6, policy=policy)
    small = run(workload, 70, policy=policy)
    tiered = run(workload, 70, policy=policy, offload=offload())
    assert cached(small) < cached(endless) == cached(tiered)
    for column in ("first_scheduled_ps", "first_token_ps", "finish_ps", "cached_tokens"):
        assert (getattr(tiered.records, column) == getattr(endless.records, column)).all()
    assert tiered.kv_tiers[0].hit_tokens > 0
    together = run(prefixed(), 400, policy=policy, offload=offload())
    assert cached(together) == pytest.approx(cached(run(prefixed(), 10**6, policy=policy)), rel=0.02)


@pytest.mark.parametrize("chunks", [80, 200, 400, 700, 1100])
def test_a_finite_tier_follows_the_exact_lru_curve(chunks: int) -> None:
    """Requests one by one: what GPU and tier hold together is an LRU cache of the tier's size, for the tier is told of
    every use and holds all that the GPU does. The curve counts hits at that size without a simulation."""
    workload = one_by_one(80, 20)
    curve = reuse_curve(workload, BLOCK, as_engine=True)
    tiered = run(workload, 70, policy="vllm-v1", offload=offload(tier(chunks)))
    assert cached(tiered) == int(curve.hit_tokens(chunks).sum())


def keys(*names: str) -> list[str]:
    return list(names)


def test_a_tier_drops_the_least_recently_used_and_nothing_in_transfer() -> None:
    store = TierStore(tier(3, 1e6), chunk_bytes=1e6)  # a second a chunk
    assert store.reserve(keys("a", "b", "c"), 0) == ["a", "b", "c"]
    assert store.reserve(keys("d"), 0) is None  # all three are being written
    end = store.write(keys("a", "b", "c"), 0)
    assert end == 3 * 10**12
    assert not store.is_readable("a", end - 1)
    assert store.is_readable("a", end)
    store.touch(keys("a", "b"))  # order is now c, b, a
    assert store.read(keys("c"), end) == end + 10**12
    assert store.reserve(keys("d"), end) == ["d"]  # c is being read: b goes
    assert [key for key in "abc" if store.is_readable(key, end)] == ["a", "c"]
    store.write(keys("d"), end)
    assert store.reserve(keys("e", "f", "g", "h"), end * 9) is None  # more than there is room for
    use = store.statistics()
    assert (use.stored, use.evicted, use.loaded, use.held, use.refused) == (4, 1, 1, 3, 2)
    assert sum_tier_use([use, use])[0].stored == 8


def test_a_second_tier_is_reached_through_the_first() -> None:
    """Two chunks written: 2 s down to host memory, 4 s more to disk; read back: 4 s and 1 s up, and 2 s to the GPU."""
    spec = Offload(
        tiers=(tier(2, 1e6), tier(None, 5e5, name="disk", latency_s=1.0)), block_bytes=1e6, chunk_blocks=1
    )
    stack = TierStack(spec, 16)
    first, second = Content("first"), Content("second")
    for content, at_s in ((first, 0), (second, 100)):
        names = stack.chunk_keys(content, 40)
        assert len(names) == 2
        reserved = stack.stores[0].reserve(names, at_s * 10**12)
        assert reserved == names
        stack.store(reserved, at_s * 10**12)
    now = 200 * 10**12
    hit = stack.find(stack.chunk_keys(first, 40), 0, now)
    assert hit.tiers == (1, 1)  # the second request's chunks have taken the room in host memory
    assert stack.load(hit, now) == now + (4 + 1 + 2) * 10**12
    cpu, disk = (store.statistics() for store in stack.stores)
    assert (cpu.stored, cpu.evicted, cpu.loaded, cpu.held) == (6, 4, 2, 2)
    assert (disk.stored, disk.evicted, disk.loaded, disk.held) == (4, 0, 2, 4)
    assert stack.find(stack.chunk_keys(first, 40), 0, now + 10**13).tiers == (
        0,
        0,
    )  # they stayed on their way up


def test_a_disk_catches_what_host_memory_drops() -> None:
    workload = one_by_one(60, 20)
    cpu = tier(120)
    without = run(workload, 70, policy="vllm-v1", offload=offload(cpu))
    disk = run(workload, 70, policy="vllm-v1", offload=offload(cpu, tier(None, name="disk")))
    assert cached(without) < cached(disk) == cached(run(workload, 10**6, policy="vllm-v1"))
    assert [use.name for use in disk.kv_tiers] == ["cpu", "disk"]
    assert disk.kv_tiers[1].hit_tokens > 0


def test_ranks_and_replicas_have_tiers_of_their_own() -> None:
    workload = prefixed(200, 40.0)
    setup = EngineSetup(step_times=STEPS, num_blocks=500, policy_options={"offload": offload(tier(400, 1e9))})
    result = simulate(
        workload, [replace(setup, data_parallel_size=2, data_parallel_balance="round-robin")] * 2
    )
    assert result.status == "complete"
    assert 800 < result.kv_tiers[0].held <= 4 * 400
    ranks = run(workload, 500, offload=offload(tier(400, 1e9)), data_parallel_size=2)
    (use,) = ranks.kv_tiers
    assert 400 < use.held <= 800


def test_impossible_tiers_are_refused() -> None:
    for bad in ({"capacity_chunks": -1}, {"bytes_per_s": 0.0}, {"latency_s": math.inf}):
        with pytest.raises(InvalidInput, match="cpu tier"):
            Tier(**{"name": "cpu", "capacity_chunks": 1, "bytes_per_s": 1.0, **bad})
    with pytest.raises(InvalidInput, match="1 or 2 tiers"):
        Offload(tiers=(), block_bytes=1.0)
