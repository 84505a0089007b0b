"""Served means on chips without kernel tables: what the fitted share leaves of the errors."""

from __future__ import annotations

import importlib
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest
from long_forms import mostly_ci
from test_served_accuracy import page_table

CHEAP = 8  # requests in flight
HEADING = "served means on other chips | sources | rows | TPOT | TTFT"
CHEAP_GROUPS = (
    "AMD MI300X, MI325X, judged",
    "AWS Trainium2, fitted",
    "AWS Trainium2, judged",
)


def vendor_lines() -> dict[str, list[str]]:
    """Cells of the page's table by vendor and use."""
    return page_table(HEADING)


@pytest.fixture
def fit_chip_share(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("fit_chip_share")


def test_log_errors_tpot_at_the_median_of_sources_is_small(fit_chip_share: Any) -> None:
    table = pd.read_csv(fit_chip_share.ROWS)
    rows = table[
        (table["concurrency"] <= CHEAP) & (table["used_for"] == "fitted") & (table["gpu"] != "trainium2")
    ]
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


def test_rows_of_served_chips_have_a_source_a_date_and_a_release(fit_chip_share: Any) -> None:
    table = pd.read_csv(fit_chip_share.ROWS)
    assert table[["source", "date", "used_for", "engine", "gpu", "model"]].notna().all(axis=None)
    assert table[["mean_tpot_ms", "output_tok_s"]].notna().sum(axis=1).eq(1).all()
    assert set(table["used_for"]) == {"fitted", "chosen by", "judged"}
    assert table.groupby("source")["used_for"].nunique().eq(1).all()
    assert table["engine"].str.contains("@").all()


@pytest.mark.parametrize("label", mostly_ci(vendor_lines(), CHEAP_GROUPS))
def test_table_of_vendors_is_as_the_accuracy_page_says(fit_chip_share: Any, label: str) -> None:
    rows = fit_chip_share.table_groups(pd.read_csv(fit_chip_share.ROWS))[label]
    assert fit_chip_share.table_cells(rows) == vendor_lines()[label]


def test_table_of_vendors_has_every_group_of_rows(fit_chip_share: Any) -> None:
    assert set(vendor_lines()) == set(fit_chip_share.table_groups(pd.read_csv(fit_chip_share.ROWS)))
