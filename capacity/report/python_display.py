"""Display of an answer in Python, generated from its view: `repr`, `str`, notebooks and `plot()`."""

from collections.abc import Iterator
from pkgutil import resolve_name

from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.record import AnswerRecord
from capacity.base.registry import ANSWERS, BY_NAME
from capacity.base.untrusted_text import shorten_text
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.chart import Chart
from capacity.report.figures.picture import check_drawing
from capacity.report.layout import parse_marks, render_text
from capacity.report.subject import describe_answer
from capacity.report.tables import select_tables
from capacity.report.tables_html import parts_html
from capacity.report.views.units import name_units
from capacity.report.views.view import Facts, Table, View

MAIN_FIGURES = 3


def one_line(answer: AnswerRecord) -> str:
    """Return verb, model, deployment and the main figures of an answer in one line."""
    name = answer.schema_name()
    verbs = (verb.name for verb in BY_NAME.values() if any(each.name == name for each in verb.answers))
    shown = ANSWERS.get(name)
    if shown is None or not shown.view:
        return shorten_text(f"<{next(verbs, name)}: {describe_answer(answer)}>")
    view = resolve_name(shown.view)(answer)
    subject = parse_marks(view.title.partition("\n")[0]).plain
    return shorten_text(
        f"<{next(verbs, name)}: {'; '.join(filter(None, (subject, ', '.join(_figures(view)))))}>"
    )


def _figures(view: View) -> Iterator[str]:
    """Yield main results of a view as texts: `main` facts, else facts in its blocks, else the first row of a table."""
    blocks = [Facts("", view.main)] if view.main else list(view.blocks)
    facts = [
        (name_units(fact.first or f"{block.title}: {fact.label.strip()}"), fact)
        for block in blocks
        if isinstance(block, Facts)
        for fact in block.rows
        if fact.value is not None
    ]
    if facts:
        chosen = [pair for pair in facts if pair[1].first] or facts
        yield from (f"{label} {(fact.instead or fact.texts())[0]}" for label, fact in chosen[:MAIN_FIGURES])
        return
    for table in [block for block in blocks if isinstance(block, Table) and block.rows][:1]:
        yield f"{len(table.rows)} rows, the first: " + ", ".join(
            parse_marks(f"{name_units(column.heading)} {' '.join(text.split())}".strip()).plain
            for column in table.columns[:MAIN_FIGURES]
            for text, _ in [column.texts(table.rows[0])]
        )


def text(answer: AnswerRecord) -> str:
    """Return the tables of an answer's summary as text."""
    return render_text(select_tables(answer, "text")(answer))


def html(answer: AnswerRecord) -> str:
    """Return the tables of an answer's summary as an HTML fragment."""
    return parts_html(select_tables(answer, "text")(answer))


def plot(answer: AnswerRecord, name: str | None) -> Chart:
    """Return the chart `name` (None: the first). Raises UnknownName, or InvalidInput without charts or matplotlib."""
    check_drawing()
    charts = {chart.name: chart for chart in answer_charts(answer)}
    if not charts:
        raise InvalidInput(
            f"the answer {answer.schema_name()} has no chart: use to_frame() and plot its columns"
        )
    if name is not None and name not in charts:
        raise UnknownName("chart", name, charts)
    return charts[name or next(iter(charts))]
