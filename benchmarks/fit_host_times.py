"""Fit what engines' CPUs add to a step to served token times, on half of the groups; judge it on the other half.

    python benchmarks/fit_host_times.py [--engine TEXT] [--every N]

Prints, for each set of engine constants, the values fitted, the error of TPOT on the half that made them and on the
half that did not, and both with the constants in the engine's data. A group is a model, its GPU and its tensor
parallelism; halves are drawn by the hash of its name. Only what shows in a step is fitted: an asynchronous engine's
hidden host time has a bound from these rows, no value.

Then the machines: for each campaign the factor on all of the engine's host times that fits its rows best. The
standard deviation of its logarithm over campaigns of one engine is `host_machine_spread`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import md5
from pathlib import Path

import numpy as np
import pandas as pd
from fit_inputs import listed_inputs
from scipy.optimize import minimize
from served_data import ServedRow, read_rows, shared_folder
from served_open import OpenRun, inference_sim_runs, iog_runs
from served_rows import EngineChange, by_simulation, launch_settings
from step_evidence import LOG_CONTEXT_TOKENS, LOG_WARM_UP_STEPS

from capacity.deployment.engines import EngineSpec, find_engine
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.step import decode_shape
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting

HOST_TIMES = ("host_base_s", "host_per_layer_s", "host_per_sequence_s", "host_serial_s")
FACTORS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 6.0)
LOG = "vllm_iteration_log_gptoss120b_tp4"
MOST_PREFILLS_A_TOKEN = 1 / 32
LEAST_ROWS = 5  # of a campaign that says something of its machine
LEAST_STEP_MS = 0.5  # the empty half of an asynchronous pair
WORST_OPEN_RATE = "32/s"  # where arrivals outrun the server, queueing and not the step is measured
SCALE = 0.05  # of a log error: beyond, a row pulls less than in proportion

Errors = list[tuple[str, str, float]]
"""Campaign, group and ln(predicted / measured) of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Constants of one release that its rows show, and what gives these rows' errors under changed ones."""

    engine: str
    fields: tuple[str, ...]
    errors: Callable[[EngineChange], Errors]


def closed_loops(rows: Sequence[ServedRow], change: EngineChange) -> Errors:
    """Rows measured at a fixed concurrency, each in its own simulation."""
    found: Errors = []
    for row in rows:
        predicted = by_simulation(row, change=change).tpot_s
        if predicted is not None:
            group = f"{row.gpu} {row.model} {row.quantization} tp{row.tensor_parallel}"
            found.append((f"{row.campaign} {row.gpu}", group, math.log(predicted / row.tpot_s)))
    return found


def open_loops(runs: Callable[..., Iterator[OpenRun]], folder: Path, change: EngineChange) -> Errors:
    """Runs at a rate of arrivals, one group for each model."""
    return [
        (run.source, run.label.rsplit(" ", 1)[0], math.log(run.predicted_tpot_s / run.tpot_s))
        for run in runs(folder, change=change)
        if run.tpot_s > 0 and not run.label.endswith(WORST_OPEN_RATE) and "70B" not in run.label
    ]


def hardly_prefilled(rows: Sequence[ServedRow]) -> list[ServedRow]:
    """Rows of few prefills for each token: SGLang's stand alone, so that what they lack shows in TPOT."""
    return [row for row in rows if row.concurrency <= row.output_len * MOST_PREFILLS_A_TOKEN]


def logged_steps(folder: Path, change: EngineChange) -> Errors:
    """Decode steps of a vLLM 0.15 server's log (gpt-oss-120b, four H200): their median by powers of two of the rows."""
    model = load_model("gpt-oss-120b")
    setting = StepSetting(
        model=model,
        profile=load_profile("h200-sxm-141gb"),
        engine=change(find_engine("vllm@0.15")),
        tensor_parallel_size=4,
    )
    steps = StepModel(setting)
    logged = pd.read_csv(folder / "reference" / "measured" / f"{LOG}.csv.gz")
    warm, alone = logged.iteration >= LOG_WARM_UP_STEPS, logged.context_requests == 0
    errors: dict[int, list[float]] = {}
    for step in logged[warm & alone & (logged.elapsed_ms >= LEAST_STEP_MS)].itertuples():
        shape = decode_shape(step.generation_requests, LOG_CONTEXT_TOKENS, window_tokens=model.window_tokens)
        error = math.log(steps.step_seconds(shape) * 1e3 / step.elapsed_ms)
        errors.setdefault(step.generation_requests.bit_length(), []).append(error)
    return [("vLLM log", "vLLM log", float(np.median(own))) for own in errors.values()]


def targets(folder: Path, every: int) -> list[Target]:
    """Every set of constants that rows at hand can tell; of closed loops every n-th row."""
    served = read_rows(folder, moe=False)

    def rows(engine: str) -> list[ServedRow]:
        backends = {"tensorrt-llm": "trtllm"}
        name = engine.partition("@")[0]
        own = [row for row in served if row.backend == backends.get(name, name)]
        apart = [row for row in own if "no-overlap" in launch_settings(row).get("engine", "")]
        return (apart if "no-overlap" in engine else [row for row in own if row not in apart])[::every]

    def asynchronous_vllm(change: EngineChange) -> Errors:
        served_errors = closed_loops(rows("vllm@0.15"), change)
        opened = open_loops(inference_sim_runs, folder, change)
        return served_errors + opened + logged_steps(folder, change)

    trtllm, sglang = "tensorrt-llm@1.0", "sglang@0.5"
    apart = f"{trtllm}-no-overlap"
    return [
        Target(
            engine=apart,
            fields=("host_per_layer_s", "host_per_sequence_s"),
            errors=partial(closed_loops, rows(apart)),
        ),
        Target(engine=trtllm, fields=("host_serial_s",), errors=partial(closed_loops, rows(trtllm))),
        Target(
            engine=sglang,
            fields=("host_serial_s",),
            errors=partial(closed_loops, hardly_prefilled(rows(sglang))),
        ),
        Target(engine="vllm@0.15", fields=("host_serial_s",), errors=asynchronous_vllm),
        Target(
            engine="vllm@0.8",
            fields=("host_base_s", "host_per_sequence_s"),
            errors=partial(open_loops, iog_runs, folder),
        ),
    ]


def with_times(times: Mapping[str, float]) -> EngineChange:
    """The engine with these constants."""
    return lambda engine: engine.model_copy(update=dict(times))


def scaled(factor: float) -> EngineChange:
    """The engine on a machine whose CPU takes `factor` times as long."""

    def change(engine: EngineSpec) -> EngineSpec:
        return engine.model_copy(update={name: factor * getattr(engine, name) for name in HOST_TIMES})

    return change


def in_first_half(group: str) -> bool:
    """Whether constants are fitted to this group."""
    return md5(group.encode()).digest()[0] % 2 == 0


def loss(errors: Sequence[float]) -> float:
    """Mean soft absolute error: squares near 0, straight beyond `SCALE`. Every row counts the same."""
    return float(np.mean(np.sqrt(1.0 + (np.array(errors) / SCALE) ** 2) - 1.0))


def fitted(target: Target) -> dict[str, float]:
    """The constants that fit the first half of the groups best."""
    engine = find_engine(target.engine)
    start = [max(getattr(engine, field), 1e-6) for field in target.fields]

    def objective(logs: np.ndarray) -> float:
        times = dict(zip(target.fields, np.exp(logs), strict=True))
        errors = target.errors(with_times(times))
        return loss([error for _, group, error in errors if in_first_half(group)])

    found = minimize(
        objective,
        np.log(start),
        method="Nelder-Mead",
        options={
            "maxfev": 8 + 8 * len(start),
            "xatol": 0.05,
            "fatol": 1e-3,
            "initial_simplex": _simplex(np.log(start)),
        },
    )
    return dict(zip(target.fields, np.exp(found.x), strict=True))


def _simplex(start: np.ndarray) -> np.ndarray:
    return np.vstack([start, *(start + 0.7 * np.eye(len(start))[i] for i in range(len(start)))])


def quantiles(errors: Sequence[float]) -> str:
    """Median and 90th percentile of absolute errors, and the bias, in percent."""
    relative = np.expm1(errors)
    return (
        f"{np.median(np.abs(relative)):6.1%} / {np.quantile(np.abs(relative), 0.9):5.1%} "
        f"({np.median(relative):+.1%}) of {len(relative)}"
    )


def machine_factors(target: Target) -> dict[str, float]:
    """For each campaign, the factor on all host times that fits it best."""
    losses: dict[str, list[float]] = {}
    for factor in FACTORS:
        errors = target.errors(scaled(factor))
        for campaign in {campaign for campaign, _, _ in errors}:
            own = [error for name, _, error in errors if name == campaign]
            if len(own) >= LEAST_ROWS:
                losses.setdefault(campaign, []).append(loss(own))
    return {campaign: FACTORS[int(np.argmin(values))] for campaign, values in losses.items()}


def main(arguments: list[str] | None = None) -> int:
    """Print the fits and the machines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="", help="only engines whose name contains this text")
    parser.add_argument("--every", type=int, default=1, help="take every n-th row of the closed loops")
    options = parser.parse_args(arguments)
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    deviations: list[float] = []
    for target in targets(folder, options.every):
        if options.engine not in target.engine:
            continue
        times, engine = fitted(target), find_engine(target.engine)
        for name, change in (("fitted", with_times(times)), ("as stored", lambda own: own)):
            values = {field: getattr(change(engine), field) for field in target.fields}
            print(f"{target.engine:24} {name:10} " + ", ".join(f"{k} {v:.2e}" for k, v in values.items()))
            errors = target.errors(change)
            for half, wanted in (("fitted to", True), ("left out", False)):
                own = [error for _, group, error in errors if in_first_half(group) is wanted]
                if own:
                    print(f"{'':24} {half:10} {quantiles(own)}")
        factors = machine_factors(target)
        for campaign, factor in factors.items():
            print(f"{'':24} machine    {campaign}: {factor:g}")
        logs = np.log(list(factors.values()))
        if len(logs) > 1:
            deviations += list((logs - np.mean(logs)) * math.sqrt(len(logs) / (len(logs) - 1)))
    if deviations:
        print(
            f"machines: standard deviation of the logarithm {np.std(deviations):.2f} over {len(deviations)}"
        )
    return 0


if __name__ == "__main__":
    with listed_inputs():
        sys.exit(main())
