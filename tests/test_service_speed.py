"""Speed and memory of a service: eight replicas behind a router that looks at prefixes, and a long day of clients."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "simulation_speed.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulation_speed", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_eight_replicas_behind_a_prefix_aware_router_are_fast(benchmark: ModuleType) -> None:
    """CPU time against SimPy's own timeouts in the same process: about 110 of them a request, 160 at most."""
    requests = 4000
    drawn = benchmark.replicated(requests, 20.0)
    best = min(
        benchmark.timed_cluster(drawn, "prefix-aware")[0] * benchmark.timeouts_per_s() for _ in range(3)
    )
    assert best / requests < 160


def day(requests: int) -> dict[str, float]:
    command = [sys.executable, str(BENCHMARK), "--day-alone", str(requests)]
    found: dict[str, float] = json.loads(
        subprocess.run(command, capture_output=True, check=True, text=True).stdout
    )
    return found


@pytest.mark.slow
def test_memory_grows_with_the_records_alone() -> None:
    """A day twice as full takes at most twice the memory on top, and a kilobyte a request at most."""
    small, large = day(200_000), day(400_000)
    grown = [run["peak_mb"] - run["before_mb"] for run in (small, large)]
    assert grown[1] < 2.1 * grown[0]
    assert (large["peak_mb"] - small["peak_mb"]) * 2**20 / 200_000 < 1024
    assert large["completed"] == 400_000
