"""What bounds a step, and how latency answers to each resource: shares that add up, responses in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from capacity.answers.attribution import CHANGE, HOST_FIELDS, Shares, largest_bound, responses, shares
from capacity.deployment import Pool
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import decode_shape, prefill_shape
from capacity.step.closed_form import PhaseTimes, batch_times

POOL = resolve("llama-3.1-8b", Pool(gpu="h100"))


def timed_by(ttft_s: Callable[[ResolvedPool, int], float]) -> Callable[[ResolvedPool, int], PhaseTimes]:
    """A pool whose TTFT is a formula, whose throughput is the requests over it, and which makes one token."""
    plain = batch_times(POOL.step_model, POOL.limits, 1, input_len=100, output_len=1)

    def timed(resolved: ResolvedPool, requests: int) -> PhaseTimes:
        seconds = ttft_s(resolved, requests)
        return replace(plain, ttft_s=seconds, tpot_s=None, requests_per_s=requests / seconds)

    return timed


def test_the_shares_of_a_step_add_up_to_it() -> None:
    for shape in (decode_shape(1, 1000), decode_shape(256, 1000), prefill_shape(4, 1000)):
        parts = shares(POOL.step_model.step_cost(shape))
        assert (
            parts.compute + parts.memory + parts.communication + parts.launch + parts.host == pytest.approx(1)
        )
    assert largest_bound(shares(POOL.step_model.step_cost(decode_shape(1, 1000)))) == "memory"
    assert largest_bound(shares(POOL.step_model.step_cost(prefill_shape(4, 4000)))) == "compute"
    assert (
        largest_bound(Shares(compute=0.2, memory=0.1, communication=0.6, launch=0.1, host=0.0))
        == "communication"
    )


def test_what_hangs_on_one_resource_alone_answers_to_it_alone() -> None:
    """Seconds of C / bandwidth fall to 1/1.1 with 10 % more of it; nothing else moves them, cost follows."""
    by_name = {
        response.resource: response
        for response in responses(POOL, 10, timed_by(lambda pool, _: 1e9 / pool.profile.hbm_bytes_per_s))
    }
    memory = by_name.pop("HBM bandwidth")
    assert (memory.change, memory.tpot) == (CHANGE, None)
    assert memory.ttft == memory.cost_per_token == pytest.approx(1 / 1.1 - 1)
    more = by_name.pop("requests at a time")
    assert (more.change, more.ttft) == (pytest.approx(0.1), 0)
    assert more.cost_per_token == pytest.approx(10 / 11 - 1)  # 11 requests in the time of 10
    assert {response.ttft for response in by_name.values()} == {0.0}


def test_less_host_time_is_ten_percent_less_of_the_engines() -> None:
    host_s = timed_by(lambda pool, _: sum(getattr(pool.engine, field) for field in HOST_FIELDS))
    (host,) = [response for response in responses(POOL, 1, host_s) if response.resource == "host time"]
    assert host.change == -CHANGE
    assert host.ttft == pytest.approx(-CHANGE)
