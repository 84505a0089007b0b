"""The page to print of measurement files holds what the review holds, by the files' names alone."""

from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from capacity_validate.review import review, review_html

MEASUREMENTS = sorted((Path(__file__).parents[2] / "validate" / "measurements").glob("*.jsonl"))


@pytest.mark.skipif(not MEASUREMENTS, reason="no evidence in this checkout")
def test_the_page_holds_errors_charts_constants_and_what_was_not_changed() -> None:
    found = review([MEASUREMENTS[0]])
    page = review_html(found, python="review(['<a>'])")
    assert page.count("<svg") == 2
    for each in found.classes:
        assert f"<td>{escape(each.family)}</td>" in page
        if each.after_median is not None:
            assert f">{each.before_median:.1%}</td>" in page
            assert f">{each.after_median:.1%}</td>" in page
    for row in found.constants:
        assert f"<td>{row.name}</td><td>{row.before:.4g}</td><td>{row.after:.4g}</td>" in page
    for family, reason in found.refused.items():
        assert escape(f"{family}: not changed: {reason}") in page
    assert "review([&#x27;&lt;a&gt;&#x27;])" in page
    assert f"measurements: {MEASUREMENTS[0].name}" in page
    assert str(MEASUREMENTS[0].parent) not in page
    bare = review_html(replace(found, constants=(), device="<b>"))
    assert "The profile before and after" not in bare
    assert "<b>" not in bare
