"""What lies around the engine: latencies each way, the output queue, and nothing at all when they are zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core_runs import needs_core
from engine_runs import run_engine

from capacity.simulator import EngineSetup, FrontendTimes, SimulationResult, simulate
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import PS_PER_S, AffineStepTimes
from capacity.workload import Workload, random_requests

STEP_S = 0.010


def run(workload: Workload, *, frontend: FrontendTimes | None = None, **more: Any) -> SimulationResult:
    """One engine whose every step takes 10 ms."""
    return run_engine(
        workload,
        step_times=AffineStepTimes(STEP_S, 0.0),
        num_blocks=10_000,
        policy=more.pop("policy", "vllm-v1"),
        limits=SchedulerLimits(max_num_batched_tokens=2048, max_num_seqs=64),
        frontend=frontend,
        **more,
    )


def closed_loop(
    concurrency: int | None = 4, *, num_requests: int = 40, output_len: int = 20, **more: Any
) -> Workload:
    return random_requests(
        num_requests=num_requests,
        input_len=100,
        output_len=output_len,
        request_rate_per_s=float("inf"),
        burstiness=1.0,
        concurrency=concurrency,
        seed=1,
        **more,
    )


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-async", "sglang", "tensorrt-llm", "tgi"])
@pytest.mark.parametrize("concurrency", [None, 4])
def test_all_zero_changes_no_bit(policy: str, concurrency: int | None) -> None:
    workload = closed_loop(concurrency, range_ratio=0.5)
    plain = run(workload, policy=policy)
    around = run(workload, policy=policy, frontend=FrontendTimes())
    assert plain.to_dict() == around.to_dict()
    assert np.array_equal(plain.records.finish_ps, around.records.finish_ps)


def test_one_request_takes_the_way_there_and_back() -> None:
    """30 ms there, 20 ms back: the first token after 30 + 10 + 20 ms, the last 19 steps later."""
    times = FrontendTimes(request_latency_s=0.030, response_latency_s=0.020)
    record = run(closed_loop(1, num_requests=1), frontend=times).records[0]
    assert record.arrival_s == 0.0
    assert record.first_scheduled_s == pytest.approx(0.030)
    assert record.ttft_s == pytest.approx(0.060)
    assert record.e2e_s == pytest.approx(0.060 + 19 * STEP_S)


def test_a_closed_loop_sends_on_completion_at_the_client() -> None:
    times = FrontendTimes(request_latency_s=0.030, response_latency_s=0.020)
    first, second = run(closed_loop(1, num_requests=2), frontend=times).records[:2]
    assert second.arrival_s == first.finish_s
    assert second.first_scheduled_s == pytest.approx(first.finish_s + 0.030)  # type: ignore[operator]


def test_the_output_queue_serves_messages_in_series() -> None:
    """Four requests in one step: their tokens leave 1, 2, 3 and 4 ms after it."""
    result = run(closed_loop(4, num_requests=4), frontend=FrontendTimes(output_token_s=0.001))
    ttft = [record.ttft_s for record in result.records]
    assert ttft == pytest.approx([STEP_S + 0.001 * place for place in (1, 2, 3, 4)])
    assert result.records[3].tpot_s == pytest.approx(STEP_S)


def test_a_saturated_queue_sets_the_pace() -> None:
    """20 requests x 1 ms a message exceed the 10 ms step: a token takes 20 ms at the client."""
    result = run(
        closed_loop(None, num_requests=20, output_len=200), frontend=FrontendTimes(output_token_s=0.001)
    )
    assert result.summary.to_dict()["mean_tpot_ms"] == pytest.approx(20.0, rel=0.01)


def test_stream_interval_lightens_the_queue_and_keeps_first_and_last_token() -> None:
    times = FrontendTimes(output_token_s=0.001, stream_interval=10)
    result = run(closed_loop(None, num_requests=20, output_len=195), frontend=times)
    plain = run(closed_loop(None, num_requests=20, output_len=195))
    assert result.summary.to_dict()["mean_tpot_ms"] == pytest.approx(STEP_S * 1e3, rel=0.02)
    delays = (result.records.finish_ps - plain.records.finish_ps) / PS_PER_S
    assert delays.min() > 0
    assert delays.max() <= 0.0201


def test_requests_are_conserved_behind_latencies_and_a_queue() -> None:
    times = FrontendTimes(
        request_latency_s=0.01, response_latency_s=0.01, output_token_s=2e-4, stream_interval=3
    )
    workload = closed_loop(7, num_requests=90, range_ratio=0.8)
    for policy in ("vllm-v1-async", "sglang", "tensorrt-llm"):
        result = run(workload, frontend=times, policy=policy)
        records = result.records
        assert result.status == "complete"
        assert (records.output_tokens == workload.output_tokens).all()
        assert (records.arrival_ps + 10**10 <= records.first_scheduled_ps).all()
        assert (records.first_token_ps <= records.finish_ps).all()
        in_flight = np.array(
            [(records.arrival_ps <= t).sum() - (records.finish_ps <= t).sum() for t in records.arrival_ps]
        )
        assert in_flight.max() <= 7


def test_prompts_pass_through_the_front_end_one_after_another() -> None:
    """100 tokens take 1 ms each: the k-th of three reaches the engine after k ms; with two processes, two at once."""
    workload = closed_loop(None, num_requests=3)
    for processes, ready_ms in ((1, [1, 2, 3]), (2, [1, 1, 2])):
        times = FrontendTimes(input_token_s=1e-5, processes=processes)
        records = run(workload, frontend=times).records
        assert (records.arrival_ps == 0).all()
        # steps of 10 ms: the first takes whom it finds, all others wait for its end
        first = min(ready_ms)
        begun = [first if ready == first else first + 10 for ready in ready_ms]
        assert (records.first_scheduled_ps / PS_PER_S * 1e3).tolist() == pytest.approx(begun)


def test_a_prompt_waits_behind_tokens_that_go() -> None:
    """A step of 20 requests sends for 20 x 1 ms; who comes right after its end waits for that, then 1 ms of its own."""
    workload = Workload(
        arrival_s=np.array([0.0] * 20 + [0.0301]),
        prompt_tokens=np.array([100] * 21),
        output_tokens=np.array([1] * 20 + [3]),
    )
    times = FrontendTimes(input_token_s=1e-5, output_token_s=1e-3)
    records = run(workload, frontend=times).records
    # the first enters after 1 ms and runs alone till 11 ms, the others till 30 ms at the latest: each is sent in turn
    assert records.first_scheduled_ps[-1] / PS_PER_S > 0.0301 + 0.001
    alone = run(workload, frontend=FrontendTimes(input_token_s=1e-5)).records
    assert alone.first_scheduled_ps[-1] < records.first_scheduled_ps[-1]


def test_who_gives_up_in_the_front_end_never_reaches_the_engine() -> None:
    """1,000 ms of tokenizing each, patience for 1,500 ms: the second of two gives up, and the third has its turn."""
    workload = Workload(
        arrival_s=np.array([0.0, 0.0, 1.9]), prompt_tokens=np.full(3, 1000), output_tokens=np.full(3, 2)
    )
    result = run(workload, frontend=FrontendTimes(input_token_s=1e-3), timeout_s=1.5)
    assert result.timed_out == 1
    assert result.records.completed.tolist() == [True, False, True]
    assert result.summary.total_output_tokens == 4


def test_a_prompt_of_the_longest_length_is_refused_once_it_is_tokenized() -> None:
    workload = Workload(arrival_s=np.zeros(2), prompt_tokens=[4096, 100], output_tokens=[5, 5])
    result = run_engine(
        workload,
        step_times=AffineStepTimes(STEP_S, 0.0),
        num_blocks=10_000,
        policy="vllm-v1",
        limits=SchedulerLimits(max_model_len=4096),
        frontend=FrontendTimes(input_token_s=1e-6),
    )
    assert result.rejected == 1
    assert result.records.completed.tolist() == [False, True]


@pytest.mark.parametrize("replicas", [1, 3])
def test_first_tokens_take_longer_the_longer_the_answers(replicas: int) -> None:
    """Requests at random instants: in all a busy process, whose queue holds what fast steps have made."""
    firsts = []
    for output_len in (20, 60):
        workload = random_requests(
            num_requests=600 * replicas,
            input_len=100,
            output_len=output_len,
            request_rate_per_s=0.9 * replicas / (output_len * 1e-4),
            seed=2,
        )
        times = FrontendTimes(input_token_s=1e-6, output_token_s=1e-4)
        setup = EngineSetup(
            step_times=AffineStepTimes(1e-3, 0.0), num_blocks=10_000, limits=SchedulerLimits(max_num_seqs=256)
        )
        result = simulate(
            workload, [setup] * replicas, router="round-robin" if replicas > 1 else None, frontend=times
        )
        assert result.summary.ttft_ms is not None
        firsts.append(result.summary.ttft_ms.mean)
    assert firsts[1] > (1.5 if replicas == 1 else 1.2) * firsts[0]  # a router in turn smooths arrivals


@pytest.mark.parametrize("loop", ["events", pytest.param("core", marks=needs_core)])
@pytest.mark.parametrize("concurrency", [None, 1])
def test_who_is_refused_behind_the_front_end_leaves_the_replica_to_the_next(
    loop: str, concurrency: int | None
) -> None:
    """The second of three is longer than the model: its place is free again, and its client goes on."""
    workload = Workload(
        arrival_s=np.zeros(3),
        prompt_tokens=[100, 5000, 100],
        output_tokens=[5, 5, 5],
        concurrency=concurrency,
    )
    result = run_engine(
        workload,
        step_times=AffineStepTimes(STEP_S, 0.0),
        num_blocks=1000,
        policy="vllm-v1",
        limits=SchedulerLimits(max_model_len=4096),
        frontend=FrontendTimes(input_token_s=1e-6),
        router="round-robin",
        outstanding_limit=1,
        engine_loop=loop,
    )
    assert (result.status, result.rejected) == ("complete", 1)
    assert result.records.completed.tolist() == [True, False, True]
