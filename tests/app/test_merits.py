"""What figures mean: in words before formulas, for every figure of every page."""

from __future__ import annotations

import re

from capacity_app.merits import MEANINGS, meaning


def test_the_sense_comes_before_the_formula() -> None:
    for label, text in MEANINGS.items():
        first = re.split(r"[.:] ", text)[0]
        assert first[0].isupper(), label
        assert "(" not in first, label
        assert len(text) < 300, label


def test_a_label_that_goes_on_has_the_meaning_of_its_beginning() -> None:
    assert meaning("Times as fast at batch 8") == MEANINGS["Times as fast"]
    assert meaning("Error, attention") == MEANINGS["Error"]
    assert meaning("TTFTs") is None
