"""The one way from a record to text: a table, JSON without infinities, CSV of its rows."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from capacity.base.record import AnswerRecord
from capacity.report.tables import null_infinities, render, render_listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    value: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(AnswerRecord):
    SCHEMA: ClassVar[str] = "capacity/made-up/v1"

    total: float
    rows: tuple[Row, ...] = ()


ROWS = (Row(value=1.5, name="a, b"), Row(value=math.inf, name="c"))


def test_infinite_numbers_are_null_however_deep() -> None:
    assert null_infinities({"a": [1.0, float("inf")], "b": (-math.inf, "inf"), "c": True}) == {
        "a": [1.0, None],
        "b": [None, "inf"],
        "c": True,
    }
    written = json.loads(render(Answer(total=float("-inf"), rows=ROWS), "json"))
    assert written["total"] is None
    assert [row["value"] for row in written["rows"]] == [1.5, None]


def test_csv_is_of_the_rows_or_of_the_record_where_it_has_none() -> None:
    lines = list(csv.DictReader(io.StringIO(render(Answer(total=2.0, rows=ROWS), "csv"))))
    assert [line["name"] for line in lines] == ["a, b", "c"]
    (line,) = csv.DictReader(io.StringIO(render(Answer(total=2.0), "csv")))
    assert (line["schema"], line["total"]) == ("capacity/made-up/v1", "2.0")


def test_a_table_is_that_of_the_schemas_name_or_one_that_is_handed_in() -> None:
    """A record that has no table of its own is told field by field."""
    answer = Answer(total=2.0)
    assert render(answer, "table").split()[:2] == ["total:", "2.0"]
    assert render(answer, "table", tables=lambda each: [f"total {each.total}"]).strip() == "total 2.0"


def test_a_listing_has_a_dash_where_a_record_has_no_value() -> None:
    rows = [{"name": "m", "total_params": 8e9, "active_params": None}]
    lines = [line.split() for line in render_listing(rows, "table", title="Models").splitlines()]
    assert lines[-1] == ["m", "8", "-", "-"]
    assert json.loads(render_listing(rows, "json", title="Models")) == rows


def test_what_is_no_number_is_refused_and_not_taken_for_an_absent_value() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json.dumps(null_infinities({"rate": math.nan}), allow_nan=False)
