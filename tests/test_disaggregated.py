"""Disaggregated prefill and decode: equal to a prefill-only and a decode-only run where the link is infinite, and
conserving requests, transfers and blocks where it is not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.errors import InvalidInput
from capacity.kv_cache.content import Content
from capacity.schedulers import SchedulerLimits
from capacity.simulator import simulate_engine
from capacity.simulator.cluster import ClusterResult, EngineSetup, simulate_cluster
from capacity.simulator.transfer import KvLink, LoadPool, Port, transfer
from capacity.step import AffineStepTimes
from capacity.workload import (
    FixedLengths,
    LognormalLengths,
    PromptContent,
    SharedPrefixes,
    SteadyArrivals,
    Workload,
    synthetic,
)

STEPS = AffineStepTimes(0.01, 1e-4, per_context_token_s=2e-8)
INSTANT = KvLink(bytes_per_token=1e5, bytes_per_s=math.inf)
LIMITS = SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=512, max_model_len=2000)


def setup(role: str, **more: object) -> EngineSetup:
    return replace(
        EngineSetup(step_times=STEPS, num_blocks=4000, policy="vllm-v1", limits=LIMITS),
        role=role,
        **more,
    )


def requests(count: int = 120, rate: float = 10.0, prompt: int | None = None, **more: object) -> Workload:
    return synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(rate),
        prompt=LognormalLengths(150, 1.0, highest_tokens=1500) if prompt is None else FixedLengths(prompt),
        output=LognormalLengths(30, 1.0, highest_tokens=400),
        **more,  # type: ignore[arg-type]
    )


def split(workload: Workload, link: KvLink = INSTANT, **more: object) -> ClusterResult:
    return simulate_cluster(workload, [setup("prefill"), setup("decode")], link=link, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async"])
def test_the_prefill_pool_is_a_run_of_prompts_alone(policy: str) -> None:
    workload = requests()
    found = simulate_cluster(
        workload, [setup("prefill", policy=policy), setup("decode", policy=policy)], link=INSTANT
    )
    alone = simulate_engine(
        replace(workload, output_tokens=np.ones(len(workload), dtype=np.int64)),
        step_times=STEPS,
        num_blocks=4000,
        policy=policy,
        limits=LIMITS,
    )
    arrived_ps = found.records.arrival_ps + 0
    np.testing.assert_array_equal(found.records.first_scheduled_ps, alone.records.first_scheduled_ps)
    assert found.transfer_ps is not None
    assert (found.records.first_token_ps > alone.records.finish_ps).all(), "a decode step lies between"
    assert (arrived_ps <= alone.records.finish_ps).all()


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async"])
def test_the_decode_pool_is_a_run_whose_prompts_are_cached(policy: str) -> None:
    """With blocks of one token, a prompt that is wholly cached leaves exactly one token to compute: the same as a
    prompt that was loaded. So an engine whose cache is warm, and whose requests arrive as the prefill pool ends
    them, must do in each step what the decode pool does."""
    prompt, count = 200, 80
    workload = requests(count, prompt=prompt)
    decode = setup("decode", policy=policy, block_size=1, num_blocks=60_000)
    found = simulate_cluster(workload, [setup("prefill", policy=policy), decode], link=INSTANT)
    prefilled = simulate_engine(
        replace(workload, output_tokens=np.ones(count, dtype=np.int64)),
        step_times=STEPS,
        num_blocks=4000,
        policy=policy,
        limits=LIMITS,
    ).records.finish_ps
    later = 100.0
    warm = Workload(
        arrival_s=np.concatenate(([0.0], later + prefilled / 1e12)),
        prompt_tokens=np.full(count + 1, prompt),
        output_tokens=np.concatenate(([1], workload.output_tokens)),
        content=PromptContent.from_segments([[(0, prompt)]] * (count + 1)),
    )
    alone = simulate_engine(
        warm, step_times=STEPS, num_blocks=60_000, block_size=1, policy=policy, limits=LIMITS
    ).records
    shift = round(later * 1e12)
    assert (alone.cached_tokens[1:] == prompt - 1).all()
    np.testing.assert_allclose(found.records.first_token_ps, alone.first_token_ps[1:] - shift, atol=100)
    np.testing.assert_allclose(found.records.finish_ps, alone.finish_ps[1:] - shift, atol=100)


def test_a_slow_link_delays_by_its_time() -> None:
    """One request: TTFT is prefill, transfer, and one decode step that recomputes the last prompt token."""
    workload = requests(1, prompt=400)
    link = KvLink(bytes_per_token=1e5, bytes_per_s=1e8, latency_s=0.003)
    found = split(workload, link)
    prefill_ps, decode_ps = 10_000_000_000 + 400 * 100_000_000, 10_000_000_000 + 100_000_000
    transfer_ps = 400 * 1e5 / 1e8 * 1e12 + 3e9
    record = found.records
    assert int(record.first_token_ps[0] - record.arrival_ps[0]) == prefill_ps + int(transfer_ps) + decode_ps
    assert found.transfer_ps is not None
    assert int(found.transfer_ps[0]) == int(transfer_ps)


def test_transfers_pass_one_after_the_other() -> None:
    link = KvLink(bytes_per_token=1.0, bytes_per_s=1.0, latency_s=0.5)
    sender, first, second = Port(), Port(), Port()
    assert transfer(link, 2, 0, sender, first) == 2.5e12
    assert transfer(link, 3, 0, sender, second) == 5.5e12, "the sender is busy for 2 s, its latency overlaps"
    assert transfer(link, 1, 10**12, Port(), first) == 3.5e12


workloads = st.builds(
    lambda rate, seed, shared: requests(
        rate=rate, seed=seed, shared_prefixes=SharedPrefixes(64, 3) if shared else None
    ),
    st.sampled_from((5.0, 20.0)),
    st.integers(0, 1000),
    st.booleans(),
)


@settings(max_examples=20)
@given(
    workloads,
    st.sampled_from((130, 300, 2000)),
    st.sampled_from((130, 300, 2000)),
    st.sampled_from((1e7, 1e9, math.inf)),
    st.sampled_from(("vllm-v1", "vllm-v1-async")),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_everything_is_conserved(
    workload: Workload,
    prefill_blocks: int,
    decode_blocks: int,
    bytes_per_s: float,
    policy: str,
    prefillers: int,
    decoders: int,
) -> None:
    """Requests, tokens, transfers; time's order; and the same whether engines jump or step."""
    link = KvLink(bytes_per_token=1e5, bytes_per_s=bytes_per_s, latency_s=0.001)
    setups = [setup("prefill", num_blocks=prefill_blocks, policy=policy)] * prefillers
    setups += [setup("decode", num_blocks=decode_blocks, policy=policy)] * decoders
    found = simulate_cluster(workload, setups, link=link)
    records = found.records
    assert found.status == "complete", found.reason
    assert records.completed.all()
    np.testing.assert_array_equal(records.output_tokens, workload.output_tokens)
    assert found.transfer_ps is not None
    least_ps = np.rint(1e5 * workload.prompt_tokens / bytes_per_s * 1e12) + 1e9
    assert (found.transfer_ps >= least_ps - 1).all()
    after_prefill = records.first_token_ps - found.transfer_ps
    assert (records.first_scheduled_ps < after_prefill).all()
    assert (records.first_token_ps <= records.finish_ps).all()
    assert sum(replica.requests for replica in found.replicas) == 2 * len(workload)
    if policy.endswith("async") and found.preemptions:
        return  # a load may begin a step later then: not yet settled which is right
    stepped = simulate_cluster(workload, setups, link=link, mode="step")
    for column in ("first_scheduled_ps", "first_token_ps", "finish_ps", "preemptions"):
        np.testing.assert_array_equal(getattr(records, column), getattr(stepped.records, column), column)


def test_a_full_decode_pool_holds_the_prefill_pool_back() -> None:
    """Back-pressure: KV that nobody takes stays where it was made, and new prompts wait for its place."""
    workload = requests(60, rate=50.0, prompt=160)
    setups = [setup("prefill", num_blocks=40), setup("decode", num_blocks=30)]
    held = simulate_cluster(workload, setups, link=INSTANT)
    free = simulate_cluster(workload, [setup("prefill", num_blocks=40), setup("decode")], link=INSTANT)
    waits = [run.records.first_scheduled_ps - run.records.arrival_ps for run in (held, free)]
    assert waits[0].mean() > 2 * waits[1].mean()


def test_loaded_blocks_are_given_back() -> None:
    pool = LoadPool(20, 4)
    table = pool.table(Content("a"))
    assert pool.load(table, 10)
    assert pool.free_blocks == 17
    assert pool.lookup(table, 9) == (9, [])
    pool.grow(table, 10, pool.lookup(table, 9))
    pool.cache(table, 10)
    pool.release(table)
    assert pool.free_blocks == 20
    again = pool.table(Content("a"))
    assert pool.lookup(again, 10)[0] == 8
    assert not pool.load(pool.table(Content("b")), 100)


def test_what_is_not_simulated_is_refused() -> None:
    with pytest.raises(InvalidInput, match="prefill and decode"):
        simulate_cluster(requests(), [setup("prefill")], link=INSTANT)
    with pytest.raises(InvalidInput, match="link"):
        simulate_cluster(requests(), [setup("prefill"), setup("decode")])
    with pytest.raises(InvalidInput, match="timeout_s"):
        split(requests(), timeout_s=1.0)
    with pytest.raises(InvalidInput, match="rate"):
        KvLink(bytes_per_token=1.0, bytes_per_s=0.0)
