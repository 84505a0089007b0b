"""Whole runs of one compiled engine, and the same on the readable one: what each says of them."""

from __future__ import annotations

import functools
from array import array
from typing import Any

import numpy as np
import pytest
from engine_runs import SETUP, random_run

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.core import library
from capacity.simulator.core.fleet import LEDGER_COLUMNS, Fleet
from capacity.simulator.requests import Chains
from capacity.workload import Workload

NEVER = 1 << 62

needs_core = pytest.mark.skipif(library.load() is None, reason="the core is not compiled")


def open_loop(seed: int, **options: Any) -> tuple[Workload, dict[str, Any]]:
    """`random_run` without clients that wait for answers, and without what is said of a run besides."""
    workload, found = random_run(seed)
    found = {name: value for name, value in found.items() if name in SETUP}
    columns = {
        name: getattr(workload, name) for name in ("arrival_s", "prompt_tokens", "output_tokens", "priority")
    }
    return Workload(**columns, content=workload.content), {**found, **options}


def readable(workload: Workload, setup: EngineSetup) -> dict[str, Any]:
    result = simulate(workload, setup, engine_loop="events")
    records = {name: getattr(result.records, name).tolist() for name in LEDGER_COLUMNS}
    return {
        **records,
        "steps": result.steps,
        "busy_s": result.busy_s,
        "preemptions": result.preemptions,
        "rejected": result.rejected,
        "kv_utilization_mean": result.kv_utilization_mean,
        "kv_utilization_peak": result.kv_utilization_peak,
        "mean_batch_size": result.mean_batch_size,
        "kv_tiers": result.kv_tiers,
        "data_parallel_requests": result.data_parallel_requests,
    }


def compiled(workload: Workload, setup: EngineSetup) -> dict[str, Any]:
    columns = {
        name: memoryview(array("q", [0 if name in ZEROS else -1]) * len(workload)) for name in LEDGER_COLUMNS
    }
    fleet = Fleet(workload, columns, routed=False)
    chains = functools.partial(Chains, workload)
    number = fleet.add(setup, 0, chains=chains, answers_private=False)
    fleet.feed(number, None, np.rint(workload.arrival_s * 1e12).astype(np.int64))
    fleet.advance(NEVER)
    state = fleet.state(number)
    block_ps, busy_ps = (low + (high << 64) for low, high in (state.kv_block_ps, state.kv_busy_ps))
    blocks = setup.num_blocks * setup.data_parallel_size
    return {
        **{name: column.tolist() for name, column in columns.items()},
        "steps": state.steps,
        "busy_s": state.busy_ps / 10**12,
        "preemptions": state.preemptions,
        "rejected": state.rejected,
        "kv_utilization_mean": block_ps / (busy_ps * blocks) if busy_ps else 0.0,
        "kv_utilization_peak": state.kv_peak_blocks / blocks,
        "mean_batch_size": state.rows / state.steps if state.steps else 0.0,
        "kv_tiers": fleet.tier_use(number),
        "data_parallel_requests": fleet.rank_requests(number),
    }


ZEROS = {"output_tokens", "cached_tokens", "preemptions", "preempted_ps"}


def differing(workload: Workload, options: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """What the two engines say differently of a run, and what the compiled one says."""
    setup = EngineSetup(**options)
    ours, theirs = compiled(workload, setup), readable(workload, setup)
    return [name for name in theirs if ours[name] != theirs[name]], ours
