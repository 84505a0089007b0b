"""Fit the step model's constants to measured kernels, and report the remaining error.

The fit is robust least squares (soft L1) on the logarithm of predicted over measured time. Relative errors count
equally for microsecond and millisecond kernels, and outliers count little. `benchmarks/pooled_fits.py` uses this module
to fit many tables at once.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from capacity.base.errors import OutsideValidity

Row = TypeVar("Row")
Constants = Mapping[str, float]
Predict = Callable[[Constants, Row], float]
FloatArray = np.ndarray[tuple[int], np.dtype[np.float64]]

ROBUST_SCALE = 0.1  # larger log residuals count linearly; about the reproducibility of the tables
MIN_ROWS_PER_PARAMETER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A constant to fit: its start value and its physical limits, searched on a logarithmic scale.

    With a `spread`, the fits of several tables share information: each table's constant is pulled towards the common
    value `centre`. The pull is a residual ln(constant / centre) / `spread` that is added to the rows' residuals, which
    are divided by the robust scale.
    """

    name: str
    start: float
    low: float
    high: float
    spread: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Generic[Row]):
    """One measured kernel run: inputs, measured seconds, and its group, which is held out of a fit as a whole."""

    row: Row
    seconds: float
    group: Hashable
    regime: str = ""  # to report errors by regime


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Relative errors of predicted times; `log_ratios` are ln(measured / predicted), sorted."""

    rows: int
    groups: int
    median: float
    p90: float
    bias: float  # median of predicted / measured - 1
    log_ratios: tuple[float, ...]

    def quantile(self, fraction: float) -> float:
        """Return the quantile `fraction` of measured / predicted - 1."""
        return math.exp(float(np.quantile(self.log_ratios, fraction))) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(Generic[Row]):
    """Objective function of a fit: log residuals of the measurements, and the pull towards `centre` if given."""

    predict: Predict[Row]
    measurements: Sequence[Measurement[Row]]
    parameters: Sequence[Parameter]
    centre: Constants | None = None

    def residuals(self, constants: Constants) -> list[float]:
        """Return ln(predicted / measured) of each row. With `centre`, also return ln(constant / centre) x robust scale
        / spread of each constant that has a spread."""
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
        """Return half the sum of soft-L1 losses, as `scipy.optimize.least_squares` defines its cost."""
        scaled = np.square(np.array(self.residuals(constants)) / ROBUST_SCALE)
        return float(ROBUST_SCALE**2 * np.sum(np.sqrt(1.0 + scaled) - 1.0))


def fit_constants(
    predict: Predict[Row],
    measurements: Sequence[Measurement[Row]],
    parameters: Sequence[Parameter],
    *,
    centre: Constants | None = None,
) -> dict[str, float]:
    """Return the constants that minimise the soft-L1 loss, pulled towards `centre` if given.

    Raises OutsideValidity for fewer than two measurements per constant without `centre`.
    """
    from scipy.optimize import least_squares

    needed = MIN_ROWS_PER_PARAMETER * len(parameters)
    if centre is None and len(measurements) < needed:
        raise OutsideValidity(
            f"{len(measurements)} measurements are too few to fit {len(parameters)} constants; measure at least "
            f"{needed}, or transfer the constants from the nearest GPU"
        )
    names = [parameter.name for parameter in parameters]
    low = np.log([parameter.low for parameter in parameters])
    high = np.log([parameter.high for parameter in parameters])
    start = np.log([(centre or {}).get(parameter.name, parameter.start) for parameter in parameters])
    objective = Objective(predict=predict, measurements=measurements, parameters=parameters, centre=centre)

    def name_values(point: FloatArray) -> dict[str, float]:
        return dict(zip(names, np.exp(point).tolist(), strict=True))

    def residuals(point: FloatArray) -> list[float]:
        return objective.residuals(name_values(point))

    optimum = least_squares(
        residuals,
        np.clip(start, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        xtol=1e-5,
        ftol=1e-6,
    )
    return name_values(optimum.x)


def summarise_errors(pairs: Sequence[tuple[float, float]], *, groups: int = 0) -> ErrorSummary:
    """Summarise the errors of (predicted, measured) pairs. Raises OutsideValidity if there are no pairs."""
    if not pairs:
        raise OutsideValidity("no measurements to compare predictions with")
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
