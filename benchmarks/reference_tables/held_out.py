"""Kernels predicted by constants that never saw their shape, and by those that the profiles ship.

The first are fits without a fold of groups (shapes, message sizes). They are made here from whole tables; beside a
sample, which is too small to fit, they stand in `fold_constants.csv` as the whole tables gave them.
"""

from __future__ import annotations

import csv
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pooled_fits import FOLDS, fold_fits, fold_of

from capacity.hardware.calibration import Constants
from reference_tables.form import Operator

FILE = "fold_constants.csv"
DIGITS = 4

Key = tuple[str, str, str]
FoldConstants = dict[tuple[str, Key], list[Constants]]


class KernelPrediction(NamedTuple):
    """One measured kernel beside what a fit without its group predicts, in seconds."""

    key: Key
    regime: str
    constants: Constants
    measured_s: float
    held_out_s: float
    row: Any


def fold_constants(measured: Path, families: Sequence[Operator]) -> FoldConstants:
    """Constants by operator and table, one set a fold: read where they stand beside the tables, else fitted."""
    path = measured / FILE
    return read_folds(path, families) if path.is_file() else fitted_folds(families)


def fitted_folds(families: Sequence[Operator]) -> FoldConstants:
    """Fits of whole tables, pool by pool, each without one fold of groups."""
    found: FoldConstants = {}
    for operator in families:
        pools: dict[Hashable, dict[Hashable, Any]] = {}
        for key, rows in operator.tables.items():
            pools.setdefault(operator.pools(key), {})[key] = rows
        for tables in pools.values():
            for fits in fold_fits(operator.predict, tables, operator.parameters):
                for key, constants in fits.items():
                    found.setdefault((operator.name, key), []).append(constants)  # type: ignore[arg-type]
    return found


def held_out(operator: Operator, folds: FoldConstants) -> Iterator[KernelPrediction]:
    """Every row of an operator's tables, predicted by the fit that left its group out."""
    for key, rows in operator.tables.items():
        by_fold = folds[operator.name, key]
        for m in rows:
            constants = by_fold[fold_of(m.group, FOLDS)]
            yield KernelPrediction(
                key, m.regime, constants, m.seconds, operator.predict(constants, m.row), m.row
            )


# the file: constants in the order of the operator's parameters


def read_folds(path: Path, families: Sequence[Operator]) -> FoldConstants:
    """The constants of the tables that `families` have rows of."""
    names = {
        (operator.name, key): [parameter.name for parameter in operator.parameters]
        for operator in families
        for key in operator.tables
    }
    found: FoldConstants = {table: [] for table in names}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            table = (row["operator"], (row["gpu"], row["engine"], row["kernel"]))
            if table in names:
                values = map(float, row["constants"].split(" "))
                found[table].append(dict(zip(names[table], values, strict=True)))
    return found


def write_folds(path: Path, folds: FoldConstants) -> None:
    """One line a table and fold."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["operator", "gpu", "engine", "kernel", "constants"])
        for (name, key), sets in sorted(folds.items()):
            for constants in sets:
                text = " ".join(f"{value:.{DIGITS}g}" for value in constants.values())
                writer.writerow([name, *key, text])
