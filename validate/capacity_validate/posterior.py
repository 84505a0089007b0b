"""Bayesian inference of a few parameters (theta) from a few measurements: Gauss-Newton and a Laplace approximation.

The prior is normal. Logarithms of measurements scatter around their predictions as Student's t with 4 degrees of
freedom: close to normal for consistent measurements, with tails that reduce the effect of a contradicting one. Each
prediction replays whole runs, so predictions are evaluated at about a dozen values of theta only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from capacity.base.errors import InvalidInput
from capacity.base.record import WrittenRecord

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Predict = Callable[[Vector], Vector]
"Returns the logarithms of all predicted values for theta; NaN for a value that cannot be predicted."

DEGREES = 4.0  # degrees of freedom of Student's t
CONTRADICTS = 4.0  # in standard deviations from the prediction
STEPS = 12
HALVINGS = 4
CONVERGED = 0.02  # a smaller step, in posterior standard deviations, ends the search
DIFFERENCE = 0.5  # step of derivatives in prior standard deviations; large because runs are discrete


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFigure:
    """One measurement: `value` above 0, the standard `deviation` of its logarithm, and a group key, `shared`.

    The errors of measurements with equal `shared` (the percentiles of one metric of one run) are correlated: their
    correlation is `SHARED_VARIANCE`.
    """

    name: str
    value: float
    deviation: float
    shared: str


SHARED_VARIANCE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedFigure(WrittenRecord):
    """A measurement in its own unit, its prediction before and after the fit, and its weight in the fit.

    `off`: distance from the prediction after the fit, in standard deviations; `weight`: 1, or less if `off` is large.
    """

    LAST: ClassVar[tuple[str, ...]] = ("contradicts",)

    name: str
    measured: float
    before: float
    after: float
    off: float
    weight: float

    @property
    def contradicts(self) -> bool:
        """Return whether no likely values of the parameters explain the measurement."""
        return abs(self.off) > CONTRADICTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The most likely theta (in `mean`), its covariance, and the measurements used, with their predictions."""

    mean: Vector
    covariance: Matrix
    judged: tuple[EvaluatedFigure, ...]
    jacobian: Matrix  # derivatives of the figures' logarithms, at the mode


def infer(
    predict: Predict,
    figures: Sequence[MeasuredFigure],
    prior_mean: Vector,
    prior_covariance: Matrix,
    *,
    active: Sequence[int] | None = None,
) -> Posterior:
    """Return the posterior of theta. Only `active` parameters can affect a measurement; the others keep their prior.

    Measurements that cannot be predicted at the prior's mean are excluded. Raises InvalidInput if none remains.
    """
    before = predict(prior_mean)
    kept = [i for i, value in enumerate(before) if np.isfinite(value)]
    if not kept:
        raise InvalidInput("none of the measurements can be predicted, so nothing can be calibrated")
    chosen = [figures[i] for i in kept]
    units = np.sqrt(np.diag(prior_covariance))  # bytes and logarithms differ by orders of magnitude
    problem = _Problem(
        predict=lambda theta: predict(theta * units)[kept],
        measured=np.log([figure.value for figure in chosen]),
        noise=noise_covariance(chosen),
        prior_mean=prior_mean / units,
        prior_precision=symmetric_inverse(prior_covariance / np.outer(units, units)),
        active=tuple(range(len(prior_mean)) if active is None else active),
    )
    theta, predicted, jacobian = problem.mode(before[kept])
    off = (problem.measured - predicted) / np.sqrt(np.diag(problem.noise))
    weights = student_weights(off)
    covariance = problem.covariance(predicted, jacobian) * np.outer(units, units)
    judged = tuple(
        EvaluatedFigure(
            name=figure.name,
            measured=figure.value,
            before=float(np.exp(first)),
            after=float(np.exp(last)),
            off=float(away),
            weight=float(weight),
        )
        for figure, first, last, away, weight in zip(
            chosen, before[kept], predicted, off, weights, strict=True
        )
    )
    return Posterior(mean=theta * units, covariance=covariance, judged=judged, jacobian=jacobian / units)


def derivatives(predict: Predict, theta: Vector, at: Vector, steps: Vector, active: Sequence[int]) -> Matrix:
    """Return forward-difference derivatives d predict / d theta (0 where not finite); `at` is predict(theta)."""
    columns = np.zeros((len(at), len(theta)))
    for i in active:
        moved = theta.copy()
        moved[i] += steps[i]
        slope = (predict(moved) - at) / steps[i]
        columns[:, i] = np.where(np.isfinite(slope), slope, 0.0)
    return columns


def calibrated_covariance(covariance: Matrix, slopes: Matrix, noise: Matrix) -> Matrix:
    """Return theta's covariance after measurements with derivatives `slopes` and error covariance `noise`."""
    units = np.sqrt(np.diag(covariance))
    scaled = slopes * units
    precision = symmetric_inverse(covariance / np.outer(units, units)) + scaled.T @ np.linalg.solve(
        noise, scaled
    )
    return np.asarray(symmetric_inverse(precision) * np.outer(units, units))


def symmetric_inverse(matrix: Matrix) -> Matrix:
    """Return the inverse of a symmetric matrix, exactly symmetric."""
    found = np.linalg.inv(matrix)
    return np.asarray((found + found.T) / 2, dtype=np.float64)


def noise_covariance(figures: Sequence[MeasuredFigure]) -> Matrix:
    """Return the covariance matrix of ln(measured / predicted) of the measurements if theta were known exactly."""
    deviations = np.array([figure.deviation for figure in figures])
    same_group = np.array([[a.shared == b.shared for b in figures] for a in figures])
    return np.outer(deviations, deviations) * np.where(
        np.eye(len(figures), dtype=bool), 1.0, SHARED_VARIANCE * same_group
    )


def student_weights(off: Vector) -> Vector:
    """Return the Student's t weight of each residual (`off`, in standard deviations); a residual of 0 has weight 1."""
    return DEGREES / (DEGREES + np.square(off))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """The minimisation problem: misfit of the measurements plus distance from the prior, with theta in units of the
    prior's standard deviations."""

    predict: Predict
    measured: Vector
    noise: Matrix
    prior_mean: Vector
    prior_precision: Matrix
    active: tuple[int, ...]

    def jacobian(self, theta: Vector, at: Vector) -> Matrix:
        return derivatives(self.predict, theta, at, np.full(len(theta), DIFFERENCE), self.active)

    def whiten(self, residuals: Matrix | Vector) -> Any:
        """Return residuals, or their derivatives, scaled by their standard deviations and decorrelated."""
        return np.linalg.solve(np.linalg.cholesky(self.noise), residuals)

    def covariance(self, predicted: Vector, jacobian: Matrix) -> Matrix:
        """Return the covariance of theta at the point that has this prediction and this jacobian."""
        slopes = self.whiten(jacobian)
        weights = student_weights(self.whiten(self.measured - predicted))
        return symmetric_inverse((slopes.T * weights) @ slopes + self.prior_precision)

    def loss(self, theta: Vector, predicted: Vector) -> float:
        """Return the negative logarithm of the posterior, up to a constant."""
        if not np.all(np.isfinite(predicted)):
            return float("inf")
        squares = np.square(self.whiten(self.measured - predicted))
        away = theta - self.prior_mean
        return float(DEGREES / 2 * np.log1p(squares / DEGREES).sum() + away @ self.prior_precision @ away / 2)

    def mode(self, predicted: Vector) -> tuple[Vector, Vector, Matrix]:
        """Return the theta with the highest posterior density, its prediction, and the derivatives at theta.

        `predicted` is the prediction at the prior's mean.
        """
        theta = self.prior_mean.copy()
        jacobian, is_current = self.jacobian(theta, predicted), True
        for _ in range(STEPS):
            off, slopes = self.whiten(self.measured - predicted), self.whiten(jacobian)
            weighted = slopes.T * student_weights(off)
            around = symmetric_inverse(weighted @ slopes + self.prior_precision)
            step = around @ (weighted @ off - self.prior_precision @ (theta - self.prior_mean))
            is_long = np.sqrt(step @ np.linalg.solve(around, step)) >= CONVERGED
            found = self._descend(theta, predicted, step, HALVINGS if is_current else 1) if is_long else None
            if found is not None:
                (theta, predicted), is_current = found, False
            elif is_current:
                break
            else:
                jacobian, is_current = self.jacobian(theta, predicted), True
        return theta, predicted, jacobian if is_current else self.jacobian(theta, predicted)

    def _descend(
        self, theta: Vector, predicted: Vector, step: Vector, halvings: int
    ) -> tuple[Vector, Vector] | None:
        """Try the whole step, its half, its quarter, ...; return the first theta that reduces the loss, or None."""
        now = self.loss(theta, predicted)
        for halving in range(halvings):
            moved = theta + step / 2**halving
            there = self.predict(moved)
            if self.loss(moved, there) < now:
                return moved, there
        return None
