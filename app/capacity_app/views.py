"""Draw the views of answers on a page: key metrics, tables, charts, lines and notes."""

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import streamlit as st

from capacity.answers.records import Quantity
from capacity.base.money import convert_amounts, display_currency
from capacity.report.figures.chart import Chart
from capacity.report.figures.drawing import draw_block, to_quantity
from capacity.report.layout import parse_marks
from capacity.report.views.layout import table_records
from capacity.report.views.view import CustomChart, Drawing, Fact, Facts, Rejections, Table, View
from capacity_app import parts
from capacity_app.error_display import escape_markdown
from capacity_app.sessions import current_session
from capacity_app.state import current_inputs

MAX_RECENT_CHARTS = 64  # of all sessions
_RECENT_CHARTS: dict[tuple[str, str], tuple[Any, Any, Chart | None]] = {}  # by session and name, oldest first
_LOCK = threading.Lock()  # of the charts: each session has its own thread
# by the style mark at the beginning of a line
BOXES = {"[green]": st.success, "[yellow]": st.warning, "[red]": st.error}


def figures_of_merit(facts: Iterable[Fact]) -> list[parts.Kpi]:
    """Return the values of an answer that are marked `first` as key metrics; all values if none is marked."""
    facts = list(facts)
    kpis = []
    for fact in [fact for fact in facts if fact.first] or facts:
        text, below = fact.instead or fact.texts(current_inputs().units)
        known = isinstance(fact.value, (int, float, Quantity)) and not fact.instead
        number = to_quantity(fact.value) if known else None
        kpis.append(parts.Kpi(label=fact.first or fact.label, value=text, below=below, number=number))
    return kpis


def figures_function(
    facts: Callable[..., Iterable[Fact]], *arguments: Any
) -> Callable[[Any], list[parts.Kpi]]:
    """Return a function that returns, for an answer, the key metrics from `facts(answer, *arguments)`."""
    return lambda answer: figures_of_merit(facts(answer, *arguments))


def draw_view(view: View, answer: Any) -> None:
    """Draw the blocks of a view (tables, charts, lines of text), and the answer's notes."""
    for block in view.blocks:
        if isinstance(block, (Drawing, CustomChart)):
            show_chart(block, answer)
        elif isinstance(block, str):
            show_line(block)
        elif isinstance(block, Facts):
            show_facts(block)
        elif isinstance(block, Rejections):
            rows = [{"": name, "why not": convert_amounts(reason)} for name, reason in block.reasons.items()]
            if rows:
                parts.draw_table("refused", rows, alt="Rejected options and the reasons.")
        elif block.rows:
            show_table(block)
    parts.draw_notes([*view.notes, *getattr(answer, "warnings", ())])


def show_facts(block: Facts) -> None:
    """Draw labelled values as a table of text, because they have different units."""
    texts = [
        map(convert_amounts, (fact.label.strip(), *fact.texts(current_inputs().units))) for fact in block.rows
    ]
    if texts:
        st.subheader(escape_markdown(block.title))
        rows = [dict(zip(("", "value", "note"), each, strict=True)) for each in texts]
        parts.draw_table(_file_name(block.title), rows, alt=f"{block.title}.")


def show_line(line: str) -> None:
    """Draw a line of text: in a coloured box if it begins with the markup of a colour, else as a caption."""
    draw = BOXES.get(line[: line.find("]") + 1], st.caption)
    draw(escape_markdown(parse_marks(line).plain))


def show_chart(drawing: Drawing | CustomChart, answer: Any = None) -> None:
    """Draw a chart of an answer, with a note on how to read it."""
    chart = _draw_or_reuse(drawing, answer)
    if chart.rows:
        parts.draw_chart(chart)
        parts.draw_notes([getattr(drawing, "note", "")])


def _draw_or_reuse(drawing: Drawing | CustomChart, answer: Any) -> Chart:
    """Return the chart of an answer; reuse the session's last chart of this name if nothing has changed since then.

    Charts take half of the CPU time of a run, and each edit runs a page twice: when it begins and when it is answered.
    """
    units, source = current_inputs().units, (answer, drawing)
    if isinstance(drawing, CustomChart):
        texts = [each for each in drawing.draw.args if isinstance(each, str)]
        name, content = " ".join((drawing.draw.func.__name__, *texts)), _comparable(drawing.draw)
    else:
        name, content = drawing.name, (drawing, [(name, *row) for name, row in drawing.data.items()])
    place, made_of = (current_session(), name), (id(answer), content, units, display_currency())
    with _LOCK:
        _, made_of_before, chart = _RECENT_CHARTS.pop(place, (None, None, None))
    if chart is None or made_of_before != made_of:
        chart = draw_block(drawing, answer, units)
    with _LOCK:
        _RECENT_CHARTS[place] = source, made_of, chart
        while len(_RECENT_CHARTS) > MAX_RECENT_CHARTS:
            del _RECENT_CHARTS[next(iter(_RECENT_CHARTS))]
    return chart


def _comparable(value: Any) -> Any:
    """Return tuples of texts and numbers, and of the ids of all other objects, which a chart's source keeps alive."""
    if isinstance(value, partial):
        value = value.func, value.args, value.keywords
    if isinstance(value, Mapping):
        value = tuple(value.items())
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    return value if isinstance(value, (str, int, float)) else id(value)


def show_table(table: Table) -> None:
    """Draw a table with its title and downloads."""
    if table.title:
        st.subheader(escape_markdown(table.title))
    name = table.name or _file_name(table.title)
    parts.draw_table(name, table_records(table, current_inputs().units), alt=f"{table.title or name}.")


def _file_name(title: str) -> str:
    return "_".join(re.findall(r"[a-z]+", title.lower())[:5])
