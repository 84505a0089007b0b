"""Which engines run: those that were asked for, else the compiled where they do all that is asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from capacity.base.errors import InvalidInput, UnknownName
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.core import library
from capacity.simulator.schedulers import SCHEDULERS
from capacity.simulator.schedulers.vllm_v1 import VllmV1
from capacity.simulator.timeline import Timeline
from capacity.step import AffineStepTimes
from capacity.workload import Workload

SETUP = EngineSetup(step_times=AffineStepTimes(0.01, 1e-5), num_blocks=64, policy="vllm-v1")
WORKLOAD = Workload(arrival_s=np.arange(20) / 50, prompt_tokens=np.full(20, 40), output_tokens=np.full(20, 9))
needs_core = pytest.mark.skipif(library.load() is None, reason="the core is not compiled")


class Mine(VllmV1):
    """A policy of a user's own."""


def same(first: SimulationResult, second: SimulationResult) -> bool:
    columns = ("first_scheduled_ps", "first_token_ps", "finish_ps", "output_tokens")
    return all(
        (getattr(first.records, name) == getattr(second.records, name)).all() for name in columns
    ) and (first.to_dict() == second.to_dict())


@needs_core
def test_both_do_the_same_and_each_run_says_which_it_was() -> None:
    compiled, readable = (simulate(WORKLOAD, SETUP, engine_loop=loop) for loop in ("core", "events"))
    assert same(compiled, readable)
    assert compiled.readable_because is None
    assert simulate(WORKLOAD, SETUP).readable_because is None
    assert readable.readable_because == 'engine_loop is "events"'


@needs_core
def test_a_policy_of_ones_own_runs_in_the_readable_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULERS, "mine", replace(SCHEDULERS["vllm-v1"], make=Mine))
    setup = replace(SETUP, policy="mine")
    mine = simulate(WORKLOAD, setup)
    assert mine.readable_because == "the scheduler mine is not supported"
    assert same(mine, simulate(WORKLOAD, SETUP))
    with pytest.raises(
        InvalidInput, match=r"cannot run this: the scheduler mine .*; use --engine-loop events"
    ):
        simulate(WORKLOAD, setup, engine_loop="core")


@needs_core
def test_who_observes_each_step_sees_the_readable_engines() -> None:
    assert simulate(WORKLOAD, SETUP, observer=Timeline()).readable_because == "an observer is set"
    with pytest.raises(InvalidInput, match="an observer is set"):
        simulate(WORKLOAD, SETUP, observer=Timeline(), engine_loop="core")


@pytest.mark.parametrize("loop", ["auto", "events"])
def test_samples_end_with_the_run(loop: str) -> None:
    run = simulate(WORKLOAD, SETUP, sample_interval_s=0.1, engine_loop=loop)
    assert [sample.time_s for sample in run.series] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_without_the_compiled_engines_the_readable_ones_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", lambda: None)
    assert simulate(WORKLOAD, SETUP).readable_because == "the compiled engines are not built on this machine"
    with pytest.raises(InvalidInput, match="are not built on this machine"):
        simulate(WORKLOAD, SETUP, engine_loop="core")


def test_a_mistyped_loop_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"no engine loop 'event'. Did you mean 'events'"):
        simulate(WORKLOAD, SETUP, engine_loop="event")
