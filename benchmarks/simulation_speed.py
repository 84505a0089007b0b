"""How many requests a CPU second simulates: beside the peers' figures, on real traces, and how it grows.

Run `python benchmarks/simulation_speed.py [--requests N] [--million] [--day] [--traces DIR]`. Rates are per CPU second
and exclude start-up, drawing the workload and reading traces. CPU speeds differ: compare ratios, and the
calibration line.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import simpy

from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.step import AffineStepTimes
from capacity.workload import (
    Clients,
    GammaLengths,
    LognormalLengths,
    SharedPrefixes,
    SteadyArrivals,
    Workload,
    client_mix,
    diurnal,
    read_trace,
    synthetic,
)

# Peers on the same kind of workload (Poisson arrivals, lognormal lengths, mean 1012 prompt and 255 output tokens),
# per CPU second on a 2-core 2.8 GHz Xeon, Python 3.11; each was run for this comparison. Ranges over loads.
PEERS = [
    ("Vidur (Python)", "203-291"),
    ("splitwise-sim (Python)", "196-238"),
    ("BLIS (Go)", "204-227"),
    ("DistServe (SimPy)", "222-375"),
]
LOADS = {"low load": 8.0, "middle": 20.0, "near saturation": 32.0}  # requests/s of the engine below
STEP_TIMES = AffineStepTimes(0.006, 2e-5, per_context_token_s=4e-9)  # an 8B model on one large GPU, roughly
NUM_BLOCKS = 26_000
REPLICAS = 8  # behind a router
DAY_REQUESTS = 1_400_000
DAY_REPLICAS = 4


def workload(requests: int, rate: float, seed: int = 0) -> Workload:
    return synthetic(
        num_requests=requests,
        arrivals=SteadyArrivals(rate),
        prompt=LognormalLengths(mean_tokens=1012, cv=1.3),
        output=LognormalLengths(mean_tokens=255, cv=1.3),
        seed=seed,
    )


def timed(requests: Workload, policy: str) -> tuple[float, SimulationResult]:
    begin = time.process_time()
    result = simulate(
        requests,
        EngineSetup(step_times=STEP_TIMES, num_blocks=NUM_BLOCKS, policy=policy),
        goodput_ms={"ttft": 500.0},
    )
    return time.process_time() - begin, result


def timeouts_per_s() -> float:
    """Calibration: SimPy timeouts per CPU second on this machine (0.7-1.0 M where the peers were measured)."""

    def process(env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        for _ in range(100_000):
            yield env.timeout(5)

    env = simpy.Environment()
    env.process(process(env))
    begin = time.process_time()
    env.run()
    return 100_000 / (time.process_time() - begin)


def speeds(requests: int, repeats: int) -> None:
    print(
        f"{'load':>16} {'policy':>14} {'steps/request':>14} {'batch':>6} {'requests/s':>11} {'tokens/s':>11}"
    )
    for name, rate in LOADS.items():
        drawn = workload(requests, rate)
        for policy in ("vllm-v1", "vllm-v1-async"):
            runs = [timed(drawn, policy) for _ in range(repeats)]
            seconds, result = statistics.median(s for s, _ in runs), runs[0][1]
            print(
                f"{name:>16} {policy:>14} {result.steps / requests:14.1f} {result.mean_batch_size:6.0f} "
                f"{requests / seconds:11,.0f} {result.summary.total_output_tokens / seconds:11,.0f}"
            )


def readable_once(requests: int) -> None:
    setup = EngineSetup(step_times=STEP_TIMES, num_blocks=NUM_BLOCKS, policy="vllm-v1")
    for name, rate in LOADS.items():
        drawn = workload(requests, rate)
        begin = time.process_time()
        readable = simulate(drawn, setup, engine_loop="events")
        seconds = time.process_time() - begin
        equal = readable.to_dict() == simulate(drawn, setup).to_dict()
        print(f"{name:>16} readable: {requests / seconds:,.0f} requests/s; equal results: {equal}")


def replicated(requests: int, rate: float, replicas: int = REPLICAS, seed: int = 0) -> Workload:
    """`rate` requests/s for each replica; half of a prompt is one of 1,000 system prompts, of Zipf popularity."""
    return synthetic(
        num_requests=requests,
        arrivals=SteadyArrivals(rate * replicas),
        prompt=LognormalLengths(mean_tokens=500, cv=1.3),
        output=LognormalLengths(mean_tokens=255, cv=1.3),
        shared_prefixes=SharedPrefixes(512, 1000, 1.0),
        seed=seed,
    )


def timed_cluster(
    requests: Workload, router: str, replicas: int = REPLICAS
) -> tuple[float, SimulationResult]:
    setup = EngineSetup(step_times=STEP_TIMES, num_blocks=NUM_BLOCKS)
    begin = time.process_time()
    result = simulate(requests, [setup] * replicas, router=router, goodput_ms={"ttft": 500.0})
    return time.process_time() - begin, result


def behind_a_router(requests: int, repeats: int) -> None:
    print(f"{REPLICAS} replicas, half of each prompt shared")
    print(f"{'load':>16} {'router':>18} {'steps/request':>14} {'hits':>6} {'requests/s':>11}")
    for name, rate in LOADS.items():
        drawn = replicated(requests, rate)
        for router in ("prefix-aware", "least-outstanding"):
            runs = [timed_cluster(drawn, router) for _ in range(repeats)]
            seconds, result = statistics.median(s for s, _ in runs), runs[0][1]
            hits = result.prefix_cache_hit_fraction or 0.0
            print(
                f"{name:>16} {router:>18} {result.steps / requests:14.1f} {hits:6.0%} {requests / seconds:11,.0f}"
            )


def day(requests: int) -> None:
    """A day of 1,000 clients on four replicas: seconds, and memory by what it is made of."""
    before_mb = peak_memory_kib() / 1024
    drawn = client_mix(
        num_requests=requests,
        clients=Clients(1000, burstiness=0.3),
        pace=diurnal(requests / 86_400.0, peak_to_mean=1.6),
        prompt=GammaLengths(800, 1.2),
        output=GammaLengths(255, 1.0),
        client_prompt_tokens=256,
    )
    drawn_mb = peak_memory_kib() / 1024
    seconds, result = timed_cluster(drawn, "prefix-aware", DAY_REPLICAS)
    peak_mb = peak_memory_kib() / 1024
    answer = {"s": seconds, "before_mb": before_mb, "drawn_mb": drawn_mb, "peak_mb": peak_mb}
    print(json.dumps({**answer, "completed": int(result.records.completed.sum()), "steps": result.steps}))


def in_a_process(requests: int, what: str = "--alone") -> dict[str, float]:
    """Seconds and peak memory of one run in a process of its own."""
    command = [sys.executable, __file__, what, str(requests)]
    answer = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    measured: dict[str, float] = json.loads(answer)
    return measured


def peak_memory_kib() -> int:
    """Of this program; getrusage's figure would include the process that started it (Linux keeps it over exec)."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def alone(requests: int) -> None:
    seconds, result = timed(workload(requests, LOADS["near saturation"]), "vllm-v1")
    peak_mb = peak_memory_kib() / 1024
    print(json.dumps({"s": seconds, "peak_mb": peak_mb, "itl_resolution": result.summary.itl_resolution}))


def traces(folder: Path) -> None:
    for name in ("AzureLLMInferenceTrace_conv.csv.gz", "mooncake_conversation_trace.jsonl.gz"):
        path = folder / name
        if path.exists():
            seconds, result = timed(read_trace(str(path)), "vllm-v1")
            hits = result.prefix_cache_hit_fraction or 0.0
            print(f"{name}: {len(result.records):,} requests in {seconds:.2f} s, prefix hits {hits:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--million", action="store_true", help="also how time and memory grow to a million requests"
    )
    parser.add_argument("--traces", type=Path, help="a folder with the public traces")
    parser.add_argument(
        "--day",
        action="store_true",
        help=f"also a day of {DAY_REQUESTS:,} requests on {DAY_REPLICAS} replicas",
    )
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--day-alone", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.day_alone:
        day(arguments.day_alone)
        return
    if arguments.alone:
        alone(arguments.alone)
        return
    print(f"calibration: {timeouts_per_s() / 1e6:.2f} M SimPy timeouts/s")
    for peer, rate in PEERS:
        print(f"{peer}: {rate} requests/s")
    speeds(arguments.requests, arguments.repeats)
    behind_a_router(arguments.requests, arguments.repeats)
    readable_once(min(arguments.requests, 1000))
    if arguments.traces:
        traces(arguments.traces)
    if arguments.million:
        small, large = in_a_process(100_000), in_a_process(1_000_000)
        print(
            f"1,000,000 requests: {large['s']:.1f} s = {large['s'] / small['s']:.2f} x 100,000, "
            f"peak {large['peak_mb']:.0f} MB, "
            f"ITL percentiles to {large['itl_resolution']:.2%}"
        )
    if arguments.day:
        small, large = (
            in_a_process(requests, "--day-alone") for requests in (DAY_REQUESTS // 10, DAY_REQUESTS)
        )
        per_request = (large["peak_mb"] - small["peak_mb"]) * 2**20 / (DAY_REQUESTS * 0.9)
        print(
            f"a day of {DAY_REQUESTS:,} requests: {large['s']:.0f} s, {DAY_REQUESTS / large['s']:,.0f} requests/s, "
            f"peak {large['peak_mb']:.0f} MB ({large['before_mb']:.0f} before, {large['drawn_mb']:.0f} with the "
            f"workload), {per_request:.0f} bytes a request"
        )


if __name__ == "__main__":
    main()
