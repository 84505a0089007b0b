"""vLLM V1 with LoRA adapters: who is passed over, and what steps wait for, worked out by hand; both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_runs import run_engine

from capacity.base.errors import InvalidInput
from capacity.simulator import SimulationResult
from capacity.simulator.core import library
from capacity.simulator.kv_cache.offload import Offload, Tier
from capacity.simulator.schedulers import AdapterSlots, SchedulerLimits
from capacity.simulator.schedulers.adapters import LoadedAdapters
from capacity.step import AffineStepTimes
from capacity.workload import PromptContent, Workload

MS = 10**9  # picoseconds
LOOPS = ("events", "core") if library.load() is not None else ("events",)
pytestmark = pytest.mark.parametrize("loop", LOOPS)


def run(workload: Workload, slots: AdapterSlots | None, loop: str, **more: Any) -> SimulationResult:
    """One synchronous engine whose every step takes 10 ms."""
    return run_engine(
        workload,
        step_times=AffineStepTimes(0.010, 0.0),
        num_blocks=more.pop("num_blocks", 1000),
        policy="vllm-v1",
        policy_options={} if slots is None else {"adapters": slots},
        limits=SchedulerLimits(max_num_batched_tokens=2048, max_num_seqs=64),
        engine_loop=loop,
        **more,
    )


def requests(adapters: list[int], arrival_s: list[float] | None = None, **more: Any) -> Workload:
    """Of 10 tokens and 2 to come: two steps each."""
    count = len(adapters)
    return Workload(
        arrival_s=np.zeros(count) if arrival_s is None else np.array(arrival_s),
        prompt_tokens=np.full(count, more.pop("prompt_tokens", 10)),
        output_tokens=np.full(count, 2),
        adapter=np.array(adapters),
        **more,
    )


def scheduled_ms(result: SimulationResult) -> list[float]:
    assert result.status == "complete"
    return (result.records.first_scheduled_ps / MS).tolist()


def finished_ms(result: SimulationResult) -> list[float]:
    return (result.records.finish_ps / MS).tolist()


def test_whose_adapter_is_one_too_many_is_passed_over_and_those_behind_it_run(loop: str) -> None:
    """One slot, 3 ms a load. Step 1 (0 to 13 ms): adapter 1, the base model and adapter 1 again; step 2 to 23 ms.

    Then adapter 2, 3 ms later; the fifth, of adapter 1, comes at 30 ms and waits for two steps of adapter 2.
    """
    workload = requests([1, 2, 0, 1, 1], [0, 0, 0, 0, 0.030])
    result = run(workload, AdapterSlots(max_loras=1, load_ps=3 * MS), loop)
    assert scheduled_ms(result) == [0, 23, 0, 0, 46]
    assert finished_ms(result) == [23, 46, 23, 23, 69]


def test_with_a_slot_for_each_all_run_at_once_and_an_adapter_stays(loop: str) -> None:
    """Two loads, then two steps: to 26 ms; at 30 ms adapter 1 is still there."""
    workload = requests([1, 2, 0, 1, 1], [0, 0, 0, 0, 0.030])
    result = run(workload, AdapterSlots(max_loras=2, load_ps=3 * MS), loop)
    assert scheduled_ms(result) == [0, 0, 0, 0, 30]
    assert finished_ms(result) == [26, 26, 26, 26, 50]


def test_who_is_passed_over_keeps_the_place(loop: str) -> None:
    """Adapters 2, 3 and 2 wait for adapter 1: the first of them decides whose turn it is, and takes the third along."""
    result = run(requests([1, 2, 3, 2]), AdapterSlots(max_loras=1, load_ps=3 * MS), loop)
    assert scheduled_ms(result) == [0, 23, 46, 23]


def test_host_memory_that_is_full_drops_what_was_used_longest_ago(loop: str) -> None:
    """One slot, two in host memory, 5 ms to read: 1 and 2 are read and loaded, 1 is loaded again, 3 drives out 2."""
    slots = AdapterSlots(max_loras=1, max_cpu_loras=2, load_ps=3 * MS, read_ps=5 * MS)
    workload = requests([1, 2, 1, 3, 2], [0, 0.1, 0.2, 0.3, 0.4])
    result = run(workload, slots, loop)
    assert (result.records.first_token_ps / MS - workload.arrival_s * 1e3).round(6).tolist() == [
        *[18, 18, 13, 18, 18]
    ]
    kept = LoadedAdapters(slots)
    assert [kept.load_adapter(adapter) // MS for adapter in (1, 1, 2, 1, 3, 2)] == [8, 0, 8, 3, 8, 8]


def test_the_base_model_takes_no_slot_and_no_time(loop: str) -> None:
    slots = AdapterSlots(max_loras=1, load_ps=3 * MS)
    plain = run(requests([0] * 4), None, loop)
    assert finished_ms(run(requests([0] * 4), slots, loop)) == finished_ms(plain) == [20] * 4


def test_adapters_share_no_prefix(loop: str) -> None:
    """The same 32 tokens, one after another: the third finds what the first left, the second nothing."""
    content = PromptContent.from_segments([[(0, 32), (1 + i, 1)] for i in range(3)])
    workload = requests([1, 2, 1], [0.0, 0.1, 0.2], prompt_tokens=33, content=content)
    result = run(workload, AdapterSlots(max_loras=2), loop)
    assert result.records.cached_tokens.tolist() == [0, 0, 32]


def test_what_cannot_be_is_refused(loop: str) -> None:
    with pytest.raises(InvalidInput, match="add --max-loras"):
        run(requests([1]), None, loop)
    for wrong in ({"max_loras": 0}, {"max_loras": 2, "max_cpu_loras": 1}, {"max_loras": 1, "load_ps": -1}):
        with pytest.raises(InvalidInput):
            AdapterSlots(**wrong)
    tiers = (Tier(name="cpu", capacity_chunks=None, bytes_per_s=1e9),)
    both = {"adapters": AdapterSlots(max_loras=1), "offload": Offload(tiers=tiers, block_bytes=1.0)}
    with pytest.raises(InvalidInput, match="leave out one of them"):
        run_engine(
            requests([1]),
            step_times=AffineStepTimes(0.01, 0.0),
            num_blocks=10,
            policy="vllm-v1",
            policy_options=both,
            engine_loop=loop,
        )
