"""The core as Python sees it: it knows every policy that there is, and every option of it."""

from __future__ import annotations

import ctypes
import inspect
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.core import binding, build, library
from capacity.simulator.core.interface import HEADERS, structs
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
    assert set(binding.POLICY_OPTIONS[name]) == own_keywords(name)
    assert name in binding.POLICIES


def test_what_it_does_not_know_it_does_not_cover() -> None:
    assert binding.unsupported_reason(SETUP) is None
    for unknown, reason in (
        ({"policy": "mine"}, "the scheduler mine"),
        ({"policy_options": {"mine": 1}}, "the option mine of"),
        ({"data_parallel_size": 2, "data_parallel_balance": "mine"}, "the balancing method mine"),
    ):
        setup = EngineSetup(step_times=SETUP.step_times, num_blocks=64, **unknown)  # type: ignore[arg-type]
        assert str(binding.unsupported_reason(setup)).startswith(reason)


@pytest.mark.skipif(build.working_compiler() is None, reason="no C compiler")
def test_structures_are_laid_out_as_the_compiler_does(tmp_path: Path) -> None:
    kinds = {name: kind for name, kind in vars(structs).items() if kind._fields_}
    names = [(kind, name) for kind, structure in kinds.items() for name, _ in structure._fields_]
    entries = [f"sizeof({kind})" for kind in kinds] + [f"offsetof({kind}, {name})" for kind, name in names]
    source = tmp_path / "layout.c"
    headers = "".join(f'#include "{header}"\n' for header in HEADERS)
    source.write_text(f"#include <stddef.h>\n{headers}const size_t layout[] = {{{', '.join(entries)}}};\n")
    build.compile_library([source], tmp_path / build.library_name(), [*build.FLAGS, f"-I{library.FOLDER}"])
    compiled = (ctypes.c_size_t * len(entries)).in_dll(
        ctypes.CDLL(str(tmp_path / build.library_name())), "layout"
    )
    own = [ctypes.sizeof(kind) for kind in kinds.values()]
    own += [getattr(kinds[kind], name).offset for kind, name in names]
    assert dict(zip(entries, compiled, strict=True)) == dict(zip(entries, own, strict=True))


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
    assert "requires the prefix cache" in words[0]
