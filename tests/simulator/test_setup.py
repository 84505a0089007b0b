"""An engine's setup: each cache and each scheduler is made in one place, and what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from capacity.base.errors import InvalidInput, UnknownName
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content_pool import ContentPool
from capacity.simulator.kv_cache.contiguous_pool import ContiguousPool
from capacity.simulator.kv_cache.pool import JointPool
from capacity.simulator.schedulers import SCHEDULERS, Lockstep, schedulers_with_ability
from capacity.simulator.schedulers.static import StaticBatching
from capacity.simulator.setup import make_pool, make_scheduler
from capacity.simulator.transfer import LoadBlockPool
from capacity.step import AffineStepTimes
from capacity.workload import Workload

PLAIN = EngineSetup(step_times=AffineStepTimes(0.01, 1e-4), num_blocks=30)


@pytest.mark.parametrize(
    ("setup", "pool"),
    [
        (PLAIN, BlockPool),
        (replace(PLAIN, kv_windows=(None, 64)), BlockPool),
        (replace(PLAIN, kv_contiguous_tokens=64), ContiguousPool),
        (replace(PLAIN, policy="vllm-v0"), ContentPool),
        (replace(PLAIN, role="decode"), LoadBlockPool),
        (replace(PLAIN, role="decode", kv_windows=(64,)), LoadBlockPool),
        (replace(PLAIN, data_parallel_size=3), JointPool),
    ],
)
def test_the_pool_follows_from_the_setup(setup: EngineSetup, pool: type) -> None:
    assert type(make_pool(setup)) is pool


def test_ranks_have_a_pool_and_a_scheduler_each() -> None:
    setup = replace(PLAIN, policy="sglang", data_parallel_size=3, data_parallel_balance="round-robin")
    pool = make_pool(setup)
    assert (pool.num_blocks, pool.free_blocks) == (90, 90)
    policy = make_scheduler(setup, pool)
    assert isinstance(policy, Lockstep)
    assert len(policy.ranks) == 3
    assert policy.rank_requests == (0, 0, 0)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_is_made_by_its_name_alone(name: str) -> None:
    setup = replace(PLAIN, policy=name)
    policy = make_scheduler(setup, make_pool(setup))
    assert (policy.unfinished, policy.num_running, policy.num_waiting, policy.tier_use) == (0, 0, 0, ())
    assert policy.aborts or name in ("vllm-v0", "static", "slots")


def test_abilities_name_their_schedulers() -> None:
    """Of the eight that are here; another one adds itself."""
    eight = ["vllm-v1", "vllm-v1-async", "vllm-v0", "static", "slots", "sglang", "tensorrt-llm", "tgi"]

    def able(ability: str) -> list[str]:
        return [name for name in schedulers_with_ability(ability) if name in eight]

    assert able("drafts") == ["vllm-v1", "vllm-v1-async", "vllm-v0", "sglang", "tensorrt-llm", "tgi"]
    assert able("offloads") == ["vllm-v1", "vllm-v1-async"]
    assert able("swaps") == ["vllm-v0"]
    assert able("hands_over") == ["vllm-v1", "vllm-v1-async", "sglang", "tensorrt-llm", "tgi"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 1 block"):
        make_pool(replace(PLAIN, num_blocks=0))
    with pytest.raises(UnknownName, match="nonesuch"):
        make_pool(replace(PLAIN, policy="nonesuch"))


def test_bad_sizes_are_refused() -> None:
    workload = Workload(arrival_s=np.zeros(1), prompt_tokens=np.array([1]), output_tokens=np.array([1]))
    with pytest.raises(InvalidInput, match="KV cache"):
        simulate(workload, EngineSetup(step_times=AffineStepTimes(1, 1), num_blocks=0))
    with pytest.raises(InvalidInput, match="vllm-v1"):
        simulate(workload, EngineSetup(step_times=AffineStepTimes(1, 1), num_blocks=1, policy="vllm-v9"))


class Twin(StaticBatching):
    """A policy of a user's own, that does what one of ours does."""


def test_a_policy_may_be_a_class() -> None:
    """It runs on the Python engines, and is called by its name where it cannot do what is asked."""
    workload = Workload(arrival_s=np.arange(5.0) / 50, prompt_tokens=[20] * 5, output_tokens=[6] * 5)
    own = replace(PLAIN, policy=Twin, policy_options={"batching_window_s": 0.05})
    runs = [simulate(workload, setup) for setup in (own, replace(own, policy="static"))]
    assert runs[0].to_dict() == runs[1].to_dict()
    with pytest.raises(InvalidInput, match="Twin"):
        simulate(workload, own, engine_loop="core")
    with pytest.raises(InvalidInput, match="the Twin scheduler"):
        simulate(workload, own, timeout_s=1.0)
    with pytest.raises(InvalidInput, match="the Twin scheduler cannot transfer KV"):
        simulate(workload, [replace(own, role="prefill"), replace(own, role="decode")])
