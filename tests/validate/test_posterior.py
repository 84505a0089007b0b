"""Inference: the closed form where all is linear, stated errors that hold, contradictions that are not absorbed."""

from collections.abc import Sequence

import numpy as np
import pytest
from capacity_validate.posterior import (
    CONTRADICTS,
    SHARED_VARIANCE,
    MeasuredFigure,
    Vector,
    infer,
    noise_covariance,
    student_weights,
)
from capacity_validate.replaying import calibration_prior, make_adjustment

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.hardware.adjustment import NAMES
from capacity.pool.resolve import resolve
from capacity.step.shape import decode_shape

SLOPES = np.array([[1.0, 0.2], [0.3, 1.0], [0.6, 0.6]])
PRIOR = np.diag([0.2**2, 0.1**2])


def linear(theta: Vector) -> Vector:
    return SLOPES @ theta


def figures(values: Vector, deviation: float = 0.05) -> list[MeasuredFigure]:
    return [
        MeasuredFigure(name=f"figure {i}", value=float(np.exp(value)), deviation=deviation, shared=str(i))
        for i, value in enumerate(values)
    ]


def test_of_linear_predictions_that_agree_it_is_the_closed_form() -> None:
    truth = np.array([0.01, -0.005])  # small, so that the weights of Student's t are 1
    found = infer(linear, figures(linear(truth)), np.zeros(2), PRIOR)
    precision = SLOPES.T @ SLOPES / 0.05**2 + np.linalg.inv(PRIOR)
    mean = np.linalg.solve(precision, SLOPES.T @ linear(truth) / 0.05**2)
    assert found.mean == pytest.approx(mean, abs=2e-4)
    assert found.covariance == pytest.approx(np.linalg.inv(precision), rel=2e-2)


def test_planted_parameters_lie_within_the_stated_error_as_often_as_stated() -> None:
    rng = np.random.default_rng(7)
    squares = []
    for _ in range(200):
        truth = rng.multivariate_normal(np.zeros(2), PRIOR)
        measured = linear(truth) + rng.normal(0.0, 0.05, 3)
        found = infer(linear, figures(measured), np.zeros(2), PRIOR)
        off = truth - found.mean
        squares.append(off @ np.linalg.solve(found.covariance, off))
    within = np.mean(np.array(squares) < 4.605)  # 90 % of a chi-square of two degrees
    assert 0.84 < within < 0.97  # 200 draws: three standard errors are 6 %


def test_a_few_weak_figures_hardly_move_what_is_known() -> None:
    found = infer(linear, figures(np.array([0.3, 0.3, 0.3]), deviation=2.0), np.zeros(2), PRIOR)
    assert np.abs(found.mean).max() < 0.01
    assert np.sqrt(np.diag(found.covariance)) == pytest.approx([0.2, 0.1], rel=0.02)


def test_what_is_seen_only_together_stays_correlated() -> None:
    both = np.array([[1.0, 1.0]])
    found = infer(lambda theta: both @ theta, figures(np.array([0.1]), 0.01), np.zeros(2), PRIOR)
    correlation = found.covariance[0, 1] / np.sqrt(found.covariance[0, 0] * found.covariance[1, 1])
    assert correlation < -0.9
    assert both @ found.mean == pytest.approx([0.1], abs=2e-3)


def test_a_figure_that_contradicts_the_others_is_named_and_not_absorbed() -> None:
    truth = np.array([0.05, 0.02])
    values = linear(truth)
    without = infer(linear, figures(values), np.zeros(2), PRIOR)
    values[2] += np.log(3.0)
    found = infer(linear, figures(values), np.zeros(2), PRIOR)
    assert [judged.contradicts for judged in found.judged] == [False, False, True]
    assert found.judged[2].weight < 0.05
    assert abs(found.judged[2].off) > CONTRADICTS
    assert found.mean == pytest.approx(without.mean, abs=0.03)  # absorbed it would be 0.3


def test_predictions_that_bend_are_followed_to_their_mode() -> None:
    def bending(theta: Vector) -> Vector:
        return np.log(np.array([np.exp(theta[0]) + 0.5, 0.2 + np.exp(theta[0] + theta[1])]))

    truth = np.array([0.25, -0.08])
    found = infer(bending, figures(bending(truth), 0.005), np.zeros(2), PRIOR)
    assert bending(found.mean) == pytest.approx(bending(truth), abs=0.005)


def test_percentiles_of_one_run_share_their_errors() -> None:
    alike = [MeasuredFigure(name=name, value=1.0, deviation=0.1, shared="ttft") for name in ("p90", "p99")]
    other = MeasuredFigure(name="tpot", value=1.0, deviation=0.2, shared="tpot")
    noise = noise_covariance([*alike, other])
    assert noise[0, 1] == pytest.approx(SHARED_VARIANCE * 0.01)
    assert noise[0, 2] == 0.0
    assert noise[2, 2] == pytest.approx(0.04)


def test_what_cannot_be_predicted_is_left_out_and_nothing_at_all_is_refused() -> None:
    def partly(theta: Vector) -> Vector:
        return np.array([theta[0], np.nan])

    found = infer(partly, figures(np.array([0.1, 0.1])), np.zeros(2), PRIOR)
    assert [judged.name for judged in found.judged] == ["figure 0"]
    with pytest.raises(InvalidInput, match="none of the measurements can be predicted"):
        infer(lambda _: np.full(1, np.nan), figures(np.array([0.1])), np.zeros(2), PRIOR)


def test_weights_fall_as_the_inverse_square_far_off() -> None:
    near, far, farther = student_weights(np.array([0.0, 20.0, 40.0]))
    assert near == 1.0
    assert far / farther == pytest.approx(4.0, rel=0.05)


def test_steps_of_few_and_of_many_tokens_tell_a_tilt_of_experts_from_a_factor() -> None:
    """Planted: experts 20 % slower, and as much again for eight times the tokens. Of other numbers it predicts both."""
    pool = resolve("qwen3-30b-a3b", Pool(gpu="h100"))
    planted = np.zeros(len(NAMES))
    planted[[NAMES.index("experts"), NAMES.index("experts_tilt")]] = 0.2, 0.1

    def seconds(theta: Vector, sequences: Sequence[int]) -> Vector:
        model = pool.adjusted_by(make_adjustment(theta)).step_model
        return np.log([model.step_seconds(decode_shape(each, 1000)) for each in sequences])

    learnt, others = (8, 96), (16, 48, 192)
    figures = [
        MeasuredFigure(name=str(each), value=float(np.exp(value)), deviation=0.01, shared=str(each))
        for each, value in zip(learnt, seconds(planted, learnt), strict=True)
    ]
    known = calibration_prior(pool).covariance_matrix
    active = [NAMES.index(name) for name in ("memory", "experts", "experts_tilt")]
    found = infer(lambda theta: seconds(theta, learnt), figures, np.zeros(len(NAMES)), known, active=active)
    off = np.abs(seconds(found.mean, others) - seconds(planted, others))
    assert off.max() < 0.02 < np.abs(seconds(np.zeros(len(NAMES)), others) - seconds(planted, others)).max()
    tilt = NAMES.index("experts_tilt")
    assert found.mean[tilt] == pytest.approx(0.1, abs=0.03)
    assert found.covariance[tilt, tilt] < 0.3 * known[tilt, tilt]
