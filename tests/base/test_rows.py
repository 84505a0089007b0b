"""Records as rows of text: what a spreadsheet may run is guarded."""

from __future__ import annotations

import csv
import io

import pytest

from capacity.base.rows import flatten, guarded_cell, to_csv


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_formula_cells_are_guarded(text: str) -> None:
    assert guarded_cell(text) == "'" + text
    assert guarded_cell("plain") == "plain"


def test_nested_records_are_dotted_names_and_read_back_from_csv() -> None:
    rows = [{"a": {"b": {"c": 1}}, "d": (1, 2)}, {"d": [], "e": "=1+1"}]
    flat = [flatten(row) for row in rows]
    assert flat[0] == {"a.b.c": 1, "d": "[1, 2]"}
    table = list(csv.DictReader(io.StringIO(to_csv(flat))))
    assert table == [{"a.b.c": "1", "d": "[1, 2]", "e": ""}, {"a.b.c": "", "d": "[]", "e": "'=1+1"}]
