"""Speculation: how much faster, over acceptance, draft length, way of drafting and batch; where it stops paying."""

from __future__ import annotations

import streamlit as st

from capacity.model import model_names
from capacity.report.views.speculate import (
    acceptance_chart,
    methods_chart,
    speculate_facts,
    speculate_view,
)
from capacity.techniques.speculate import Speculating, speculate, speculation_methods
from capacity_app import parts, sides, state, views
from capacity_app.jobs import Task
from capacity_app.router import current_inputs

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PUBLISHED, OWN = "published", "my own"

inputs = current_inputs()
methods = {row.method: row for row in speculation_methods().rows}

with st.container(horizontal=True, vertical_alignment="bottom"):
    method = state.choice("Way to draft", "spec_method", tuple(methods), "eagle3", width=180)
    drafted = state.whole("Tokens drafted, k", "spec_k", 3, 1, 16, width=140)
    batch = int(st.select_slider("Batch size", BATCHES, 8, **state.bound("spec_batch", 8), width=240))
    context = state.whole("Context, tokens", "spec_context", 1024, 1, 1_000_000, step=512, width=150)
with st.container(horizontal=True, vertical_alignment="bottom"):
    known = state.segments("Acceptance", "spec_known", (PUBLISHED, OWN), PUBLISHED)
    share = state.number(
        "of each drafted token",
        "spec_acceptance",
        0.7,
        0.0,
        1.0,
        step=0.05,
        disabled=known == PUBLISHED,
        width=160,
    )
    draft = None
    if methods[method].kind == "draft-model":
        draft = state.choice("Draft model", "spec_draft", model_names(), "llama-3.2-1b", width=220)

options = {
    **inputs.pool,
    "method": method,
    "draft_tokens": drafted,
    "context_tokens": context,
    **({"acceptance": f"{share:g}"} if known == OWN else {}),
    **({} if draft is None else {"draft": draft}),
}


def figures_of_merit(found: Speculating) -> list[parts.Kpi]:
    """The KPI row, at the greatest batch up to the chosen one."""
    return views.figures_of_merit(speculate_facts(found, batch))


def ask(side: sides.Side) -> Task:
    """The drafts of a side."""
    model = inputs.model if side.model == inputs.model_name else side.model
    return Task(
        function="capacity.techniques.speculate:speculate", arguments={"model": model, **side.options}
    )


answer = speculate(inputs.model, batches=BATCHES, **options)
current = sides.Side(
    page="speculation", model=inputs.model_name, options={**options, "batches": list(BATCHES)}, cost={}
)
sides.figures(current, answer, ask=ask, row=figures_of_merit)
st.caption(f"Acceptance as of {answer.acceptance_source.date}.")
parts.copies("speculate", inputs.model_name, {**options, "batches": BATCHES}, answer)
views.show(speculate_view(answer), answer)

place = {"model": inputs.model, "batch": batch, "options": options}
grid = parts.background(
    "spec_grid",
    Task(function="capacity_app.tasks:acceptance_grid", arguments=place),
    doing="Varying acceptance",
)
if grid.value is not None:
    views.show_chart(acceptance_chart(grid.value))
ways = parts.background(
    "spec_ways", Task(function="capacity_app.tasks:ways_to_draft", arguments=place), doing="Trying every way"
)
if ways.value is not None:
    rounds, refused = ways.value
    views.show_chart(methods_chart(rounds))
    parts.notes(refused)
