"""The views of answers on a page: figures of merit, tables that sort, charts, lines and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import streamlit as st

from capacity.answers.records import Quantity
from capacity.report.figures.drawing import draw_chart
from capacity.report.views.layout import table_records
from capacity.report.views.view import Drawing, Fact, Table, View
from capacity_app import parts
from capacity_app.boundary import plain
from capacity_app.router import current_inputs


def figures_of_merit(facts: Iterable[Fact]) -> list[parts.Kpi]:
    """Return the figures to see first, each with its interval and its note below."""
    kpis = []
    for label, value, unit, note in facts:
        text, within = unit.texts(value, current_inputs().units)
        number = Quantity(value=value) if isinstance(value, (int, float)) else value
        number = number if isinstance(number, Quantity) else None
        below = "" if value is None else "; ".join(filter(None, (within, note)))
        kpis.append(parts.Kpi(label=label, value=text, below=below, number=number))
    return kpis


def show(view: View, answer: Any) -> None:
    """Draw the blocks of a view, and the answer's notes."""
    for block in view.blocks:
        if isinstance(block, Drawing):
            show_chart(block, answer)
        elif isinstance(block, str):
            st.caption(plain(block))
        elif block.rows:
            show_table(block)
    parts.notes(getattr(answer, "warnings", ()))


def show_chart(drawing: Drawing, answer: Any = None) -> None:
    """Draw a chart of an answer that names model and GPUs, with a note on how to read it."""
    chart = draw_chart(drawing, answer, current_inputs().units)
    if chart.rows:
        parts.chart(chart)
        parts.notes([drawing.note] if drawing.note else [])


def show_table(table: Table) -> None:
    """Draw a table under its title, with its files."""
    st.subheader(plain(table.title))
    name = "_".join(re.findall(r"[a-z]+", table.title.lower())[:5])
    parts.table(name, table_records(table, current_inputs().units), alt=f"{table.title}.")
