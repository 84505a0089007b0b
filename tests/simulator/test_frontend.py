"""What lies around the engine: latencies each way, the output queue, and nothing at all when they are zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_runs import run_engine

from capacity.simulator import FrontendTimes, SimulationResult
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
