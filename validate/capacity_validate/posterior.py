"""Bayesian inference of a few parameters from a few measurements: Gauss-Newton and a Laplace approximation.

The prior is normal. Logarithms of measurements scatter around their predictions as Student's t with 4 degrees of
freedom: close to normal for consistent figures, with tails that reduce the effect of a contradicting one. Each
prediction replays whole runs, so predictions are evaluated at about a dozen values of theta only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from capacity.base.errors import InvalidInput
from capacity.base.record import NOT_WRITTEN, WrittenRecord

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Predict = Callable[[Vector], Vector]
"Returns the predicted logarithms of all figures for theta; NaN if a figure cannot be predicted."

DEGREES = 4.0  # degrees of freedom of Student's t
CONTRADICTS = 4.0  # in standard deviations from the prediction
STEPS = 12
HALVINGS = 4
CONVERGED = 0.02  # a smaller step, in posterior standard deviations, ends the search
DIFFERENCE = 0.5  # step of derivatives in prior standard deviations; large because runs are discrete


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFigure:
    """One measured figure: `value` above 0, the `deviation` of its logarithm, and a key for shared errors.

    Figures of equal `shared` (the percentiles of one metric of one run) have `SHARED` of their variance in common.
    """

    name: str
    value: float
    deviation: float
    shared: str


SHARED_VARIANCE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedFigure(WrittenRecord):
    """A measured figure in its own unit, with its prediction before and after, and its weight in the fit.

    `surprise`: distance from the prior prediction in standard deviations; `off`: distance from the posterior
    prediction; `weight`: 1, or less if it is far off after the fit.
    """

    LAST: ClassVar[tuple[str, ...]] = ("contradicts",)

    name: str
    measured: float
    before: float
    after: float
    surprise: float = field(metadata=NOT_WRITTEN)
    off: float
    weight: float

    @property
    def contradicts(self) -> bool:
        """Return whether no likely value of the parameters explains the figure."""
        return abs(self.off) > CONTRADICTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The mode of theta and the covariance around it."""

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
    """Return the posterior of theta. Only `active` parameters can affect a figure; the others keep their prior.

    Figures that cannot be predicted at the prior's mean are left out. Raises InvalidInput if none remains.
    """
    before = predict(prior_mean)
    kept = [i for i, value in enumerate(before) if np.isfinite(value)]
    if not kept:
        raise InvalidInput("none of the measured figures can be predicted, so nothing can be calibrated")
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
    start = problem.jacobian(problem.prior_mean, before[kept])
    known = start @ symmetric_inverse(problem.prior_precision) @ start.T + problem.noise
    surprise = (problem.measured - before[kept]) / np.sqrt(np.diag(known))
    theta, predicted, jacobian = problem.mode(before[kept], start)
    off = (problem.measured - predicted) / np.sqrt(np.diag(problem.noise))
    weights = student_weights(off)
    covariance = problem.covariance(predicted, jacobian) * np.outer(units, units)
    judged = tuple(
        EvaluatedFigure(
            name=figure.name,
            measured=figure.value,
            before=float(np.exp(first)),
            after=float(np.exp(last)),
            surprise=float(beforehand),
            off=float(away),
            weight=float(weight),
        )
        for figure, first, last, beforehand, away, weight in zip(
            chosen, before[kept], predicted, surprise, off, weights, strict=True
        )
    )
    return Posterior(mean=theta * units, covariance=covariance, judged=judged, jacobian=jacobian / units)


def derivatives(predict: Predict, theta: Vector, at: Vector, steps: Vector, active: Sequence[int]) -> Matrix:
    """Return one-sided differences from `at`, the prediction for theta; 0 if a difference is not finite."""
    columns = np.zeros((len(at), len(theta)))
    for i in active:
        moved = theta.copy()
        moved[i] += steps[i]
        slope = (predict(moved) - at) / steps[i]
        columns[:, i] = np.where(np.isfinite(slope), slope, 0.0)
    return columns


def calibrated_covariance(covariance: Matrix, slopes: Matrix, noise: Matrix) -> Matrix:
    """Return the covariance of theta given figures with these derivatives and this noise, for any values."""
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
    """Return the covariance of the figures' logarithms around the prediction of the true theta."""
    deviations = np.array([figure.deviation for figure in figures])
    alike = np.array([[a.shared == b.shared for b in figures] for a in figures])
    return np.outer(deviations, deviations) * np.where(
        np.eye(len(figures), dtype=bool), 1.0, SHARED_VARIANCE * alike
    )


def student_weights(off: Vector) -> Vector:
    """Return Student's t weights of residuals in standard deviations; 1 for a residual of 0."""
    return DEGREES / (DEGREES + np.square(off))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """The objective: squared residuals and distance from the prior; theta is in the prior's standard deviations."""

    predict: Predict
    measured: Vector
    noise: Matrix
    prior_mean: Vector
    prior_precision: Matrix
    active: tuple[int, ...]

    def jacobian(self, theta: Vector, at: Vector) -> Matrix:
        return derivatives(self.predict, theta, at, np.full(len(theta), DIFFERENCE), self.active)

    def whiten(self, residuals: Matrix | Vector) -> Any:
        """Return residuals, or their derivatives, in standard deviations, with their common part removed."""
        return np.linalg.solve(np.linalg.cholesky(self.noise), residuals)

    def covariance(self, predicted: Vector, jacobian: Matrix) -> Matrix:
        """Return the covariance of theta around the point with this prediction."""
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

    def mode(self, predicted: Vector, jacobian: Matrix) -> tuple[Vector, Vector, Matrix]:
        """Return the theta of highest posterior, its prediction, and the derivatives there."""
        theta = self.prior_mean.copy()
        for _ in range(STEPS):
            off, slopes = self.whiten(self.measured - predicted), self.whiten(jacobian)
            weighted = slopes.T * student_weights(off)
            around = symmetric_inverse(weighted @ slopes + self.prior_precision)
            step = around @ (weighted @ off - self.prior_precision @ (theta - self.prior_mean))
            if np.sqrt(step @ np.linalg.solve(around, step)) < CONVERGED:
                break
            found = self._descend(theta, predicted, step)
            if found is None:
                break
            theta, predicted = found
            jacobian = self.jacobian(theta, predicted)
        return theta, predicted, jacobian

    def _descend(self, theta: Vector, predicted: Vector, step: Vector) -> tuple[Vector, Vector] | None:
        """Try the step, its half, its quarter, ..., and return the first that reduces the loss; None if none does."""
        now = self.loss(theta, predicted)
        for halving in range(HALVINGS):
            moved = theta + step / 2**halving
            there = self.predict(moved)
            if self.loss(moved, there) < now:
                return moved, there
        return None
