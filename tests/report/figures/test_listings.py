"""What is known, as rows: units as asked for, a source for every value, prices in order."""

from __future__ import annotations

import pytest

from capacity.answers.listings import gpus, models
from capacity.hardware import load_profile
from capacity.report.display import Units
from capacity.report.figures.listings import GPUS, MODELS, price_rows, source_rows
from capacity.report.views.layout import table_records
from capacity.report.views.view import Table


def test_memory_is_in_the_unit_asked_for() -> None:
    records = gpus()
    table = Table("", records, GPUS)
    gib, gb = table_records(table), table_records(table, Units(memory="GB"))
    assert len(gib) == len(records)
    for row, other, record in zip(gib, gb, records, strict=True):
        assert row["GiB"] * 2**30 == pytest.approx(record["memory_bytes"], rel=1e-4)
        assert other["GB"] * 1e9 == pytest.approx(record["memory_bytes"], rel=1e-4)
        assert {*row} - {"GiB"} == {*other} - {"GB"}


def test_every_model_and_every_value_of_a_profile_is_there() -> None:
    assert [row["name"] for row in table_records(Table("", models(), MODELS))] == [
        record["name"] for record in models()
    ]
    profile = load_profile("h100")
    sources = source_rows(profile)
    assert len(sources) == len(profile.provenance)
    assert all(row["source"] and row["basis"] for row in sources)


def test_prices_are_of_one_gpu_cheapest_first() -> None:
    prices = [row["usd_per_gpu_hour"] for row in price_rows("h100-sxm-80gb")]
    assert prices == sorted(prices)
    assert prices
    assert price_rows("no such gpu") == []
