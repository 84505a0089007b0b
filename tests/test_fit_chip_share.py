"""Served means on chips without kernel tables: what the fitted share leaves of the errors."""

from __future__ import annotations

import importlib
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest

CHEAP = 8  # requests in flight


@pytest.fixture
def fit_chip_share(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("fit_chip_share")


def test_log_errors_tpot_at_the_median_of_sources_is_small(fit_chip_share: Any) -> None:
    table = pd.read_csv(fit_chip_share.ROWS)
    rows = table[table["concurrency"] <= CHEAP]
    errors = pd.Series([fit_chip_share.log_errors(row, None)[0] for row in rows.itertuples()])
    by_source = errors.groupby(rows["source"].to_numpy()).median()
    assert abs(median(by_source)) < 0.12
    assert by_source.abs().max() < 0.5


def test_error_factors_ttft_counts_the_bias_that_no_constant_removes(fit_chip_share: Any) -> None:
    tpot, ttft = fit_chip_share.error_factors([0.1, -0.1, 0.05, -0.05], [0.5, 0.5, 0.5, 0.5])
    assert 1.2 < tpot < 1.4
    assert ttft == pytest.approx(2.9, abs=0.1)  # exp(0.5 x t of 4)


def test_assumed_factors_of_an_unfitted_chip_are_at_least_the_fitted_chips(fit_chip_share: Any) -> None:
    found = {"error_factor": 1.2, "ttft_error_factor": 3.0}
    assert fit_chip_share.assumed_factors("mi355x-288gb", found) == {
        "error_factor": 1.5,
        "ttft_error_factor": 3.0,
    }


def test_rows_served_amd_have_a_source_a_date_and_a_release(fit_chip_share: Any) -> None:
    table = pd.read_csv(fit_chip_share.ROWS)
    assert table[["source", "date", "engine", "gpu", "model"]].notna().all(axis=None)
    assert table["engine"].str.contains("@").all()
