"""An answer as one self-contained HTML page with interactive charts, which opens without a server."""

from dataclasses import dataclass, fields
from datetime import date
from html import escape
from typing import Any

from capacity.base.record import AnswerRecord
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.chart import Chart
from capacity.report.sheet import answer_html
from capacity.report.tables import select_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractiveChart(Chart):
    """A chart that a page shows with hover and zoom; the first chart of a page contains plotly.js (4.7 MB)."""

    includes_script: bool

    def figure_html(self, made: date | None = None) -> str:  # noqa: ARG002
        """Return the chart as HTML with its title and alternative text."""
        drawn: Any = self.figure.to_html(full_html=False, include_plotlyjs=self.includes_script)
        return (
            f'<section><h2>{escape(self.title)}</h2>{drawn}<p class="faint">{escape(self.alt)}</p></section>'
        )


def interactive_page(answer: AnswerRecord, *, command: str | None = None) -> str:
    """Return the printable page of an answer with interactive charts; `command` repeats the computation."""
    charts = [
        InteractiveChart(
            **{field.name: getattr(chart, field.name) for field in fields(chart)}, includes_script=index == 0
        )
        for index, chart in enumerate(answer_charts(answer))
    ]
    return answer_html(answer, select_tables(answer, "sheet")(answer), charts=charts, command=command)
