"""Where the time went: parts that add up, each with what it is about."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from engine_loops import LOOPS, on

import capacity
from capacity.simulator import EngineSetup, FrontendTimes, SimulationResult, simulate
from capacity.simulator.fleet import Failures
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.time_parts import PARTS, TimeParts, time_parts
from capacity.simulator.transfer import KvLink
from capacity.step import AffineStepTimes
from capacity.workload import LognormalLengths, SteadyArrivals, Workload, synthetic

STEPS = AffineStepTimes(0.01, 1e-4)


def requests(rate: float) -> Workload:
    return synthetic(
        num_requests=200,
        arrivals=SteadyArrivals(rate),
        prompt=LognormalLengths(100, 1.0, highest_tokens=1000),
        output=LognormalLengths(40, 1.0, highest_tokens=400),
    )


def total(parts: TimeParts) -> np.ndarray:
    return sum(parts.part_of(part) for part in PARTS)  # type: ignore[return-value]


@pytest.mark.parametrize("engine_loop", LOOPS)
def test_parts_add_up_to_the_latency(engine_loop: str) -> None:
    for blocks in (100, 2000):
        run = simulate(
            requests(20.0),
            EngineSetup(
                step_times=STEPS,
                num_blocks=blocks,
                policy="vllm-v1",
                limits=SchedulerLimits(max_model_len=1500),
            ),
            **on(simulate, engine_loop),
        )
        parts = time_parts(run.records)
        np.testing.assert_array_equal(total(parts), run.records.finish_ps - run.records.arrival_ps)
        for part in PARTS:
            assert (parts.part_of(part) >= 0).all(), part
        assert (parts.preempted.sum() > 0) == (run.preemptions > 0)
        assert (parts.preempted[run.records.preemptions == 0] == 0).all()


def test_the_way_from_the_client_is_no_queue() -> None:
    server = FrontendTimes(request_latency_s=0.002, response_latency_s=0.0015)
    workload = replace(requests(5.0), client_latency_s=0.01)
    setup = EngineSetup(step_times=STEPS, num_blocks=2000, policy="vllm-v1")
    run = simulate(workload, setup, frontend=server)
    parts = time_parts(run.records, api_server=server, client_latency_s=0.01)
    np.testing.assert_array_equal(total(parts), run.records.finish_ps - run.records.arrival_ps)
    means = parts.mean_ms()
    assert means is not None
    assert means["client"] == pytest.approx(10)
    assert means["api server"] == pytest.approx(3.5)
    bare = time_parts(simulate(requests(5.0), setup).records).mean_ms()
    assert bare is not None
    for part in ("queue", "prefill", "decode"):
        assert means[part] == pytest.approx(bare[part])


def test_transfers_are_told_apart() -> None:
    slow = KvLink(bytes_per_token=1e5, bytes_per_s=1e8)
    setup = EngineSetup(step_times=STEPS, num_blocks=2000, policy="vllm-v1", role="prefill")
    decode = EngineSetup(step_times=STEPS, num_blocks=2000, policy="vllm-v1", role="decode")
    run = simulate(requests(5.0), [setup, decode], link=slow)
    parts = time_parts(run.records, run.transfer_ps)
    np.testing.assert_array_equal(total(parts), run.records.finish_ps - run.records.arrival_ps)
    assert (parts.prefill > 0).all()
    means = parts.mean_ms()
    assert means is not None
    assert means["transfer"] > 50


def test_an_overloaded_run_waits_in_the_queue() -> None:
    load = {"gpu": "h100", "input_len": 500, "output_len": 50, "num_prompts": 400}
    calm, full = (
        capacity.simulate("llama-3.1-8b", **load, request_rate=rate).to_dict()["time_parts"]
        for rate in (5, math.inf)
    )
    assert full["mean_ms"]["queue"] > 5 * calm["mean_ms"]["queue"]
    assert full["slowest_mean_ms"]["queue"] > full["mean_ms"]["queue"]


@pytest.mark.parametrize("seed", range(6))
def test_parts_add_up_for_those_that_were_preempted_and_lost_with_their_replica(seed: int) -> None:
    """What a request lost by a preemption on a replica that is gone is not taken from its second life."""
    setup = EngineSetup(
        step_times=STEPS,
        num_blocks=80,
        policy="vllm-v1",
        limits=SchedulerLimits(max_model_len=1200),
    )
    run = simulate(
        requests(20.0),
        [setup] * 2,
        failures=Failures(mean_time_between_failures_s=3.0, recovery_s=0.5, seed=seed),
    )
    assert run.restarted > 0
    assert run.preemptions > 0
    done = run.records.completed
    parts = time_parts(run.records)
    np.testing.assert_array_equal(total(parts), (run.records.finish_ps - run.records.arrival_ps)[done])
    for part in PARTS:
        assert (parts.part_of(part) >= 0).all(), part


# two requests, worked by hand: blocks of 4 tokens, steps of 10 ms whatever is in them

STEP_PS = 10**10


def crowded(
    num_blocks: int, prompts: list[int], outputs: list[int], engine_loop: str, *, reserve_full_isl: bool
) -> SimulationResult:
    """Two requests at once, 5 tokens a step, and a cache that does not hold both to their ends."""
    limits = SchedulerLimits(max_num_batched_tokens=5, reserve_full_isl=reserve_full_isl)
    setup = EngineSetup(
        step_times=AffineStepTimes(0.01, 0.0),
        num_blocks=num_blocks,
        block_size=4,
        policy="vllm-v1",
        limits=limits,
        enable_prefix_caching=False,
    )
    return simulate(
        Workload(arrival_s=[0.0, 0.0], prompt_tokens=prompts, output_tokens=outputs),
        setup,
        **on(simulate, engine_loop),
    )


@pytest.mark.parametrize("engine_loop", LOOPS)
def test_a_prompt_that_loses_its_place_before_its_first_token_does_not_stall(engine_loop: str) -> None:
    """Nobody was reading yet: until the first token all is prefill, and decode holds no pause to be taken from it.

    The first request decodes in steps 2 to 9 and grows to 3 of the 4 blocks. The second has 4 tokens of a step beside
    it and loses its place in steps 3, 6 and 8; its 16 prompt tokens run through as 4, 5, 5 and 2 in steps 9 to 12.
    """
    run = crowded(4, [4, 16], [9, 1], engine_loop, reserve_full_isl=False)
    parts = time_parts(run.records)
    assert run.records.preemptions.tolist() == [0, 3]
    assert parts.queue.tolist() == [0, 0]
    assert parts.prefill.tolist() == [STEP_PS, 12 * STEP_PS]
    assert parts.preempted.tolist() == [0, 0]
    assert parts.decode.tolist() == [8 * STEP_PS, 0]


@pytest.mark.parametrize("engine_loop", LOOPS)
def test_a_request_that_loses_its_place_after_its_first_token_stalls_until_it_runs_again(
    engine_loop: str,
) -> None:
    """In step 4 the first needs a second block: the second, with 3 of its 4 tokens out, gives back its two.

    Its 6 tokens need both again, so it waits for the first to end in step 7, and runs as 5 and 1 in steps 8 and 9.
    """
    run = crowded(3, [2, 3], [7, 4], engine_loop, reserve_full_isl=True)
    parts = time_parts(run.records)
    assert run.records.preemptions.tolist() == [0, 1]
    assert parts.prefill.tolist() == [STEP_PS, STEP_PS]
    assert parts.preempted.tolist() == [0, 4 * STEP_PS]
    assert parts.decode.tolist() == [6 * STEP_PS, 4 * STEP_PS]
