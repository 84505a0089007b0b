"""Speculation page: speed-up by acceptance, draft length, method and batch size, and the break-even batch size."""

import streamlit as st

from capacity.report.views.speculate import acceptance_chart, methods_chart, speculate_facts, speculate_view
from capacity.service.jobs import Task
from capacity.techniques.speculate import speculate, speculation_methods
from capacity_app import parts, sides, state, views
from capacity_app.questions import make_side_task
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, widget_row

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PUBLISHED, OWN = "published", "my own"

inputs = current_inputs()
methods = {row.method: row for row in speculation_methods().rows}

with widget_row():
    asked = draw_fields("spec_method", "spec_k")
    batch = int(st.select_slider("Batch size", BATCHES, 8, **state.bind_to_url("spec_batch", 8), width=240))
    asked |= draw_fields("spec_context")
with widget_row():
    published = state.segments("Acceptance", "spec_known", (PUBLISHED, OWN), PUBLISHED) == PUBLISHED
    share = state.number(
        "Acceptance per token", "spec_acceptance", 0.7, 0.0, 1.0, step=0.05, disabled=published, width=190
    )
    if methods[asked["method"]].kind == "draft-model":
        asked |= draw_fields("spec_draft")
acceptance = {} if published else {"acceptance": f"{share:g}"}
options = {**inputs.pool, **asked, **acceptance}
answer = speculate(inputs.model, batches=BATCHES, **options)
current = sides.Side(
    page="speculation", model=inputs.model_name, options={**options, "batches": list(BATCHES)}, cost={}
)
row = views.figures_function(speculate_facts, batch)  # at the greatest batch up to the chosen one
sides.draw_figures(current, answer, ask=make_side_task("speculate", inputs), row=row)
st.caption(f"Date of the acceptance data: {answer.acceptance_source.date}.")
parts.draw_code_snippets("speculate", inputs.model_name, {**options, "batches": BATCHES}, answer)
views.draw_view(speculate_view(answer), answer)

place = {"model": inputs.model, "batch": batch, "options": options}
task = Task(function="capacity_app.tasks:acceptance_grid", arguments=place)
grid = parts.run_in_background("spec_grid", task, doing="Varying acceptance").value
if grid is not None:
    views.show_chart(acceptance_chart(grid))
task = Task(function="capacity_app.tasks:ways_to_draft", arguments=place)
rounds, refused = parts.run_in_background("spec_ways", task, doing="Comparing drafting methods").ready_value
views.show_chart(methods_chart(rounds))
parts.draw_notes(refused)
