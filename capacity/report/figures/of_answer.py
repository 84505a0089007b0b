"""The charts of an answer, whichever it is: those that the dashboard draws of it, for pages that are printed."""

from __future__ import annotations

from pkgutil import resolve_name

from capacity.base.record import AnswerRecord
from capacity.base.registry import ANSWERS
from capacity.report.figures import Chart
from capacity.report.figures.drawing import draw_charts


def charts_of(answer: AnswerRecord) -> tuple[Chart, ...]:
    """The charts of this answer; none for answers that have none."""
    shown = ANSWERS.get(answer.schema_name())
    if shown is not None and shown.view:
        return tuple(draw_charts(resolve_name(shown.view)(answer), answer))
    if shown is None or not shown.charts:
        return ()
    return tuple(chart for chart in resolve_name(shown.charts)(answer) if chart.rows)
