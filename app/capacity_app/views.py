"""The views of answers on a page: figures of merit, tables that sort, charts, lines and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import streamlit as st

from capacity.answers.records import Quantity
from capacity.report.figures.drawing import draw_chart
from capacity.report.layout import marked
from capacity.report.views.layout import fact_texts, table_records
from capacity.report.views.view import Drawing, Fact, Facts, View
from capacity_app import parts
from capacity_app.boundary import plain
from capacity_app.router import current_inputs


def figures_of_merit(facts: Iterable[Fact]) -> list[parts.Kpi]:
    """Return the figures to see first, each with its interval and its note below."""
    kpis = []
    for fact in facts:
        label, text, below = fact_texts(fact, current_inputs().units)
        number = Quantity(value=fact.value) if isinstance(fact.value, (int, float)) else fact.value
        known = number if isinstance(number, Quantity) else None
        kpis.append(parts.Kpi(label=label, value=text, below=below, number=known))
    return kpis


def show(view: View, answer: Any) -> None:
    """Draw the blocks of a view, and the answer's notes."""
    for block in view.blocks:
        if isinstance(block, Drawing):
            show_chart(block, answer)
        elif isinstance(block, str):
            st.caption(plain(marked(block).plain))
        elif isinstance(block, Facts):
            rows = [dict(zip(("", "value", "note"), fact_texts(fact), strict=True)) for fact in block.rows]
            show_rows(block.title, rows)
        elif block.rows:
            show_rows(block.title, table_records(block, current_inputs().units))
    parts.notes(getattr(answer, "warnings", ()))


def show_chart(drawing: Drawing, answer: Any = None) -> None:
    """Draw a chart of an answer that names model and GPUs, with a note on how to read it."""
    chart = draw_chart(drawing, answer, current_inputs().units)
    if chart.rows:
        parts.chart(chart)
        parts.notes([drawing.note] if drawing.note else [])


def show_rows(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Draw a table under its title, with its files."""
    st.subheader(plain(title))
    parts.table("_".join(re.findall(r"[a-z]+", title.lower())[:5]), rows, alt=f"{title}.")
