"""Speed and memory of a service: eight replicas behind a router that looks at prefixes, and a long day of clients."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "simulation_speed.py"


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


def check_memory(small: int, large: int) -> None:
    """A fuller day takes memory in proportion to its requests, and a kilobyte a request at most."""
    runs = day(small), day(large)
    grown_mb = [run["peak_mb"] - run["before_mb"] for run in runs]
    assert grown_mb[1] < 1.1 * large / small * grown_mb[0]
    assert (grown_mb[1] - grown_mb[0]) * 2**20 / (large - small) < 1024
    assert [run["completed"] for run in runs] == [small, large]


def test_memory_grows_with_the_records_alone() -> None:
    check_memory(20_000, 60_000)


@pytest.mark.slow
def test_memory_grows_with_the_records_alone_in_the_long() -> None:
    check_memory(200_000, 400_000)
