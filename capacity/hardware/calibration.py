"""Fitting the step model's constants to measured kernels, and saying how far off they are where not fitted.

Robust least squares (soft L1) on the logarithm of predicted over measured, so that a microsecond kernel counts as
much as a millisecond one and a few bad rows little. Errors are cross-validated by *group* (a matrix shape, a GPU, an
engine): a random split of rows would test interpolation between twins. Used by `benchmarks/fit_profiles.py`.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from zlib import crc32

import numpy as np

from capacity.base.errors import OutsideValidity

Row = TypeVar("Row")
Constants = Mapping[str, float]
Predict = Callable[[Constants, Row], float]
FloatArray = np.ndarray[tuple[int], np.dtype[np.float64]]

ROBUST_SCALE = 0.1  # log residuals beyond this count linearly: about the reproducibility of the tables
MIN_ROWS_PER_PARAMETER = 2
FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A constant to fit: where to start, and what is physical. Searched on a logarithmic scale.

    With a `spread`, tables of one pool share information: each is drawn towards the constant of all, as strongly
    as if one row said so with an error of `spread` (in ln) times the robust scale.
    """

    name: str
    start: float
    low: float
    high: float
    spread: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Generic[Row]):
    """One measured kernel: what was run, how long it took, and which group it is held out with."""

    row: Row
    seconds: float
    group: Hashable
    regime: str = ""  # errors may be told apart by it


Tables = Mapping[Hashable, Sequence[Measurement[Row]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Relative errors of predictions of measured times; `log_ratios` are ln(measured / predicted), sorted."""

    rows: int
    groups: int
    median: float
    p90: float
    bias: float  # median of predicted / measured - 1
    log_ratios: tuple[float, ...]

    def quantile(self, fraction: float) -> float:
        """Measured / predicted - 1 at a quantile of the held-out rows."""
        return math.exp(float(np.quantile(self.log_ratios, fraction))) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Fitted constants, the pool's that they were drawn to, and errors where they were fitted and where not."""

    constants: dict[str, float]
    centre: Constants | None
    in_sample: ErrorSummary
    held_out: ErrorSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(Generic[Row]):
    """What a fit makes small: log residuals of the measurements, and the pull towards `centre` where there is one."""

    predict: Predict[Row]
    measurements: Sequence[Measurement[Row]]
    parameters: Sequence[Parameter]
    centre: Constants | None = None

    def residuals(self, constants: Constants) -> list[float]:
        """ln(predicted / measured) of each row, then ln(constant / centre) weighted by the parameter's spread."""
        errors = [math.log(self.predict(constants, m.row) / m.seconds) for m in self.measurements]
        if self.centre is None:
            return errors
        pulls = [
            ROBUST_SCALE
            / parameter.spread
            * math.log(constants[parameter.name] / self.centre[parameter.name])
            for parameter in self.parameters
            if parameter.spread is not None
        ]
        return [*errors, *pulls]

    def value(self, constants: Constants) -> float:
        """Half the sum of soft-L1 losses, as `scipy.optimize.least_squares` defines its cost."""
        scaled = np.square(np.array(self.residuals(constants)) / ROBUST_SCALE)
        return float(ROBUST_SCALE**2 * np.sum(np.sqrt(1.0 + scaled) - 1.0))


def fit_constants(
    predict: Predict[Row],
    measurements: Sequence[Measurement[Row]],
    parameters: Sequence[Parameter],
    *,
    centre: Constants | None = None,
) -> dict[str, float]:
    """The constants of least robust error, drawn towards `centre` where one is given.

    Raises OutsideValidity where there are too few measurements to do without.
    """
    from scipy.optimize import least_squares

    needed = MIN_ROWS_PER_PARAMETER * len(parameters)
    if centre is None and len(measurements) < needed:
        raise OutsideValidity(
            f"{len(measurements)} measurements cannot support {len(parameters)} constants; need {needed}, "
            "or transfer from the nearest GPU"
        )
    names = [parameter.name for parameter in parameters]
    low = np.log([parameter.low for parameter in parameters])
    high = np.log([parameter.high for parameter in parameters])
    start = np.log([(centre or {}).get(parameter.name, parameter.start) for parameter in parameters])
    objective = Objective(predict=predict, measurements=measurements, parameters=parameters, centre=centre)

    def named(point: FloatArray) -> dict[str, float]:
        return dict(zip(names, np.exp(point).tolist(), strict=True))

    def residuals(point: FloatArray) -> list[float]:
        return objective.residuals(named(point))

    optimum = least_squares(
        residuals,
        np.clip(start, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        xtol=1e-5,
        ftol=1e-6,
    )
    return named(optimum.x)


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
            in_sample=summarise([(predict(constants[key], m.row), m.seconds) for m in rows]),
            held_out=summarise(held_out[key], groups=len({m.group for m in rows})),
        )
        for key, rows in tables.items()
    }


def fold_of(group: Hashable, folds: int) -> int:
    """The fold of a group: by its text, so that it is the same in every run."""
    return crc32(repr(group).encode()) % folds


def summarise(pairs: Sequence[tuple[float, float]], *, groups: int = 0) -> ErrorSummary:
    """Errors of (predicted, measured) pairs. Raises OutsideValidity where there are none."""
    if not pairs:
        raise OutsideValidity("no measurements to judge by")
    predicted, measured = np.array(pairs, dtype=np.float64).T
    relative = predicted / measured - 1.0
    return ErrorSummary(
        rows=len(pairs),
        groups=groups,
        median=float(np.median(np.abs(relative))),
        p90=float(np.quantile(np.abs(relative), 0.9)),
        bias=float(np.median(relative)),
        log_ratios=tuple(np.sort(np.log(measured / predicted)).tolist()),
    )


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
