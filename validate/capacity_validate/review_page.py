"""What measurement files say of a profile, on one page to print: errors, charts, constants, and what was left alone."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from capacity.base.html import table_html
from capacity.report.display import shown
from capacity.report.sheet import Sheet
from capacity_validate.figures import errors_chart, parity_chart

if TYPE_CHECKING:
    from capacity_validate.review import Review

QUESTION = "How far off are predictions of this device?"
CLASSES = (
    "class",
    "cases",
    "held out",
    "median error before",
    "p90 before",
    "median error after",
    "p90 after",
)


def review_html(review: Review, *, python: str | None = None, made: date | None = None) -> str:
    """The page, one file of HTML that needs nothing else; `python` asks the same again."""
    return Sheet(
        question=QUESTION,
        subject=f"{review.device}, profile {review.profile}",
        answer=_answer(review),
        charts=[chart for chart in (parity_chart(review), errors_chart(review)) if chart.rows],
        more=(("The profile as it is, and calibrated", _constants(review)),),
        assumptions=[
            "Errors of a class with cases that are held out are of those, which the fit did not see; of any other, of "
            "all its cases.",
            *(f"{family}: not changed: {reason}" for family, reason in review.refused.items()),
            *review.remarks,
        ],
        sources=[f"measurements: {Path(file).name}" for file in review.files],
        asked=[("In Python", python)] if python else [],
    ).html(made)


def _answer(review: Review) -> str:
    """Every class of kernels, before and after."""
    rows = [
        (
            each.family,
            f"{each.cases:,}",
            f"{each.held_out:,}",
            *(
                shown(error, ".1%")
                for error in (
                    each.before_median,
                    each.before_p90,
                    each.after_median,
                    each.after_p90,
                )
            ),
        )
        for each in review.classes
    ]
    return table_html(CLASSES, rows)


def _constants(review: Review) -> str:
    """What calibration moved; empty where it moved nothing."""
    rows = [(row.family, row.name, f"{row.before:.4g}", f"{row.after:.4g}") for row in review.constants]
    return table_html(("family", "constant", "profile", "calibrated"), rows) if rows else ""
