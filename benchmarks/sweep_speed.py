"""Speed of sweeps: a 10,000-point analytic one, what a second process gains, and a cluster of several workers.

    python benchmarks/sweep_speed.py                   # the whole
    python benchmarks/sweep_speed.py --points 2000     # a short form

Run it on a quiet machine. "Speed-up" is the ratio of wall times, which other programs disturb; "by CPU" is what the
CPU time of all processes allows on two free cores, one process's over half of both's, which they hardly do.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capacity.planning.sweeps.sweep import sweep
from capacity.planning.sweeps.sweep_spec import SweepSpec

LIMIT_S = 60.0
LEAST_SPEEDUP = 1.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one sweep, and the CPU seconds of this process and of its children."""

    wall_s: float
    cpu_s: float
    ended: tuple[int, int]  # points that were done, and that failed


def analytic(count: int) -> SweepSpec:
    """`count` estimates over models, GPUs, parallelism, lengths and concurrency; some do not fit, as in life."""
    return SweepSpec(
        schema="capacity/sweep/v1",
        question="estimate",
        axes="random",
        samples=count,
        fixed={"price_tier": "on-demand"},
        vary={
            "model": ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "gpt-oss-120b"),
            "gpu": ("h100", "h200", "b200", "a100"),
            "tensor_parallel_size": (1, 2, 4, 8),
            "input_len": {"low": 64, "high": 8192, "log": True},
            "output_len": {"low": 16, "high": 2048, "log": True},
            "concurrency": {"low": 1, "high": 256, "log": True},
        },
    )


def simulated(count: int, requests: int) -> SweepSpec:
    """`count` simulations of `requests` requests each."""
    rates = tuple(2.0 + 0.25 * index for index in range(count))
    return SweepSpec(
        schema="capacity/sweep/v1",
        question="simulate",
        fixed={
            "model": "llama-3.1-8b",
            "gpu": "h100",
            "input_len": 512,
            "output_len": 128,
            "num_prompts": requests,
        },
        vary={"request_rate": rates},
    )


def cpu_s() -> float:
    """CPU time of this process and of the children that ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


def timed(spec: SweepSpec, store: Path, **options: Any) -> Timing:
    wall, cpu = time.perf_counter(), cpu_s()
    swept = sweep(spec, store, **options)
    return Timing(wall_s=time.perf_counter() - wall, cpu_s=cpu_s() - cpu, ended=(swept.done, swept.failed))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=10_000, help="of the analytic sweep")
    parser.add_argument("--simulations", type=int, default=40)
    parser.add_argument("--requests", type=int, default=1_000, help="of each simulation")
    asked = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    print(f"{'sweep':<34}{'workers':>8}{'wall, s':>10}{'CPU, s':>10}{'speed-up':>10}{'by CPU':>8}")
    with tempfile.TemporaryDirectory() as folder:
        sweeps = (
            (f"{asked.points:,} estimates", analytic(asked.points)),
            (
                f"{asked.simulations} simulations of {asked.requests:,}",
                simulated(asked.simulations, asked.requests),
            ),
        )
        for name, spec in sweeps:
            alone = timed(spec, Path(folder) / f"{name}-1.sqlite")
            both = timed(spec, Path(folder) / f"{name}-2.sqlite", workers=2)
            print(f"{name:<34}{1:>8}{alone.wall_s:>10.2f}{alone.cpu_s:>10.2f}")
            if alone.ended != both.ended:
                raise SystemExit(f"{name}: {alone.ended} done and failed, then {both.ended}: no comparison")
            walls, by_cpu = alone.wall_s / both.wall_s, 2 * alone.cpu_s / both.cpu_s
            print(f"{name:<34}{2:>8}{both.wall_s:>10.2f}{both.cpu_s:>10.2f}{walls:>10.2f}{by_cpu:>8.2f}")
    print(
        f"asked: 10,000 estimates in {LIMIT_S:.0f} s on two cores; a speed-up of {LEAST_SPEEDUP} on two processes"
    )


if __name__ == "__main__":
    main()
