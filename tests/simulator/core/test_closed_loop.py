"""A closed loop whose next requests the compiled engine sends itself has the ledger of the Python engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import capacity
from capacity.simulator.core.fleet import Fleet
from capacity.workload import random_requests

COLUMNS = ("arrival_ps", "first_scheduled_ps", "first_token_ps", "finish_ps", "preemptions", "cached_tokens")
SMALL: dict[str, Any] = {"num_gpu_blocks_override": 200, "max_model_len": 2900}  # requests are preempted
POOLS: list[tuple[str, dict[str, Any]]] = [
    *((engine, {}) for engine in ("vllm", "vllm@0.6", "sglang", "tensorrt-llm", "tgi", "llama.cpp")),
    *((engine, SMALL) for engine in ("vllm", "vllm@0.6")),
    ("vllm", {"client_latency_s": 0.2, "max_num_seqs": 4, "pipeline_parallel_size": 2}),
]


def is_equal_in_both_loops(monkeypatch: pytest.MonkeyPatch, **options: Any) -> bool:
    """Compare the two engine loops, and return whether the compiled engine sent the requests."""
    sent: list[int] = []
    feed = Fleet.feed_loop
    monkeypatch.setattr(Fleet, "feed_loop", lambda fleet, *given: sent.append(1) or feed(fleet, *given))  # type: ignore[func-returns-value]
    core, events = (
        capacity.simulate("llama-3.1-8b", gpu="h100", engine_loop=loop, **options).run
        for loop in ("core", "events")
    )
    assert (core.status, core.rejected) == (events.status, events.rejected)
    for column in COLUMNS:
        assert np.array_equal(getattr(core.records, column), getattr(events.records, column)), column
    return bool(sent)


@pytest.mark.parametrize(("engine", "pool"), POOLS)
def test_loop_of_one_engine_is_sent_by_it(
    engine: str, pool: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = {"concurrency": 17, "num_prompts": 80, "input_len": 300, "output_len": 40}
    assert is_equal_in_both_loops(monkeypatch, engine=engine, **loop, **pool)


def test_loop_with_rejected_requests_or_a_router_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = {"concurrency": 5, "num_prompts": 30, "input_len": 300, "output_len": 10}
    assert not is_equal_in_both_loops(monkeypatch, replicas=2, **loop)
    requests = random_requests(num_requests=20, input_len=300, output_len=10, request_rate_per_s=1.0, seed=0)
    prompts = np.where(np.arange(20) % 3, requests.prompt_tokens, 5000)
    requests = replace(requests, prompt_tokens=prompts).in_closed_loop(4)
    assert not is_equal_in_both_loops(monkeypatch, workload=requests, max_model_len=4096)
