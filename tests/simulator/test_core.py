"""The core as Python sees it: it knows every policy that there is, and every option of it."""

from __future__ import annotations

import ctypes
import inspect
from functools import partial

import numpy as np
import pytest

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.core import binding, library
from capacity.simulator.kv_cache.offload import Offload, Tier
from capacity.simulator.schedulers import SCHEDULERS
from capacity.simulator.schedulers.adapters import AdapterV1
from capacity.simulator.schedulers.offloading import OffloadingV1
from capacity.simulator.schedulers.vllm_v1 import VllmV1
from capacity.step import AffineStepTimes
from capacity.workload import Workload

SETUP = EngineSetup(step_times=AffineStepTimes(0.01, 0.0), num_blocks=64)


def own_keywords(name: str) -> set[str]:
    """Options of a policy: keywords of its class, less limits and drafts, which every setup has a place for."""
    make = SCHEDULERS[name].make
    plain = (
        make.args[0] if isinstance(make, partial) and make.args else make
    )  # with adapters it is Python's alone
    kinds = [VllmV1, OffloadingV1, AdapterV1] if name.startswith("vllm-v1") else [plain]
    found = {parameter for kind in kinds for parameter in inspect.signature(kind).parameters}
    ours = {"asynchronous"} if name.startswith("vllm-v1") else set()  # by its name
    return found - {"limits", "pool", "speculation", "options"} - ours


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_core_knows_every_policy_and_every_option_of_it(name: str) -> None:
    assert binding.OPTIONS[name] == own_keywords(name)
    assert name in binding.POLICIES


def test_what_it_does_not_know_it_does_not_cover() -> None:
    assert binding.covers(SETUP)
    for unknown in (
        {"policy": "mine"},
        {"policy_options": {"mine": 1}},
        {"data_parallel_size": 2, "data_parallel_balance": "mine"},
    ):
        setup = EngineSetup(step_times=SETUP.step_times, num_blocks=64, **unknown)  # type: ignore[arg-type]
        assert not binding.covers(setup)


@pytest.mark.skipif(library.load() is None, reason="the core is not compiled")
def test_structures_are_as_large_as_the_cores() -> None:
    core = library.require()
    for which, structure in enumerate(binding.STRUCTURES):
        assert core.core_size(ctypes.c_int64(which)) == ctypes.sizeof(structure), structure


def test_both_engines_refuse_in_the_same_words() -> None:
    tier = Tier(name="cpu", capacity_chunks=None, bytes_per_s=1e9)
    setup = EngineSetup(
        step_times=SETUP.step_times,
        num_blocks=64,
        enable_prefix_caching=False,
        policy_options={"offload": Offload(block_bytes=1e6, tiers=(tier,))},
    )
    one = Workload(arrival_s=np.zeros(1), prompt_tokens=np.ones(1, int), output_tokens=np.ones(1, int))
    words = []
    for loop in ("auto", "events"):
        with pytest.raises(InvalidInput) as refused:
            simulate(one, setup, engine_loop=loop)
        words.append(str(refused.value))
    assert words[0] == words[1]
    assert "needs --enable-prefix-caching" in words[0]
