"""KV below the GPU: a tier of nothing is no tier, an endless one is an endless prefix cache, a finite one follows the
exact LRU curve; chunks, bytes and tokens are conserved, and transfers take the link's time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_runs import differences, random_run, run_engine
from hypothesis import given, settings
from hypothesis import strategies as st

import capacity
from capacity.answers.engine_setup import engine_setup
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.deployment.vllm_command import read_vllm_command
from capacity.pool.resolve import resolve
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.offload import Offload, Tier, TierStack, TierStore, added_up
from capacity.simulator.kv_cache.run_pool import RunPool
from capacity.simulator.schedulers import SchedulerLimits, Sequence
from capacity.simulator.schedulers.offloading import OffloadingV1
from capacity.step import AffineStepTimes
from capacity.techniques.prefix_cache import reuse_curve
from capacity.workload import (
    FixedLengths,
    LognormalLengths,
    PromptContent,
    SharedPrefixes,
    SteadyArrivals,
    Workload,
    synthetic,
)

STEPS = AffineStepTimes(0.008, 4e-5, per_context_token_s=2e-8)
BLOCK = 16


def tier(chunks: int | None = None, rate: float = math.inf, **more: Any) -> Tier:
    return Tier(**{"name": "cpu", "capacity_chunks": chunks, "bytes_per_s": rate, **more})


def offload(*tiers: Tier, **more: Any) -> Offload:
    return Offload(tiers=tiers or (tier(),), **{"block_bytes": 1e6, **more})


def prefixed(count: int = 300, rate: float = 20.0, prefixes: int = 40, **more: Any) -> Workload:
    return synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(rate),
        prompt=FixedLengths(100),
        output=LognormalLengths(40, 1.0, highest_tokens=300),
        shared_prefixes=SharedPrefixes(800, prefixes),
        **more,
    )


def run(workload: Workload, num_blocks: int = 1500, **options: Any) -> SimulationResult:
    keep = {"offload": options.pop("offload")} if "offload" in options else {}
    settings = {"step_times": STEPS, "num_blocks": num_blocks, "block_size": BLOCK, **options}
    settings["policy_options"] = {**settings.get("policy_options", {}), **keep}
    return run_engine(workload, **settings)


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


# nothing, and everything


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_a_tier_of_size_zero_is_no_tier(seed: int) -> None:
    workload, options = random_run(seed)
    options |= {"kv_windows": (None,), "enable_prefix_caching": True, "sample_interval_s": None}
    plain = run_engine(workload, **options)
    none = run_engine(workload, **options, policy_options={"offload": offload(tier(0))})
    assert [name for name in differences(plain, none) if name != "kv_tiers"] == []
    (use,) = none.kv_tiers
    assert (use.stored, use.loaded, use.hit_tokens) == (0, 0, 0)


@settings(max_examples=60)
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


# time


def test_a_load_takes_the_links_time_and_others_run_meanwhile() -> None:
    """Request 2 repeats request 0's 160 tokens, which request 1 drove out: 10 blocks of 1 MB at 100 MB/s, and 1 ms.

    Synchronous engine, 10 ms a step: it is scheduled at the first step boundary after 101 ms of loading.
    """
    content = PromptContent.from_segments([[(0, 165)], [(1, 805)], [(0, 160), (2, 5)], [(3, 20)]])
    workload = Workload(
        arrival_s=np.array([0.0, 1.0, 2.0, 2.0]),
        prompt_tokens=np.array([165, 805, 165, 20]),
        output_tokens=np.array([2, 2, 2, 30]),
        content=content,
    )
    spec = offload(tier(None, 1e8, latency_s=0.001))
    result = run(workload, 51, policy="vllm-v1", offload=spec, step_times=AffineStepTimes(0.01, 0.0))
    records = result.records
    began = (records.first_scheduled_ps - records.arrival_ps) / 1e9
    assert began.tolist() == pytest.approx(
        [0, 0, 110, 0]
    )  # the fourth runs from the start, ten steps later the third
    assert records.cached_tokens.tolist() == [0, 0, 160, 0]
    (use,) = result.kv_tiers
    assert (use.stored, use.loaded, use.hit_tokens) == (63, 10, 160)
    waits = run(
        workload,
        51,
        policy="vllm-v1",
        step_times=AffineStepTimes(0.01, 0.0),
        offload=offload(spec.tiers[0], synchronous=True),
    )
    ttft = (waits.records.first_token_ps - waits.records.arrival_ps) / 1e9
    assert ttft.tolist() == pytest.approx(
        [10, 10, 111, 111]
    )  # the step that takes it in waits, and all in it
    alone = run(workload, 51, policy="vllm-v1", step_times=AffineStepTimes(0.01, 0.0))
    assert alone.records.cached_tokens.tolist() == [0, 0, 0, 0]


def test_a_prompt_loaded_whole_computes_its_last_token_again() -> None:
    content = PromptContent.from_segments([[(0, 160)], [(1, 160)], [(0, 160)]])
    workload = Workload(
        arrival_s=np.array([0.0, 1.0, 2.0]),
        prompt_tokens=np.array([160] * 3),
        output_tokens=np.array([2] * 3),
        content=content,
    )
    result = run(workload, 13, offload=offload())
    assert result.records.cached_tokens.tolist() == [0, 0, 159]


def test_a_prefix_on_its_way_is_waited_for_and_loaded_once() -> None:
    """Two requests that repeat the same lost prefix: one load, and the second then finds it on the GPU."""
    content = PromptContent.from_segments(
        [[(0, 160), (10, 5)], [(1, 800), (11, 5)], [(0, 160), (12, 5)], [(0, 160), (13, 5)]]
    )
    workload = Workload(
        arrival_s=np.array([0.0, 1.0, 2.0, 2.0]),
        prompt_tokens=np.array([165, 805, 165, 165]),
        output_tokens=np.array([2] * 4),
        content=content,
    )
    result = run(workload, 51, offload=offload(tier(None, 1e8)))
    assert result.records.cached_tokens.tolist() == [0, 0, 160, 160]
    (use,) = result.kv_tiers
    assert (use.loaded, use.hit_tokens) == (10, 160)
    assert result.records.first_scheduled_ps[2] == result.records.first_scheduled_ps[3]


def test_blocks_are_promised_once() -> None:
    """21 blocks; a prompt of 15 that loads 10 of them, one of 8 that loads 7: were both begun, neither could end."""
    content = PromptContent.from_segments(
        [[(0, 160), (10, 5)], [(1, 112), (11, 5)], [(2, 320)], [(0, 160), (12, 80)], [(1, 112), (13, 10)]]
    )
    workload = Workload(
        arrival_s=np.array([0.0, 1.0, 2.0, 3.0, 3.0]),
        prompt_tokens=np.array([165, 117, 320, 240, 122]),
        output_tokens=np.array([1] * 5),
        content=content,
    )
    result = run(workload, 21, policy="vllm-v1", offload=offload(tier(None, 1e8)))
    assert result.status == "complete"
    assert result.records.cached_tokens.tolist() == [0, 0, 0, 160, 112]
    assert result.records.finish_ps[3] < result.records.first_scheduled_ps[4]


@pytest.mark.parametrize("reserve", [True, False])
def test_a_load_begins_where_the_whole_prompt_fits(reserve: bool) -> None:
    """Request 3 needs 15 of 21 blocks, 10 of them loaded in 100 ms; request 2 holds 7 and more until it ends."""
    content = PromptContent.from_segments([[(0, 160), (10, 5)], [(1, 320)], [(2, 100)], [(0, 160), (12, 80)]])
    workload = Workload(
        arrival_s=np.array([0.0, 1.0, 2.0, 2.05]),
        prompt_tokens=np.array([165, 320, 100, 240]),
        output_tokens=np.array([1, 1, 60, 1]),
        content=content,
    )
    result = run(
        workload,
        21,
        policy="vllm-v1",
        step_times=AffineStepTimes(0.01, 0.0),
        limits=SchedulerLimits(reserve_full_isl=reserve),
        offload=offload(tier(None, 1e8)),
    )
    records = result.records
    assert records.cached_tokens.tolist() == [0, 0, 0, 160]
    waited_ms = (records.first_scheduled_ps[3] - records.finish_ps[2]) / 1e9
    assert waited_ms == pytest.approx(100.0 if reserve else 0.0)


def test_an_evicted_prompt_is_faster_loaded_than_computed_where_the_link_is_fast() -> None:
    workload = prefixed(300, 12.0)
    means = [
        run(
            workload, 700, offload=offload(tier(None, rate)) if rate else offload(tier(0))
        ).summary.ttft_ms.mean  # type: ignore[union-attr]
        for rate in (1e10, 1e9, 2e8, 0)
    ]
    assert means[0] < means[1] < means[2]
    assert means[0] < means[3]


# tiers


def keys(*names: str) -> list[str]:
    return list(names)


def test_a_tier_drops_the_least_recently_used_and_nothing_in_transfer() -> None:
    store = TierStore(tier(3, 1e6), chunk_bytes=1e6)  # a second a chunk
    assert store.reserve(keys("a", "b", "c"), 0) == ["a", "b", "c"]
    assert store.reserve(keys("d"), 0) is None  # all three are being written
    end = store.write(keys("a", "b", "c"), 0)
    assert end == 3 * 10**12
    assert not store.has("a", end - 1)
    assert store.has("a", end)
    store.touch(keys("a", "b"))  # order is now c, b, a
    assert store.read(keys("c"), end) == end + 10**12
    assert store.reserve(keys("d"), end) == ["d"]  # c is being read: b goes
    assert [key for key in "abc" if store.has(key, end)] == ["a", "c"]
    store.write(keys("d"), end)
    assert store.reserve(keys("e", "f", "g", "h"), end * 9) is None  # more than there is room for
    use = store.use()
    assert (use.stored, use.evicted, use.loaded, use.held, use.refused) == (4, 1, 1, 3, 2)
    assert added_up([use, use])[0].stored == 8


def test_a_second_tier_is_reached_through_the_first() -> None:
    """Two chunks written: 2 s down to host memory, 4 s more to disk; read back: 4 s and 1 s up, and 2 s to the GPU."""
    spec = Offload(
        tiers=(tier(2, 1e6), tier(None, 5e5, name="disk", latency_s=1.0)), block_bytes=1e6, chunk_blocks=1
    )
    stack = TierStack(spec, 16)
    first, second = Content("first"), Content("second")
    for content, at_s in ((first, 0), (second, 100)):
        names = stack.keys(content, 40)
        assert len(names) == 2
        reserved = stack.reserve(names, at_s * 10**12)
        assert reserved == names
        stack.store(reserved, at_s * 10**12)
    now = 200 * 10**12
    hit = stack.find(stack.keys(first, 40), 0, now)
    assert hit.tiers == (1, 1)  # the second request's chunks have taken the room in host memory
    assert stack.load(hit, now) == now + (4 + 1 + 2) * 10**12
    cpu, disk = (store.use() for store in stack.stores)
    assert (cpu.stored, cpu.evicted, cpu.loaded, cpu.held) == (6, 4, 2, 2)
    assert (disk.stored, disk.evicted, disk.loaded, disk.held) == (4, 0, 2, 4)
    assert stack.find(stack.keys(first, 40), 0, now + 10**13).tiers == (0, 0)  # they stayed on their way up


def test_a_disk_catches_what_host_memory_drops() -> None:
    workload = one_by_one(60, 20)
    cpu = tier(120)
    without = run(workload, 70, policy="vllm-v1", offload=offload(cpu))
    disk = run(workload, 70, policy="vllm-v1", offload=offload(cpu, tier(None, name="disk")))
    assert cached(without) < cached(disk) == cached(run(workload, 10**6, policy="vllm-v1"))
    assert [use.name for use in disk.kv_tiers] == ["cpu", "disk"]
    assert disk.kv_tiers[1].hit_tokens > 0


def test_a_preempted_request_loads_what_it_had() -> None:
    """Without a tier it computes prompt and answer again; with one only what was not yet a full block."""
    workload = synthetic(
        num_requests=60, arrivals=SteadyArrivals(1000.0), prompt=FixedLengths(64), output=FixedLengths(200)
    )
    plain = run(workload, 150, policy="vllm-v1", limits=SchedulerLimits(max_num_seqs=32))
    tiered = run(workload, 150, policy="vllm-v1", limits=SchedulerLimits(max_num_seqs=32), offload=offload())
    assert plain.preemptions > 0
    assert tiered.preemptions > 0
    assert tiered.kv_tiers[0].loaded > 0
    assert tiered.status == "complete"
    assert tiered.records.finish_ps.max() < plain.records.finish_ps.max()


def test_requests_cancelled_while_they_load_leave_nothing_behind() -> None:
    pool = RunPool(100, 16)
    policy = OffloadingV1(SchedulerLimits(), pool, offload=offload(tier(None, 1e6)))
    names = policy.tiers.keys(Content("x"), 160)
    policy.tiers.store(policy.tiers.reserve(names, 0) or [], 0)
    sequence = Sequence(
        0, id=0, arrival=0, prompt_tokens=165, max_known=170, table=pool.table(Content("x")), priority=0
    )
    policy.add(sequence)
    now = 10**15
    assert not policy.schedule(now).rows
    assert policy.wake_ps == now + 10 * 10**12
    assert pool.free_blocks == 90
    assert policy.num_waiting == 1
    policy.abort(sequence)
    assert (pool.free_blocks, policy.unfinished, policy.wake_ps) == (100, 0, None)


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


# swapping


def test_swapping_takes_the_links_time_and_computes_nothing_again() -> None:
    """vLLM V0 under pressure: every block that goes out comes back, and each way takes its time."""
    workload = synthetic(
        num_requests=40, arrivals=SteadyArrivals(1000.0), prompt=FixedLengths(64), output=FixedLengths(150)
    )
    common = {"policy": "vllm-v0", "enable_prefix_caching": False}

    def swapped(block_ps: int, blocks: int = 10_000) -> SimulationResult:
        options = {
            "preemption_mode": "swap",
            "num_cpu_blocks": blocks,
            "swap_block_ps": block_ps,
            "block_bytes": 2e6,
        }
        return run(workload, 150, **common, policy_options=options)

    free, slow = swapped(0), swapped(10**9)
    (use,) = slow.kv_tiers
    assert use.stored == use.loaded == use.evicted > 0
    assert use.held == 0
    assert use.loaded_bytes == use.loaded * 2e6
    assert slow.preemptions == 0
    assert slow.busy_s == pytest.approx(free.busy_s + (use.stored + use.loaded) * 1e-3)
    recomputed = run(workload, 150, **common)
    assert recomputed.preemptions > 0
    assert recomputed.kv_tiers == ()
    nowhere = swapped(0, blocks=0)
    assert nowhere.kv_tiers[0].refused > 0
    assert [name for name in differences(recomputed, nowhere) if name != "kv_tiers"] == []


# what users write


def test_the_flags_make_tiers_of_the_memory_plan_and_the_profiles_link() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100", tensor_parallel_size=2, kv_offloading_size=64))
    spec: Offload = engine_setup(resolved).policy_options["offload"]
    assert spec.block_bytes == resolved.memory.kv_block_bytes == 16 * 131072 // 2
    assert spec.tiers[0].capacity_chunks == 64 * 2**30 // (16 * 131072)
    assert spec.tiers[0].bytes_per_s == resolved.profile.pcie.bytes_per_s
    lmcache = Pool(
        gpu="h100",
        kv_offloading_size=64,
        kv_offloading_backend="lmcache",
        kv_offloading_disk_size=1000,
        kv_offloading_disk_bytes_per_s=5e9,
    )
    spec = engine_setup(resolve("llama-3.1-8b", lmcache)).policy_options["offload"]
    assert (spec.chunk_blocks, spec.synchronous, [tier.name for tier in spec.tiers]) == (
        16,
        True,
        ["cpu", "disk"],
    )
    swap = Pool(gpu="h100", engine="vllm@0.6", preemption_mode="swap", swap_space=16, max_model_len=8192)
    options = engine_setup(resolve("llama-3.1-8b", swap)).policy_options
    assert options["num_cpu_blocks"] == 16 * 2**30 // (16 * 131072)
    assert options["swap_block_ps"] == round(16 * 131072 / 51.2e9 * 1e12)


def test_a_pasted_command_says_where_kv_goes() -> None:
    def fields(flags: str) -> dict[str, Any]:
        pool = read_vllm_command(f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags}").pool("h100")
        return pool.model_dump(exclude_defaults=True)

    assert fields("--kv-offloading-size 64 --kv-offloading-backend native")["kv_offloading_size"] == 64
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    extra = {"kv_connector_extra_config": {"cpu_bytes_to_use": 2**33}}
    assert fields(f"--kv-transfer-config '{json.dumps(config | extra)}'")["kv_offloading_size"] == 8
    assert fields("--swap-space 16")["swap_space"] == 16
    for bad in (config, {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}):
        with pytest.raises(InvalidInput, match="--kv-offloading-size"):
            fields(f"--kv-transfer-config '{json.dumps(bad)}'")


def test_a_simulation_says_what_each_tier_did() -> None:
    answer = capacity.simulate(
        "llama-3.1-8b",
        gpu="l4",
        num_gpu_blocks_override=1500,
        max_model_len=8192,
        kv_offloading_size=32,
        input_len=200,
        output_len=20,
        random_prefix_len=1600,
        num_prefixes=30,
        request_rate=1.0,
        num_prompts=120,
    ).to_dict()
    (cpu,) = answer["kv_tiers"]
    assert cpu["hit_tokens"] > 0
    assert cpu["stored_bytes"] == cpu["stored"] * 16 * 131072
    assert answer["prefix_cache_hit_fraction"] < 0.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "gpt-oss-20b", "kv_offloading_size": 8}, "windows or a recurrent state"),
        ({"engine": "sglang", "kv_offloading_size": 8}, "not for sglang"),
        ({"kv_offloading_size": 8, "enable_prefix_caching": False}, "needs --enable-prefix-caching"),
        ({"kv_offloading_size": 8, "kv_offloading_disk_size": 8}, "needs --kv-offloading-disk-bytes-per-s"),
        ({"preemption_mode": "swap"}, "recomputes: use --engine vllm@0.6"),
        ({"kv_offloading_size": -1}, "kv_offloading_size is -1"),
        ({"kv_offloading_size": 8, "kv_offloading_bytes_per_s": 0}, "kv_offloading_bytes_per_s is 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    model = fields.pop("model", "llama-3.1-8b")
    with pytest.raises(InvalidInput, match=message) as refused:
        capacity.simulate(
            model, gpu="h100", input_len=100, output_len=10, request_rate=1.0, num_prompts=5, **fields
        )
    assert "\n" not in str(refused.value)


def test_impossible_tiers_are_refused() -> None:
    for bad in ({"capacity_chunks": -1}, {"bytes_per_s": 0.0}, {"latency_s": math.inf}):
        with pytest.raises(InvalidInput, match="cpu tier"):
            Tier(**{"name": "cpu", "capacity_chunks": 1, "bytes_per_s": 1.0, **bad})
    with pytest.raises(InvalidInput, match="one or two tiers"):
        Offload(tiers=(), block_bytes=1.0)
