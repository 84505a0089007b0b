"""Runs of an engine with tiers of KV below the GPU."""

from __future__ import annotations

import math
from typing import Any

from engine_runs import run_engine

from capacity.simulator import SimulationResult
from capacity.simulator.kv_cache.offload import Offload, Tier
from capacity.step import AffineStepTimes
from capacity.workload import (
    FixedLengths,
    LognormalLengths,
    SharedPrefixes,
    SteadyArrivals,
    Workload,
    synthetic,
)

STEPS = AffineStepTimes(0.008, 4e-5, per_context_token_s=2e-8)


BLOCK = 16


def tier(chunks: int | None = None, rate: float = math.inf, **more: Any) -> Tier:
    return Tier(**{"name": "cpu", "capacity_chunks": chunks, "bytes_per_s": rate, **more})


def offload(*tiers: Tier, **more: Any) -> Offload:
    return Offload(tiers=tiers or (tier(),), **{"block_bytes": 1e6, **more})


def prefixed(count: int = 300, rate: float = 20.0, prefixes: int = 40, **more: Any) -> Workload:
    return synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(rate),
        prompt=FixedLengths(100),
        output=LognormalLengths(40, 1.0, highest_tokens=300),
        shared_prefixes=SharedPrefixes(800, prefixes),
        **more,
    )


def run(workload: Workload, num_blocks: int = 1500, **options: Any) -> SimulationResult:
    keep = {"offload": options.pop("offload")} if "offload" in options else {}
    settings = {"step_times": STEPS, "num_blocks": num_blocks, "block_size": BLOCK, **options}
    settings["policy_options"] = {**settings.get("policy_options", {}), **keep}
    return run_engine(workload, **settings)
