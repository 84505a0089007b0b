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


@pytest.mark.parametrize(("gpus", "largest"), [(("mi300x", "mi325x"), 0.12), (("mi355x",), 0.2)])
def test_log_errors_tpot_at_the_median_of_sources_is_small(
    fit_chip_share: Any, gpus: tuple[str, ...], largest: float
) -> None:
    table = pd.read_csv(fit_chip_share.ROWS)
    rows = table[table["gpu"].isin(gpus) & (table["concurrency"] <= CHEAP)]
    errors = pd.Series([fit_chip_share.log_errors(row, None)[0] for row in rows.itertuples()])
    by_source = errors.groupby(rows["source"].to_numpy()).median()
    assert abs(median(by_source)) < largest
    assert by_source.abs().max() < 0.5


def test_rows_served_amd_have_a_source_a_date_and_a_release(fit_chip_share: Any) -> None:
    table = pd.read_csv(fit_chip_share.ROWS)
    assert table[["source", "date", "engine", "gpu", "model"]].notna().all(axis=None)
    assert table["engine"].str.contains("@").all()
