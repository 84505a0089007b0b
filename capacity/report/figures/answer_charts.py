"""Charts of any answer for printed pages and exports, identical to those of the dashboard."""

from pkgutil import resolve_name

from capacity.base.record import AnswerRecord
from capacity.base.registry import ANSWERS
from capacity.report.figures import Chart
from capacity.report.figures.drawing import draw_charts


def answer_charts(answer: AnswerRecord) -> tuple[Chart, ...]:
    """Return the charts of an answer's view; empty without a view."""
    shown = ANSWERS.get(answer.schema_name())
    if shown is None or not shown.view:
        return ()
    return tuple(draw_charts(resolve_name(shown.view)(answer), answer))
