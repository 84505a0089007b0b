"""Beam search: what each more beam of a request costs, in steps and in KV, by how an engine carries beams along."""

from __future__ import annotations

import streamlit as st

from capacity.report.views.beam_search import beam_search_facts, beam_search_view
from capacity.techniques.beam_search import BeamSearch
from capacity_app import parts, sides, state, views
from capacity_app.jobs import Task
from capacity_app.router import current_inputs

FUNCTION = "capacity.techniques.beam_search:beam_search"
WIDTHS = (1, 2, 4, 8, 16, 32)
USUAL = (1, 2, 4, 8)
inputs = current_inputs()


def figures_of_merit(answer: BeamSearch) -> list[parts.Kpi]:
    """The widest search as this engine does it, beside its narrowest."""
    return views.figures_of_merit(beam_search_facts(answer))


def ask(side: sides.Side) -> Task:
    """The search of a side."""
    model = inputs.model if side.model == inputs.model_name else side.model
    return Task(function=FUNCTION, arguments={"model": model, **side.options})


with st.container(horizontal=True, vertical_alignment="bottom"):
    batch = state.whole("Requests at a time", "beam_batch", 1, 1, 4096, width=160)
    widths = st.multiselect(
        "Beams of a request", WIDTHS, USUAL, **state.bound("beam_widths", list(USUAL)), width=330
    )
options = {
    **inputs.pool,
    **inputs.lengths,
    "batch_size": batch,
    "beam_widths": tuple(sorted(widths)),
}
task = Task(function=FUNCTION, arguments={"model": inputs.model, **options})
answer = parts.background("beam_search", task, doing="Widening").value
parts.copies("beam-search", inputs.model_name, options, answer, function="beam_search")
if answer is not None:
    sides.figures(
        sides.side_of("beam_search", {"model": inputs.model, **options}),
        answer,
        ask=ask,
        row=figures_of_merit,
    )
    views.show(beam_search_view(answer), answer)
