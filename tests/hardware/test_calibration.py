"""Fitting: recovers what made the data, is not led by outliers, and says what it does not know."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from capacity.base.errors import OutsideValidity
from capacity.hardware.calibration import (
    Constants,
    Measurement,
    Objective,
    Parameter,
    fit_constants,
    summarise_errors,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from pooled_fits import cross_validate, fit_pool, fold_of, group_quantile

PARAMETERS = (
    Parameter(name="fixed_s", start=1e-5, low=1e-8, high=1e-3),
    Parameter(name="per_byte_s", start=1e-11, low=1e-14, high=1e-8),
)
TRUTH = {"fixed_s": 5e-6, "per_byte_s": 4e-13}


def line(constants: Constants, row: float) -> float:
    return constants["fixed_s"] + constants["per_byte_s"] * row


def table(
    rows: int = 60, *, noise: float = 0.0, seed: int = 0, scale: float = 1.0
) -> list[Measurement[float]]:
    rng = np.random.default_rng(seed)
    sizes = np.logspace(3, 9, rows)
    return [
        Measurement(
            row=size, seconds=scale * line(TRUTH, size) * math.exp(noise * rng.normal()), group=i // 3
        )
        for i, size in enumerate(sizes)
    ]


def test_exact_data_gives_back_the_constants_that_made_them() -> None:
    assert fit_constants(line, table(), PARAMETERS) == pytest.approx(TRUTH, rel=1e-3)


def test_the_objective_is_least_at_the_fit() -> None:
    rows = table(noise=0.05)
    fitted = fit_constants(line, rows, PARAMETERS)
    objective = Objective(predict=line, measurements=rows, parameters=PARAMETERS)
    for name in fitted:
        for factor in (0.98, 1.02):
            assert objective.value({**fitted, name: fitted[name] * factor}) > objective.value(fitted)


def test_the_objective_counts_the_pull_towards_the_pool() -> None:
    spread = tuple(
        Parameter(name=p.name, start=p.start, low=p.low, high=p.high, spread=0.5) for p in PARAMETERS
    )
    objective = Objective(predict=line, measurements=table(), parameters=spread, centre=TRUTH)
    assert objective.value(TRUTH) == pytest.approx(0.0)
    assert objective.residuals({**TRUTH, "fixed_s": 2 * TRUTH["fixed_s"]})[-2] == pytest.approx(
        0.1 / 0.5 * math.log(2)
    )


def test_noise_is_averaged_out_and_outliers_hardly_count() -> None:
    rows = table(noise=0.05)
    spoiled = [
        Measurement(row=m.row, seconds=m.seconds * (20 if i % 12 == 0 else 1), group=m.group)
        for i, m in enumerate(rows)
    ]
    assert fit_constants(line, spoiled, PARAMETERS) == pytest.approx(TRUTH, rel=0.1)


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(OutsideValidity, match="too few to fit 2 constants"):
        fit_constants(line, table(3), PARAMETERS)


def test_held_out_errors_are_the_noise() -> None:
    pairs = cross_validate(line, {"t": table(noise=0.1)}, PARAMETERS)["t"]
    assert len(pairs) == 60
    errors = summarise_errors(pairs)
    # |N(0, 0.1)| has median 0.067; 60 rows leave a third of play.
    assert 0.04 < errors.median < 0.1
    assert abs(errors.bias) < 0.05


def test_cross_validation_predicts_each_group_without_having_seen_it() -> None:
    odd = [m if m.group != 7 else Measurement(row=m.row, seconds=3 * m.seconds, group=7) for m in table()]
    pairs = cross_validate(line, {"t": odd}, PARAMETERS)["t"]
    assert sorted(measured for _, measured in pairs) == sorted(m.seconds for m in odd)
    tripled = {m.seconds for m in odd if m.group == 7}
    for predicted, measured in pairs:
        if measured in tripled:
            assert predicted == pytest.approx(measured / 3, rel=1e-3)


def test_folds_follow_the_group_and_never_change() -> None:
    assert fold_of((1, 2), 5) == fold_of((1, 2), 5)
    assert [fold_of(i, 5) for i in range(6)] == [fold_of(i, 5) for i in range(6)]


def test_a_pool_lends_its_constants_to_a_small_table() -> None:
    spread = tuple(
        Parameter(name=p.name, start=p.start, low=p.low, high=p.high, spread=0.1) for p in PARAMETERS
    )
    small = [m for m in table(60, noise=0.05, seed=3, scale=1.1) if m.group in (0, 1)]  # small messages only
    with pytest.raises(OutsideValidity):
        fit_constants(line, small[:3], PARAMETERS)
    fits = fit_pool(line, {"large": table(noise=0.02), "small": small}, spread)
    assert fits["small"].constants["per_byte_s"] == pytest.approx(TRUTH["per_byte_s"], rel=0.2)
    assert fits["small"].constants["fixed_s"] == pytest.approx(1.1 * TRUTH["fixed_s"], rel=0.08)


def test_a_pull_towards_the_pool_is_weaker_than_the_tables_own_rows() -> None:
    spread = tuple(
        Parameter(name=p.name, start=p.start, low=p.low, high=p.high, spread=0.5) for p in PARAMETERS
    )
    fits = fit_pool(line, {"a": table(), "b": table(scale=2.0)}, spread)
    assert fits["b"].constants == pytest.approx({k: 2 * v for k, v in TRUTH.items()}, rel=0.02)


def test_summaries_count_what_they_say() -> None:
    errors = summarise_errors([(1.1, 1.0), (0.9, 1.0), (1.0, 1.0)])
    assert errors.rows == 3
    assert errors.median == pytest.approx(0.1)
    assert errors.bias == pytest.approx(0.0)
    assert errors.quantile(0.0) == pytest.approx(1 / 1.1 - 1)
    with pytest.raises(OutsideValidity):
        summarise_errors([])


def test_a_group_of_many_rows_weighs_as_much_as_one_of_few() -> None:
    rows = [("many", 1.0)] * 98 + [("few", 2.0)] * 2
    assert group_quantile(rows, 0.4) == 1.0
    assert group_quantile(rows, 0.6) == 2.0
    with pytest.raises(OutsideValidity):
        group_quantile([], 0.5)
