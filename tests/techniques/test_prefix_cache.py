"""The one-pass hit-rate curve: against a plain LRU, both block pools, whole simulations, and Mooncake."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from library import SHARED

from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content
from capacity.step import AffineStepTimes, prefill_shape
from capacity.techniques.cache_curve import (
    PromptCachePlan,
    prompt_cache_bill,
)
from capacity.techniques.prefix_cache import ReuseCurve, prefill_savings, reuse_curve, routed_reuse
from capacity.workload import PromptContent, Workload, read_trace

BLOCK = 4
SEGMENT = st.tuples(st.integers(0, 5), st.integers(1, 11))
PROMPTS = st.lists(st.lists(SEGMENT, min_size=1, max_size=4), min_size=1, max_size=14)


def workload_of(prompts: list[list[tuple[int, int]]], *, outputs: int = 1) -> Workload:
    content = PromptContent.from_segments(prompts)
    tokens = content.prompt_tokens
    return Workload(
        arrival_s=np.arange(len(prompts), dtype=float) * 1e3,
        prompt_tokens=tokens,
        output_tokens=np.full(len(prompts), outputs),
        content=content,
    )


def plain_lru(prompts: list[list[int]], capacity: int) -> list[int]:
    """Hit blocks of each prompt in the most naive cache that could be meant."""
    cache: OrderedDict[int, None] = OrderedDict()
    found = []
    for ids in prompts:
        found.append(next((i for i, block in enumerate(ids) if block not in cache), len(ids)))
        for block in reversed(ids):
            cache.pop(block, None)
            cache[block] = None
        while len(cache) > capacity:
            cache.popitem(last=False)
    return found


@given(PROMPTS, st.integers(0, 30))
def test_the_curve_is_a_plain_lru_at_every_capacity(
    prompts: list[list[tuple[int, int]]], capacity: int
) -> None:
    workload = workload_of(prompts)
    assert workload.content is not None
    runs = workload.content.block_runs(BLOCK, partial=True)
    expected = plain_lru([runs.request_block_ids(r) for r in range(len(workload))], capacity)
    curve = reuse_curve(workload, BLOCK)
    hit = np.bincount(curve.request[curve.hits(capacity)], minlength=len(workload))
    assert hit.tolist() == expected


def replayed(workload: Workload, pool: BlockPool, *, block: int = BLOCK, leave: int = 1) -> list[int]:
    """Tokens that a KV pool of the simulator finds for each prompt, requests one after another."""
    assert workload.content is not None
    runs = workload.content.block_runs(block)
    hits = []
    for request, tokens in enumerate(workload.prompt_tokens.tolist()):
        pairs = runs.request_runs(request)
        stops = np.cumsum([count for _, count in pairs]).tolist()
        table = pool.table(Content(("private", request), [key for key, _ in pairs], stops))
        hit = pool.lookup(table, tokens - leave)
        pool.grow(table, tokens, hit)
        pool.cache(table, tokens)
        pool.release(table)
        hits.append(hit[0])
    return hits


@given(PROMPTS, st.integers(0, 25))
def test_the_simulators_pools_agree_in_serial_replay(
    prompts: list[list[tuple[int, int]]], spare: int
) -> None:
    """Every prompt ends inside a block, so that each holds one block without content while it runs: C + 1 blocks."""
    prompts = [[*p, (99, 1 + (-1 - sum(n for _, n in p)) % BLOCK + 1)] for p in prompts]
    workload = workload_of(prompts)
    assert (workload.prompt_tokens % BLOCK == 1).all()
    capacity = int((workload.prompt_tokens // BLOCK).max()) + spare
    curve = reuse_curve(workload, BLOCK, as_engine=True)
    assert replayed(workload, BlockPool(capacity + 1, BLOCK)) == curve.hit_tokens(capacity).tolist()


@given(PROMPTS, st.integers(0, 25))
def test_a_whole_simulation_agrees(prompts: list[list[tuple[int, int]]], spare: int) -> None:
    prompts = [[*p, (99, 1 + (-1 - sum(n for _, n in p)) % BLOCK + 1)] for p in prompts]
    workload = workload_of(prompts)
    capacity = int((workload.prompt_tokens // BLOCK).max()) + spare
    run = simulate(
        workload,
        EngineSetup(
            step_times=AffineStepTimes(1e-3, 1e-6),
            num_blocks=capacity + 1,
            block_size=BLOCK,
            policy="vllm-v1",
        ),
    )
    curve = reuse_curve(workload, BLOCK, as_engine=True)
    assert run.status == "complete"
    assert run.prefix_cache_hit_fraction == pytest.approx(curve.token_hit_fraction(capacity), abs=1e-12)


def mooncake(name: str) -> tuple[Workload, ReuseCurve]:
    if SHARED is None:
        pytest.skip("reference library not at hand (set CAPACITY_SHARED)")
    workload = read_trace(Path(SHARED) / "traces" / f"mooncake_{name}_trace.jsonl.gz")
    return workload, reuse_curve(workload, 512)


def test_mooncake_conversation_gives_the_published_hit_rates() -> None:
    """Mooncake FAST25 release: 37.4 % of tokens hit without a limit; 5.5 % of blocks with 2**20 tokens of LRU."""
    _, curve = mooncake("conversation")
    assert curve.token_hit_fraction() == pytest.approx(0.374, abs=0.0005)
    assert curve.block_hit_fraction(2**20 // 512) == pytest.approx(0.055, abs=0.0005)
    assert curve.block_hit_fraction(curve.knee_blocks) == curve.block_hit_fraction()
    assert curve.block_hit_fraction(curve.knee_blocks - 1) < curve.block_hit_fraction()


def test_mooncake_synthetic_gives_the_published_hit_rate() -> None:
    _, curve = mooncake("synthetic")
    assert curve.token_hit_fraction() == pytest.approx(0.651, abs=0.0005)


@pytest.mark.parametrize("capacity_tokens", [2**17, 2**19, 2**20, 2**22])
def test_a_real_trace_replayed_through_the_simulators_pool(capacity_tokens: int) -> None:
    workload, _ = mooncake("synthetic")
    capacity = capacity_tokens // 512
    blocks = workload.prompt_tokens // 512
    workload = workload.select(np.flatnonzero((blocks >= 1) & (blocks <= capacity))[:1500])
    assert workload.content is not None
    whole = workload.prompt_tokens // 512 * 512
    workload = replace(workload, prompt_tokens=whole, content=workload.content.clip(whole))
    pool = BlockPool(capacity, 512)
    hits = replayed(workload, pool, block=512, leave=0)
    assert reuse_curve(workload, 512).hit_tokens(capacity).tolist() == hits
    assert sum(hits) > 0


@given(PROMPTS, st.integers(0, 20))
def test_more_cache_never_hits_less(prompts: list[list[tuple[int, int]]], capacity: int) -> None:
    curve = reuse_curve(workload_of(prompts), BLOCK)
    assert curve.token_hit_fraction(capacity) <= curve.token_hit_fraction(capacity + 1)
    assert curve.token_hit_fraction(capacity) <= curve.token_hit_fraction()
    assert 0 <= curve.token_hit_fraction() < 1
    assert hit_fraction(curve, ttl_s=1e18) == pytest.approx(curve.token_hit_fraction())
    assert hit_fraction(curve, ttl_s=500.0) == 0.0  # arrivals are 1000 s apart


def hit_fraction(curve: ReuseCurve, *, ttl_s: float) -> float:
    """Of prompt tokens, in a provider's cache that forgets what was not used for so long."""
    return prompt_cache_bill(curve, PromptCachePlan(name="ttl", write=1, read=0, ttl_s=ttl_s)).hit_fraction


@given(PROMPTS, st.sampled_from(["round-robin", "least-tokens", "prefix"]))
def test_one_replica_is_the_single_cache_and_more_never_hit_more(
    prompts: list[list[tuple[int, int]]], routing: str
) -> None:
    workload = workload_of(prompts)
    curve = reuse_curve(workload, BLOCK)
    one = routed_reuse(workload, BLOCK, replicas=1, routing=routing)
    assert one.token_hit_fraction == pytest.approx(curve.token_hit_fraction())
    assert one.largest_share == 1
    three = routed_reuse(workload, BLOCK, replicas=3, routing=routing)
    assert three.token_hit_fraction <= one.token_hit_fraction + 1e-12
    assert three.largest_share >= 1 / 3 - 1e-12


def test_prefix_routing_keeps_what_round_robin_loses() -> None:
    """Two prompts that alternate, on two replicas by turns of three: only prefix routing keeps each in its place."""
    prompts = [[(i % 2, 8), (10 + i, 1)] for i in range(12)]
    order = [prompts[i] for i in (0, 1, 3, 2, 4, 5, 7, 6, 8, 9, 11, 10)]
    workload = workload_of(order)
    by_prefix = routed_reuse(workload, BLOCK, replicas=2, routing="prefix").token_hit_fraction
    by_turn = routed_reuse(workload, BLOCK, replicas=2, routing="round-robin").token_hit_fraction
    assert by_prefix == pytest.approx(10 * 8 / (12 * 9))
    assert by_turn < by_prefix


def test_a_prompt_of_whole_blocks_computes_its_last_one_again() -> None:
    """vLLM leaves at least one token to compute: of 64 cached tokens in blocks of 16 it takes 48; as scored, all."""
    workload = workload_of([[(1, 64)], [(1, 64)]])
    assert reuse_curve(workload, 16, as_engine=True).hit_tokens().tolist() == [0, 48]
    assert reuse_curve(workload, 16).hit_tokens().tolist() == [0, 64]


def test_bad_questions_are_refused_in_one_line() -> None:
    silent = Workload(arrival_s=[0.0], prompt_tokens=[5], output_tokens=[1])
    with pytest.raises(InvalidInput, match="has no information about shared prompts"):
        reuse_curve(silent, 16)
    workload = workload_of([[(1, 5)]])
    with pytest.raises(InvalidInput, match="-1 blocks"):
        reuse_curve(workload, BLOCK).hits(-1)
    with pytest.raises(InvalidInput, match="must be at least 1"):
        routed_reuse(workload, BLOCK, replicas=0, routing="prefix")
    with pytest.raises(UnknownName, match="routing"):
        routed_reuse(workload, BLOCK, replicas=1, routing="prefixes")
    with pytest.raises(InvalidInput, match="block_tokens"):
        reuse_curve(workload, 0)


def test_what_hits_save_is_less_than_what_they_are() -> None:
    """Two equal prompts of 8,193 tokens: the second computes one token. Attention and weights are still read."""
    pool = resolve("llama-3.1-8b", Pool(gpu="h100"))
    content = PromptContent.from_segments([[(1, 8193)], [(1, 8193)]])
    workload = Workload(
        arrival_s=[0.0, 1.0], prompt_tokens=[8193, 8193], output_tokens=[1, 1], content=content
    )
    savings = prefill_savings(pool, reuse_curve(workload, 16, as_engine=True))
    assert savings.capacity_tokens == pool.memory.kv_capacity_tokens
    assert savings.token_hit_fraction == pytest.approx(8192 / 16386)
    assert 0.4 < savings.saved_fraction < savings.token_hit_fraction
    steps = pool.step_model
    by_hand = steps.step_seconds(prefill_shape(1, 8193)) + steps.step_seconds(
        prefill_shape(1, 1, cached_tokens=8192)
    )
    assert savings.mean_prefill_cached_s == pytest.approx(by_hand / 2)
    nothing = prefill_savings(pool, reuse_curve(workload, 16, as_engine=True), 0)
    assert nothing.saved_fraction == 0
    assert nothing.usd_per_million_input_tokens is None


def test_what_hits_save_in_dollars_by_hand() -> None:
    """$3.60 an hour are 0.1 cent a second: a million tokens at the mean prefill's seconds for each 8,193."""
    pool = resolve("llama-3.1-8b", Pool(gpu="h100"))
    content = PromptContent.from_segments([[(1, 8193)], [(1, 8193)]])
    workload = Workload(
        arrival_s=[0.0, 1.0], prompt_tokens=[8193, 8193], output_tokens=[1, 1], content=content
    )
    curve = reuse_curve(workload, 16, as_engine=True)
    savings = prefill_savings(pool, curve, usd_per_gpu_hour=3.60)
    assert savings.usd_per_million_input_tokens == pytest.approx(savings.mean_prefill_s * 1e-3 / 8193 * 1e6)
    cached = savings.usd_per_million_input_tokens_cached
    assert cached == pytest.approx(savings.mean_prefill_cached_s * 1e-3 / 8193 * 1e6)


def test_conversations_reuse_their_history() -> None:
    """Engine mode: turn n finds all full blocks of turn n - 1, answer included (its last token has no KV)."""
    prompts = [[(1, 64)], [(1, 64), (50, 32), (2, 16)]]
    content = PromptContent.from_segments(prompts, answer_ids=[50, 51])
    workload = Workload(arrival_s=[0.0, 9.0], prompt_tokens=[64, 112], output_tokens=[32, 8], content=content)
    curve = reuse_curve(workload, 16, as_engine=True)
    assert curve.hit_tokens().tolist() == [0, (64 + 32 - 1) // 16 * 16]
