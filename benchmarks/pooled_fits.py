"""Constants of many tables of measured kernels at once, drawn to one another, with cross-validated errors.

Errors are cross-validated by *group* (a matrix shape, a GPU, an engine): a random split of rows would test
interpolation between twins. Used by `fit_profiles.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from capacity.base.errors import OutsideValidity
from capacity.hardware.calibration import (
    Constants,
    ErrorSummary,
    Measurement,
    Parameter,
    Predict,
    Row,
    fit_constants,
    summarise_errors,
)

FOLDS = 5
Tables = Mapping[Hashable, Sequence[Measurement[Row]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Fitted constants, the pool's that they were drawn to, and errors where they were fitted and where not."""

    constants: dict[str, float]
    centre: Constants | None
    in_sample: ErrorSummary
    held_out: ErrorSummary


def pool_centre(
    predict: Predict[Row], tables: Tables[Row], parameters: Sequence[Parameter]
) -> dict[str, float] | None:
    """The constants that the tables of a pool are drawn to; None where no parameter has a spread."""
    if all(parameter.spread is None for parameter in parameters):
        return None
    return fit_constants(predict, [m for rows in tables.values() for m in rows], parameters)


def fit_tables(
    predict: Predict[Row], tables: Tables[Row], parameters: Sequence[Parameter]
) -> dict[Hashable, dict[str, float]]:
    """Constants of each table of a pool; without spreads, each on its own."""
    centre = pool_centre(predict, tables, parameters)
    return {key: fit_constants(predict, rows, parameters, centre=centre) for key, rows in tables.items()}


def fold_fits(
    predict: Predict[Row], tables: Tables[Row], parameters: Sequence[Parameter], *, folds: int = FOLDS
) -> list[dict[Hashable, dict[str, float]]]:
    """Constants of each table by fold: those of a fit of the whole pool without that fold's groups."""
    kept = [
        {key: [m for m in rows if fold_of(m.group, folds) != fold] for key, rows in tables.items()}
        for fold in range(folds)
    ]
    return [fit_tables(predict, inside, parameters) for inside in kept]


def cross_validate(
    predict: Predict[Row], tables: Tables[Row], parameters: Sequence[Parameter], *, folds: int = FOLDS
) -> dict[Hashable, list[tuple[float, float]]]:
    """(predicted, measured) of groups that were left out of the fit of the whole pool, each group exactly once."""
    held_out: dict[Hashable, list[tuple[float, float]]] = {key: [] for key in tables}
    for fold, constants in enumerate(fold_fits(predict, tables, parameters, folds=folds)):
        for key, rows in tables.items():
            outside = [m for m in rows if fold_of(m.group, folds) == fold]
            held_out[key] += [(predict(constants[key], m.row), m.seconds) for m in outside]
    return held_out


def fit_pool(
    predict: Predict[Row], tables: Tables[Row], parameters: Sequence[Parameter], *, folds: int = FOLDS
) -> dict[Hashable, FitResult]:
    """Constants of each table from all its measurements, with cross-validated errors."""
    centre = pool_centre(predict, tables, parameters)
    constants = {k: fit_constants(predict, rows, parameters, centre=centre) for k, rows in tables.items()}
    held_out = cross_validate(predict, tables, parameters, folds=folds)
    return {
        key: FitResult(
            constants=constants[key],
            centre=centre,
            in_sample=summarise_errors([(predict(constants[key], m.row), m.seconds) for m in rows]),
            held_out=summarise_errors(held_out[key], groups=len({m.group for m in rows})),
        )
        for key, rows in tables.items()
    }


def fold_of(group: Hashable, folds: int) -> int:
    """The fold of a group: by its text, so that it is the same in every run."""
    return crc32(repr(group).encode()) % folds


def group_quantile(rows: Sequence[tuple[Hashable, float]], fraction: float) -> float:
    """A quantile over (group, value) rows in which every group weighs the same, however many rows it has.

    Raises OutsideValidity where there are none.
    """
    if not rows:
        raise OutsideValidity("no measurements to take a quantile of")
    sizes: dict[Hashable, int] = {}
    for group, _ in rows:
        sizes[group] = sizes.get(group, 0) + 1
    ordered = sorted((value, 1.0 / sizes[group]) for group, value in rows)
    wanted = fraction * len(sizes)
    reached = 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= wanted:
            return value
    return ordered[-1][0]
