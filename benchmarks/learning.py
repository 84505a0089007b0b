"""What own runs teach about the load that they measured and about another: a table of interval widths and coverage.

    python benchmarks/learning.py [--servers 20]

Each server is the simulator with constants drawn from the prior of such deployments, and with an error of its own for
each load, drawn with the standard deviation between loads. It is measured at 16 requests in flight once or three times
(with the scatter of repeated runs), calibrated on, and asked at 16 and at 64. CPU: two minutes.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from capacity_validate import calibrate
from replayed_servers import GPU, MODEL, RANKS, result_file, server

from capacity.hardware.adjustment import NAMES
from capacity.hardware.measured_loads import REPEATED
from capacity.hardware.spreads import load_spreads, prior_adjustment
from capacity.planning.sizing.sized_estimate import estimate

MEASURED, OTHER, RUNS = 16, 64, (0, 1, 3)
SETTINGS = {"tensor_parallel_size": RANKS, "input_len": 900, "output_len": 90}
ACTIVE = ("memory", "compute", "all_reduce", "host", "eager")


def widths(seed: int) -> Iterator[tuple[tuple[int, int, str], float, bool]]:
    """Yield (runs, concurrency, metric), half-width and whether the truth is inside, of one drawn server."""
    rng, known = np.random.default_rng(seed), load_spreads()
    prior = prior_adjustment("vllm", "h200-sxm-141gb", is_moe=False)
    deviations = dict(zip(NAMES, np.sqrt(np.diag(prior.covariance_matrix)), strict=True))
    planted = {name: float(deviations[name] * rng.normal()) for name in ACTIVE}
    own = {
        at: {metric: math.exp(known.kind(metric, is_moe=False).run * rng.normal()) for metric in REPEATED}
        for at in (MEASURED, OTHER)
    }
    true = server(**planted)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        raw = json.loads(result_file(folder / "run.json", true, MEASURED).read_text())
        paths = []
        for number in range(max(RUNS)):
            scatter = {metric: math.exp(deviation * rng.normal()) for metric, deviation in REPEATED.items()}
            moved = {
                name: value * own[MEASURED][metric] * scatter[metric]
                for name, value in raw.items()
                for metric in REPEATED
                if name.endswith(f"_{metric}_ms")
            }
            paths.append(folder / f"run-{number}.json")
            paths[-1].write_text(json.dumps({**raw, **moved}))
        for runs in RUNS:
            gpu = GPU
            if runs:
                gpu = calibrate(
                    paths[:runs], gpu=GPU, tensor_parallel_size=RANKS, name=f"of{runs}", out=folder
                ).profile
            for at in (MEASURED, OTHER):
                answer = estimate(MODEL, gpu=gpu, concurrency=at, profiles=folder, **SETTINGS)
                truth = _truth(planted, at, folder)
                for metric in REPEATED:
                    quantity = getattr(answer, f"{metric}_s")
                    real = truth[metric] * own[at][metric]
                    half = (quantity.high - quantity.low) / 2 / quantity.value
                    yield (runs, at, metric), half, quantity.low <= real <= quantity.high


def _truth(planted: dict[str, float], at: int, folder: Path) -> dict[str, float]:
    from capacity_validate.calibrating_runs import make_variant

    from capacity.hardware import load_profile, write_profile
    from capacity.hardware.adjustment import NO_ADJUSTMENT

    write_profile(make_variant(load_profile(GPU), "truth", NO_ADJUSTMENT.shift_means(planted)), folder)
    answer = estimate(MODEL, gpu=f"{GPU}@truth", concurrency=at, profiles=folder, **SETTINGS)
    return {metric: getattr(answer, f"{metric}_s").value for metric in REPEATED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=20)
    found: dict[tuple[int, int, str], list[tuple[float, bool]]] = {}
    for seed in range(parser.parse_args().servers):
        for key, half, inside in widths(seed):
            found.setdefault(key, []).append((half, inside))
    print("| 90 % intervals: half-width, share inside | no run | 1 run | 3 runs |")
    print("| --- | --- | --- | --- |")
    for at in (MEASURED, OTHER):
        for metric in REPEATED:
            cells = []
            for runs in RUNS:
                rows = found[runs, at, metric]
                half = statistics.median(half for half, _ in rows)
                cells.append(f"{half:.1%}, {sum(inside for _, inside in rows) / len(rows):.0%}")
            load = "the load measured" if at == MEASURED else f"{OTHER // MEASURED} times its concurrency"
            print(f"| {metric.upper()}, {load} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
