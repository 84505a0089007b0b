"""LoRA adapters under SGLang, TensorRT-LLM, vLLM V0 and TGI: who is passed over while too many run, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_runs import run_engine

from capacity.base.errors import InvalidInput
from capacity.simulator import SimulationResult
from capacity.simulator.schedulers import AdapterSlots, SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import Workload

MS = 10**9  # picoseconds
SYNCHRONOUS: dict[str, dict[str, Any]] = {
    "sglang": {"asynchronous": False},
    "tensorrt-llm": {"asynchronous": False},
    "vllm-v0": {},
}


def run(policy: str, workload: Workload, slots: AdapterSlots | None, **options: Any) -> SimulationResult:
    """One engine whose every step takes 10 ms."""
    given = SYNCHRONOUS.get(policy, {}) | options | ({} if slots is None else {"adapters": slots})
    return run_engine(
        workload,
        step_times=AffineStepTimes(0.010, 0.0),
        num_blocks=1000,
        policy=policy,
        policy_options=given,
        limits=SchedulerLimits(max_num_batched_tokens=2048, max_num_seqs=64),
        engine_loop="events",
    )


def requests(adapters: list[int], arrival_s: list[float] | None = None, outputs: int = 2) -> Workload:
    """Of 10 tokens and 2 to come: a prefill and a decode step each."""
    count = len(adapters)
    return Workload(
        arrival_s=np.zeros(count) if arrival_s is None else np.array(arrival_s),
        prompt_tokens=np.full(count, 10),
        output_tokens=np.full(count, outputs),
        adapter=np.array(adapters),
    )


def finished_ms(result: SimulationResult) -> list[float]:
    assert result.status == "complete"
    return (result.records.finish_ps / MS).tolist()


@pytest.mark.parametrize("policy", SYNCHRONOUS)
def test_whose_adapter_is_one_too_many_waits_for_all_that_run_with_another(policy: str) -> None:
    """One slot, 3 ms a load. Adapter 1, the base model and adapter 1 again: 13 and 23 ms.

    Then adapter 2, 3 ms later; the fifth, of adapter 1, comes at 30 ms and waits for two steps of adapter 2.
    """
    workload = requests([1, 2, 0, 1, 1], [0, 0, 0, 0, 0.030])
    result = run(policy, workload, AdapterSlots(max_loras=1, load_ps=3 * MS))
    assert finished_ms(result) == [23, 46, 23, 23, 69]


@pytest.mark.parametrize("policy", SYNCHRONOUS)
def test_with_a_slot_for_each_all_run_at_once_and_an_adapter_stays(policy: str) -> None:
    workload = requests([1, 2, 0, 1, 1], [0, 0, 0, 0, 0.030])
    result = run(policy, workload, AdapterSlots(max_loras=2, load_ps=3 * MS))
    assert finished_ms(result) == [26, 26, 26, 26, 50]


@pytest.mark.parametrize("policy", SYNCHRONOUS)
def test_who_is_passed_over_keeps_the_place(policy: str) -> None:
    """Adapters 2, 3 and 2 wait for adapter 1: the first of them decides whose turn it is, and takes the third along."""
    result = run(policy, requests([1, 2, 3, 2]), AdapterSlots(max_loras=1))
    assert finished_ms(result) == [20, 40, 60, 40]


@pytest.mark.parametrize("policy", [*SYNCHRONOUS, "tgi"])
def test_slots_for_all_that_take_no_time_change_nothing(policy: str) -> None:
    rng = np.random.default_rng(3)
    arrivals = np.sort(rng.uniform(0, 0.5, 40)).tolist()
    workload = requests(rng.integers(0, 5, 40).tolist(), arrivals, outputs=7)
    plain = requests([0] * 40, arrivals, outputs=7)
    adapted = run(policy, workload, AdapterSlots(max_loras=4))
    assert finished_ms(adapted) == finished_ms(run(policy, plain, None))


def test_tgi_has_all_its_adapters_or_none() -> None:
    with pytest.raises(InvalidInput, match="TGI loads all adapters at its start"):
        run("tgi", requests([1, 3]), AdapterSlots(max_loras=2))


def test_a_queue_in_another_order_is_refused() -> None:
    with pytest.raises(InvalidInput, match="first come first served"):
        run("sglang", requests([1]), AdapterSlots(max_loras=1), order="lpm")
