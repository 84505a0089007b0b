"""Records as rows of text: what a spreadsheet may run is guarded."""

from __future__ import annotations

import pytest

from capacity.base.rows import guarded_cell


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_formula_cells_are_guarded(text: str) -> None:
    assert guarded_cell(text) == "'" + text
    assert guarded_cell("plain") == "plain"
