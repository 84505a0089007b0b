"""What the policies with a prefill and a decode phase share: rows in flight, retraction, aborts."""

from __future__ import annotations

import pytest
from scheduler_bench import Bench

from capacity.simulator.schedulers import Status

PHASED = ["sglang", "tensorrt-llm", "tgi"]


@pytest.mark.parametrize("name", PHASED)
def test_an_overlapped_engine_has_one_more_step_in_flight(name: str) -> None:
    assert Bench(name, options={"asynchronous": True}).policy.steps_in_flight == 2
    assert Bench(name).policy.steps_in_flight == 1
    staged = Bench(name, options={"asynchronous": True}, pipeline_stages=3)
    assert staged.policy.steps_in_flight == 3


@pytest.mark.parametrize("name", PHASED)
def test_an_aborted_request_gives_its_blocks_back(name: str) -> None:
    bench = Bench(name)
    running, waiting = bench.add(8, 20), bench.add(4000, 4)
    bench.run()
    assert running.status == Status.RUNNING
    for r in (running, waiting):
        bench.policy.abort(r)
        assert r.status == Status.FINISHED
    assert (bench.policy.unfinished, bench.pool.free_blocks) == (0, bench.pool.num_blocks)
    assert bench.run() == []
