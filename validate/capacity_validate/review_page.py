"""What measurement files say of a profile, on one page to print: errors, charts, constants, and what was left alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from capacity.base.html import records_html, table_html
from capacity.report.display import STANDARD, Units, shown
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout, listed, log_axis, symbol
from capacity.report.sheet import Sheet

if TYPE_CHECKING:
    from capacity_validate.report_data import CaseRow, ClassErrors
    from capacity_validate.review import Review

SIDES = (("profile as it is", "before_s"), ("calibrated on the other half", "after_s"))


def parity_chart(cases: Sequence[CaseRow], device: str, units: Units = STANDARD) -> Chart:
    """Predicted against measured time of each case: held-out ones where a fit was made, else all."""
    import plotly.graph_objects as go

    held_out = [row for row in cases if row.role == "held out"]
    rows = held_out or list(cases)
    figure = go.Figure()
    for index, (name, field) in enumerate(SIDES):
        points = [(row, getattr(row, field)) for row in rows if getattr(row, field)]
        if not points:
            continue
        figure.add_scatter(
            name=name,
            x=[units.of_seconds(row.measured_s) for row, _ in points],
            y=[units.of_seconds(predicted) for _, predicted in points],
            mode="markers",
            marker={"symbol": symbol(index), "color": colour(index), "size": 8, "opacity": 0.8},
            text=[row.id for row, _ in points],
            hovertemplate=f"%{{text}}: measured %{{x:.3g}}, predicted %{{y:.3g}} {units.time}<extra></extra>",
        )
    ends = [units.of_seconds(f(row.measured_s for row in rows)) for f in (min, max)] if rows else []
    figure.add_scatter(
        name="exact", x=ends, y=ends, mode="lines", line={"color": NEUTRAL, "width": 2}, hoverinfo="skip"
    )
    layout(figure, x=f"measured, {units.time}", y=f"predicted, {units.time}", height=480)
    ends = [float(end) for trace in figure.data for axis in (trace.x, trace.y) for end in axis]
    figure.update_xaxes(**log_axis(ends))
    figure.update_yaxes(**log_axis(ends))
    what = "held-out cases" if held_out else "cases, none of them held out"
    return Chart(
        name="parity",
        title=f"{device}: predicted against measured",
        alt=f"{len(rows):,} {what} of {len(cases):,}; on the line a prediction is exact.",
        figure=figure,
        rows=tuple(
            {
                "case": row.id,
                "role": row.role,
                "measured, s": row.measured_s,
                "before, s": row.before_s,
                "after, s": row.after_s,
                "error before": row.error_before,
                "error after": row.error_after,
            }
            for row in cases
        ),
    )


def errors_chart(review: Review) -> Chart:
    """Median error by class of kernels, before and after calibration."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, field) in enumerate((("before", "before_median"), ("after", "after_median"))):
        values = [getattr(c, field) for c in review.classes]
        figure.add_bar(
            name=name,
            orientation="h",
            y=[c.family for c in review.classes],
            x=values,
            text=["" if value is None else f"{value:.0%}" for value in values],
            textposition="outside",
            **bar_style(index),
        )
    layout(figure, x="median error", y="", height=160 + 42 * len(review.classes), barmode="group")
    figure.update_xaxes(tickformat=".0%")
    figure.update_yaxes(autorange="reversed")
    judged = [c for c in review.classes if c.after_median is not None]
    said = [f"{c.family} from {c.before_median:.0%} to {c.after_median:.0%}" for c in judged]
    return Chart(
        name="errors_by_class",
        title="Error before and after calibration, on cases that the fit did not see",
        alt=f"{listed(said)}." if said else "Too few cases of any class to calibrate.",
        figure=figure,
        rows=tuple(
            {
                "class": c.family,
                "cases": c.cases,
                "held out": c.held_out,
                "median before": c.before_median,
                "p90 before": c.before_p90,
                "median after": c.after_median,
                "p90 after": c.after_p90,
            }
            for c in review.classes
        ),
    )


QUESTION = "How far off are predictions of this device?"
ERRORS = {
    "median error before": "before_median",
    "p90 before": "before_p90",
    "median error after": "after_median",
    "p90 after": "after_p90",
}


def review_html(review: Review, *, python: str | None = None, made: date | None = None) -> str:
    """The page, one file of HTML that needs nothing else; `python` asks the same again."""
    moved = [(row.family, row.name, f"{row.before:.4g}", f"{row.after:.4g}") for row in review.constants]
    constants = table_html(("family", "constant", "profile", "calibrated"), moved) if moved else ""
    return Sheet(
        question=QUESTION,
        subject=f"{review.device}, profile {review.profile}",
        answer=class_table(review.classes),
        charts=[
            chart for chart in (parity_chart(review.cases, review.device), errors_chart(review)) if chart.rows
        ],
        more=(("The profile as it is, and calibrated", constants),),
        assumptions=[
            "Errors of a class with cases that are held out are of those, which the fit did not see; of any other, of "
            "all its cases.",
            *(f"{family}: not changed: {reason}" for family, reason in review.refused.items()),
            *review.remarks,
        ],
        sources=[f"measurements: {Path(file).name}" for file in review.files],
        asked=[("In Python", python)] if python else [],
    ).html(made)


def class_table(classes: Sequence[ClassErrors]) -> str:
    """Every class of kernels, before and after."""
    return records_html(
        [
            {
                "class": each.family,
                "cases": each.cases,
                "held out": each.held_out,
                **{head: shown(getattr(each, name), ".1%") for head, name in ERRORS.items()},
            }
            for each in classes
        ]
    )
