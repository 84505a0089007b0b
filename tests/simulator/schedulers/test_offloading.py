"""vLLM V1 with tiers below the GPU: loads take the link's time, blocks are promised once."""

from __future__ import annotations

import numpy as np
import pytest
from offloaded_runs import offload, prefixed, run, tier

from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.schedulers import SchedulerLimits, Sequence
from capacity.simulator.schedulers.offloading import OffloadingV1
from capacity.step import AffineStepTimes
from capacity.workload import FixedLengths, PromptContent, SteadyArrivals, Workload, synthetic


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
    pool = BlockPool(100, 16)
    policy = OffloadingV1(SchedulerLimits(), pool, offload=offload(tier(None, 1e6)))
    names = policy.tiers.chunk_keys(Content("x"), 160)
    policy.tiers.store(policy.tiers.stores[0].reserve(names, 0) or [], 0)
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
