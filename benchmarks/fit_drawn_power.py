"""Fit the power that GPUs draw to the watts that ML.ENERGY measured; judge it on configurations that were held out.

    python benchmarks/fit_drawn_power.py [--write]

A configuration is a model, GPU, number of GPUs and precision; sorted by name, every third is held out and not used to
fit or choose anything. Prints the constants, and the errors of joules per output token on fitted and held-out rows: at
the measured token rate (the error of the power), and at the rate that the closed form predicts. The form was chosen on
the fitted rows, with one configuration left out at a time.

The interval of measured GPUs is the 5 % and 95 % quantile of measured / predicted power over fitted rows whose family
of models was left out of the fit, because configurations of one family resemble each other. It is common to all
measured GPUs, because each has few families. That of other GPUs also covers rows of one GPU under constants of the
other. `--write` writes `drawn_power.toml`.

The servers sample as the leaderboard's requests ask. The time that a measured step takes longer than predicted counts
as time in kernels. docs/evidence.md says how often the held-out rows were looked at.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fit_inputs import listed_inputs
from other_labs import CHAT_PROMPT, ml_energy_rows
from scipy.optimize import least_squares
from served_data import shared_folder
from spreads_file import write

from capacity.hardware.coefficients import Fit
from capacity.hardware.drawn_power import (
    ALL,
    TABLE,
    DrawnPowerConstants,
    DrawnPowerTable,
    GpuUse,
    PowerInterval,
)
from capacity.hardware.profile import HardwareProfile
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import ResolvedPool
from capacity.step.gpu_use import gpu_use, prompt_rates, use_of_steps
from capacity.step.time_shares import EngineLoad, mean_decode_shape, request_seconds

HEADER = "Written by benchmarks/fit_drawn_power.py: power that GPUs draw (capacity/hardware/drawn_power.py)."
SOURCE = "ML.ENERGY leaderboard v3, lm-arena-chat, vLLM 0.11.1: NVML watts of the GPUs in the steady state"
DATE = "2026-11-28"
IDLE_SHARE = 0.12  # H200: 80 of 700 W without load (Serial Alice GPU Energy Benchmark, 2026-06)
LIMIT_SHARE = 0.97  # the highest fitted rows draw 0.97 to 0.99 of the TDP
NOT_READ = "Nemotron"  # no preset has these models; a new preset must not change which rows are held out
SCALE = 0.1  # of a log error: beyond, a row pulls less than in proportion
START = (1.0, 0.5, 5.0)
EXACT = PowerInterval(low=1.0, high=1.0)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured row: watts per GPU, and the use of a GPU at the measured and at the predicted rate of tokens."""

    configuration: tuple[str, str, int, str]
    profile: HardwareProfile
    watts: float
    measured: GpuUse
    predicted: GpuUse
    rate_ratio: float  # predicted / measured output tokens per second

    @classmethod
    def read(cls, row: Any, resolved: ResolvedPool) -> Row:
        """Compute the use of a GPU from the row's batch and rate."""
        ranks = resolved.pool.data_parallel_size
        steps, limits = TokenSteps(resolved), resolved.limits
        load = EngineLoad(
            requests_per_s=math.inf,
            input_len=CHAT_PROMPT,
            output_len=round(row.avg_output_len),
            most_decoding=max(resolved.largest_batch(CHAT_PROMPT + round(row.avg_output_len)), 1),
            in_flight=row.avg_batch_size / resolved.independent_ranks,
            ranks=resolved.lockstep_ranks,
        )
        decode = mean_decode_shape(max(round(row.avg_batch_size / ranks), 1), limits, load)
        tokens_per_s = row.output_throughput_tokens_per_sec
        rates = list(
            prompt_rates(
                steps, limits, load, decode=decode, prompts_per_s=tokens_per_s / row.avg_output_len / ranks
            )
        )
        rates.append((tokens_per_s / row.avg_batch_size, steps.step_cost(decode)))
        predicted_per_s = resolved.independent_ranks / request_seconds(steps, limits, load).total_s
        return cls(
            configuration=(
                row.model_id.split("/")[1].lower(),
                resolved.profile.name,
                row.num_gpus,
                row.weight_precision,
            ),
            profile=resolved.profile,
            watts=row.avg_power_watts / row.num_gpus,
            measured=use_of_steps(rates, duty=1.0),
            predicted=gpu_use(steps, limits, load),
            rate_ratio=predicted_per_s * row.avg_output_len / tokens_per_s,
        )

    @property
    def gpu(self) -> str:
        return self.profile.name

    @property
    def family(self) -> str:
        """Return the family of the model; Qwen3's dense and MoE models are two."""
        name = self.configuration[0]
        experts = re.search(r"-a\d+b", name) is not None
        return f"{name.partition('-')[0]}{' MoE' * experts}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write drawn_power.toml")
    arguments = parser.parse_args()
    folder = shared_folder()
    if folder is None:
        raise SystemExit("no measured rows: set CAPACITY_SHARED to the folder of reference data")
    rows = read_rows(folder)
    fitted, held_out = split_by_configuration(rows)
    table = fit_table(fitted)
    for name, each in table.gpus.items():
        print(f"{name}: busy {each.busy}, memory {each.memory}, compute {each.compute}")
    for name, ends in (("measured GPUs", table.measured), ("other GPUs", table.transferred)):
        print(f"{name}: measured / predicted power {ends.low} to {ends.high}")
    print(
        f"{'J per output token':<24}{'rows':>6}{'configurations':>16}{'median':>9}{'p90':>7}{'within 90 %':>13}"
    )
    for label, chosen in (("fitted", fitted), ("held out", held_out)):
        for gpu in (*sorted({row.gpu for row in rows}), ""):
            print_errors(table, f"{label} {gpu}", [row for row in chosen if row.gpu.startswith(gpu)])
    if arguments.write:
        write(table, TABLE, header=HEADER)


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of models that the library has, from the folder of reference data."""
    every = ml_energy_rows(folder / "reference" / "measured", said=True)
    return [Row.read(row, resolved) for row, resolved in every if NOT_READ not in row.model_id]


def split_by_configuration(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the fitted and the held-out rows."""
    names = sorted({row.configuration for row in rows})
    held_out = {name for at, name in enumerate(names) if at % 3 == 2}
    return (
        [row for row in rows if row.configuration not in held_out],
        [row for row in rows if row.configuration in held_out],
    )


def fit_table(rows: Sequence[Row]) -> DrawnPowerTable:
    """Return the constants of each GPU and of all, with intervals from rows that were left out of the fit."""
    gpus = {gpu: [row for row in rows if row.gpu == gpu] for gpu in sorted({row.gpu for row in rows})}
    by_family = {gpu: _errors_without(chosen, attrgetter("family")) for gpu, chosen in gpus.items()}
    own = _interval([error for each in by_family.values() for error in each])
    other = _interval(_errors_without(rows, attrgetter("gpu")))
    return _table(
        {**{gpu: _fit(chosen) for gpu, chosen in gpus.items()}, ALL: _fit(rows)},
        measured=own,
        transferred=PowerInterval(low=min(own.low, other.low), high=max(own.high, other.high)),
    )


def _errors_without(rows: Sequence[Row], group: Callable[[Row], object]) -> list[tuple[Row, float]]:
    """Return each row with measured / predicted power, by constants fitted to the rows of the other groups."""
    return [
        (row, row.watts / _table({ALL: constants}).watts(row.profile, row.measured))
        for left_out in {group(row): None for row in rows}
        for constants in [_fit([row for row in rows if group(row) != left_out])]
        for row in rows
        if group(row) == left_out
    ]


def _table(
    constants: Mapping[str, DrawnPowerConstants],
    measured: PowerInterval = EXACT,
    transferred: PowerInterval = EXACT,
) -> DrawnPowerTable:
    return DrawnPowerTable(
        idle_share=IDLE_SHARE,
        limit_share=LIMIT_SHARE,
        measured=measured,
        transferred=transferred,
        gpus=dict(constants),
    )


def _fit(rows: Sequence[Row]) -> DrawnPowerConstants:
    """Return the constants that minimise the robust log error of the power."""
    uses = np.array([_shares(row.profile, row.measured) for row in rows])
    share = np.array([row.watts / row.profile.tdp_watts for row in rows])

    def errors(values: Floats) -> Floats:
        found: Floats = np.log(
            (IDLE_SHARE + (LIMIT_SHARE - IDLE_SHARE) * -np.expm1(-(uses @ values))) / share
        )
        return found

    fit = least_squares(errors, START, bounds=(0, np.inf), loss="soft_l1", f_scale=SCALE)
    busy, memory, compute = (round(float(value), 3) for value in fit.x)
    architectures = {row.profile.architecture for row in rows}
    return DrawnPowerConstants(
        architecture=architectures.pop() if len(architectures) == 1 else ALL,
        busy=busy,
        memory=memory,
        compute=compute,
        fit=Fit(basis="fitted", source=SOURCE, date=DATE, rows=len(rows)),
    )


def _interval(errors: Sequence[tuple[Row, float]]) -> PowerInterval:
    """Return the 5 % and 95 % quantiles of measured / predicted, with equal weight for each configuration."""
    names = [row.configuration for row, _ in errors]
    weights = np.array([1 / names.count(name) for name in names])
    ratios = np.array([ratio for _, ratio in errors])
    order = np.argsort(ratios)
    below = np.cumsum(weights[order]) / weights.sum()
    low, high = (round(float(ratios[order][np.searchsorted(below, level)]), 3) for level in (0.05, 0.95))
    return PowerInterval(low=low, high=high)


def _shares(profile: HardwareProfile, use: GpuUse) -> tuple[float, float, float]:
    peak = profile.dense_flops_per_s[profile.compute_type_16_bit]
    return use.kernel_fraction, use.bytes_per_s / profile.hbm_bytes_per_s, use.flops_per_s / peak


class Errors(NamedTuple):
    """Median and 90 % point of the absolute error of joules per token, and the fraction of rows in the interval."""

    median: float
    p90: float
    covered: float


def errors_at(table: DrawnPowerTable, rows: Sequence[Row], *, measured_rate: bool) -> Errors:
    """Return the errors of joules per output token at the measured or the predicted rate of tokens."""
    ratios = np.array(
        [
            table.watts(row.profile, row.measured if measured_rate else row.predicted)
            / row.watts
            / (1.0 if measured_rate else row.rate_ratio)
            for row in rows
        ]
    )
    own = [table.interval(row.profile) for row in rows]
    covered = [each.low <= 1 / ratio <= each.high for each, ratio in zip(own, ratios, strict=True)]
    errors = np.abs(ratios - 1)
    return Errors(float(np.median(errors)), float(np.percentile(errors, 90)), float(np.mean(covered)))


def print_errors(table: DrawnPowerTable, label: str, rows: Sequence[Row]) -> None:
    """Print the errors of joules per token at the measured and at the predicted rate, and the coverage."""
    for measured_rate in (True, False):
        found = errors_at(table, rows, measured_rate=measured_rate)
        configurations = len({row.configuration for row in rows})
        print(
            f"{label:<24}{len(rows):>6}{configurations:>16}{found.median:>9.1%}{found.p90:>7.1%}"
            f"{found.covered:>13.0%}  {'measured' if measured_rate else 'predicted'} rate"
        )


if __name__ == "__main__":
    with listed_inputs():
        main()
