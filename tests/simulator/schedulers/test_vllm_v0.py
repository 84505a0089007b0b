"""vLLM V0's scheduler: a head that never fits is dropped; swapped KV comes back."""

from __future__ import annotations

import pytest
from engine_runs import differences
from offloaded_runs import run
from scenario_lines import requests, scenario

from capacity.simulator import SimulationResult
from capacity.simulator.scenarios import schedule_scenario
from capacity.simulator.schedulers import Speculation
from capacity.workload import FixedLengths, SteadyArrivals, synthetic


def test_never_fitting_head_starves_v1_and_is_dropped_by_v0() -> None:
    blocked = scenario(
        num_blocks=6, requests=requests(("a", 0, 40, 2), ("b", 0, 4, 2)), max_num_batched_tokens=64
    )
    assert schedule_scenario(blocked, "vllm-v1")["steps"] == []
    v0 = schedule_scenario(blocked, "vllm-v0")
    assert v0["status"] == "ok"
    assert v0["steps"][0][4] == ["a"]


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


def drafted(accept: tuple[int, ...] | None, num_blocks: int = 1000, prompt: int = 20) -> SimulationResult:
    """Six requests of 20 tokens and 13 more, with two drafts a step, of which so many in turn are accepted."""
    workload = synthetic(
        num_requests=6, arrivals=SteadyArrivals(1000.0), prompt=FixedLengths(prompt), output=FixedLengths(13)
    )
    speculation = None if accept is None else Speculation(2, accept, lookahead_slots=2)
    return run(workload, num_blocks, policy="vllm-v0", enable_prefix_caching=False, speculation=speculation)


@pytest.mark.parametrize(("accept", "decodes"), [((0,), 12), ((2,), 4), ((1,), 6), ((0, 2), 6)])
def test_accepted_drafts_are_tokens_of_one_step(accept: tuple[int, ...], decodes: int) -> None:
    """12 tokens after the first, 1 to 3 a step; (0, 2) are 4 in two steps."""
    plain, result = drafted(None), drafted(accept)
    assert result.records.output_tokens.tolist() == plain.records.output_tokens.tolist() == [13] * 6
    prefills = plain.steps - 12
    assert result.steps == prefills + decodes
    assert result.preemptions == 0


@pytest.mark.parametrize("accept", [(0,), (2,), (0, 2, 1)])
def test_drafts_under_pressure_lose_nothing(accept: tuple[int, ...]) -> None:
    """Seven blocks of 16 for six requests that grow from one to two: some are preempted, and all come to their end."""
    tight = drafted(accept, 7, prompt=14)
    assert tight.preemptions > 0
    assert tight.records.completed.all()
    assert tight.records.output_tokens.tolist() == [13] * 6
