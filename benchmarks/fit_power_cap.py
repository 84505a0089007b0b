"""Fit the clock of GPUs under a power cap to published sweeps; judge it on sweeps that were not fitted.

    python benchmarks/fit_power_cap.py [--write]

The rows are `tests/data/power_caps.csv`: rates of prefill or decode at caps, or at locked clocks with the watts drawn.
The column `use` states which rows are fitted: one sweep of prefill on a card with HBM (A100 at 500 W, locked clocks of
layers of GPT-3) and one on a card with GDDR (RTX 3090, Qwen3.6-27B), and one of decode (RTX 3090, Qwen3.6-35B-A3B). The
two prefill sweeps share the voltage curve. The error of each phase is the 90 % quantile of |log(measured / predicted)|
/ (1 - watts / limit) over the judged rows, each sweep with the same weight. `--write` writes `power_cap.toml`.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from fit_inputs import listed_inputs
from scipy.optimize import least_squares
from spreads_file import write

from capacity.hardware.coefficients import Fit
from capacity.hardware.power_cap import TABLE, PowerCapConstants
from capacity.hardware.what_if import load_profile

ROWS = Path(__file__).parents[1] / "tests" / "data" / "power_caps.csv"
HEADER = "Written by benchmarks/fit_power_cap.py: GPUs under a power cap (capacity/hardware/power_cap.py)."
SOURCE = "sweeps of A100 (ml-energy/zeus, 2024) and RTX 3090 (noonghunna/club-3090, 2026-05): tests/data/power_caps.csv"
DATE = "2026-11-28"
BINDING = 0.99  # clock share below which a cap counts as binding
START = (0.05, 0.3, 0.9, 0.8)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Rates of one load on one card at several watts, relative to the rate at `limit` watts or at the highest cap."""

    name: str
    load: str
    gpu: str
    use: str
    limit: float
    demand: float
    watts: Floats
    rates: Floats

    @classmethod
    def read(cls, rows: list[dict[str, str]]) -> Sweep:
        """Return the sweep of rows with the same source and load; the row with the most watts is the reference."""
        first = rows[0]
        watts = np.array([float(row["watts"] or row["cap_watts"]) for row in rows])
        rates = np.array([float(row["rate"]) for row in rows])
        top = int(np.argmax(watts))
        return cls(
            name=first["source"], load=first["load"], gpu=first["gpu"], use=first["use"],
            limit=float(first["limit_watts"]), demand=float(watts[top]), watts=watts, rates=rates / rates[top],
        )  # fmt: skip

    def clock_shares(self, known: PowerCapConstants) -> Floats:
        """Return the predicted clock at each number of watts."""
        static = known.static_share(load_profile(self.gpu)) * self.limit
        return np.array([known.clock_share(each, self.demand, static) for each in self.watts])

    def errors(self, known: PowerCapConstants) -> Floats:
        """Return log(measured / predicted) of each rate."""
        shares = self.clock_shares(known)
        return np.log(self.rates) - np.log(shares) * (known.memory_exponent if self.load == "decode" else 1.0)


def read_sweeps() -> list[Sweep]:
    """Return all sweeps of the table."""
    groups = defaultdict(list)
    with ROWS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            groups[row["source"], row["load"]].append(row)
    return [Sweep.read(rows) for rows in groups.values()]


def constants(values: Iterable[float], exponent: float, **errors: float) -> PowerCapConstants:
    """Return the constants of the formula; errors are 0 unless given."""
    hbm, gddr, slope, floor = (round(float(value), 3) for value in values)
    return PowerCapConstants(
        static_share_hbm=hbm, static_share_gddr=gddr, voltage_slope=slope, voltage_floor=floor,
        memory_exponent=round(exponent, 3), lowest_share=0.5,
        **{"prefill_error": 0.0, "decode_error": 0.0, **errors},
        fit=Fit(basis="fitted", source=SOURCE, date=DATE),
    )  # fmt: skip


def fit(sweeps: list[Sweep]) -> PowerCapConstants:
    """Fit the constants to the sweeps marked `fit`; errors are those of the judged sweeps."""
    fitted = [sweep for sweep in sweeps if sweep.use == "fit" and sweep.load == "prefill"]

    def residuals(values: Floats) -> Floats:
        known = constants(values, 1.0)
        return np.concatenate([sweep.errors(known) / len(sweep.rates) ** 0.5 for sweep in fitted])

    found = least_squares(residuals, START, bounds=([0.001, 0, 0.01, 0.3], [0.5, 0.5, 2, 1]), diff_step=0.02)
    decode = next(sweep for sweep in sweeps if sweep.use == "fit" and sweep.load == "decode")
    clocks, rates = np.log(decode.clock_shares(constants(found.x, 1.0))), np.log(decode.rates)
    known = constants(found.x, float(clocks @ rates / (clocks @ clocks)))
    return known.model_copy(
        update={f"{load}_error": error_of(sweeps, known, load) for load in ("prefill", "decode")}
        | {"lowest_share": lowest_share(sweeps)}
    )


def error_of(sweeps: list[Sweep], known: PowerCapConstants, load: str) -> float:
    """Return the 90 % quantile of the error over 1 - share of the limit, over the binding rows of judged sweeps."""
    values, weights = [], []
    for sweep in sweeps:
        bound = (sweep.clock_shares(known) < BINDING) & (sweep.watts / sweep.limit >= lowest_share(sweeps))
        if sweep.use == "judged" and sweep.load == load and bound.any():
            own = np.abs(sweep.errors(known))[bound] / (1 - sweep.watts[bound] / sweep.limit)
            values.append(own)
            weights.append(np.full(len(own), 1 / len(own)))
    order = np.argsort(every := np.concatenate(values))
    below = np.cumsum(np.concatenate(weights)[order]) / len(values)
    return round(float(every[order][np.searchsorted(below, 0.9)]), 2)


def lowest_share(sweeps: list[Sweep]) -> float:
    """Return the lowest share of the limit in the fitted sweeps of prefill."""
    fitted = (sweep for sweep in sweeps if sweep.use == "fit" and sweep.load == "prefill")
    return round(max(float((sweep.watts / sweep.limit).min()) for sweep in fitted), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write power_cap.toml")
    arguments = parser.parse_args()
    sweeps = read_sweeps()
    known = fit(sweeps)
    print(known.model_dump_json(indent=1))
    for sweep in sweeps:
        errors = sweep.errors(known)[sweep.watts / sweep.limit >= known.lowest_share]
        print(
            f"{sweep.use:7}{sweep.load:8}{sweep.gpu:16}{len(errors):3} rows from {known.lowest_share:.0%}: "
            f"error {np.sqrt(np.mean(errors**2)):6.1%} rms, {np.abs(errors).max():6.1%} at most  {sweep.name}"
        )
    if arguments.write:
        write(known, TABLE, header=HEADER)


if __name__ == "__main__":
    with listed_inputs():
        main()
