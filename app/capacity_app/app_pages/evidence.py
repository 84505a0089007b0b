"""Evidence page: published runs nearest to the sidebar's deployment, and all published runs, with their predictions."""

import streamlit as st

from capacity.answers.records import Attribution
from capacity.report.views.evidence import nearest_table, published_view
from capacity.service.jobs import Task
from capacity_app import parts, views
from capacity_app.error_display import show_errors
from capacity_app.questions import ask_in_background
from capacity_app.router import current_inputs
from capacity_app.traffic import draw_loop_or_rate

inputs = current_inputs()

load = draw_loop_or_rate(inputs, "evidence_load", "The load with which the published runs are compared.")
options = {**inputs.pool, **inputs.lengths, **load, **inputs.spread, **inputs.client}
st.subheader("Nearest to your question")
st.caption(
    "Runs that are most similar in model, GPU, engine, load and lengths. Each is predicted with the settings that its "
    "source states, and with defaults for all other settings."
)
with show_errors():
    asked = {**options, "evidence": True}
    found: Attribution = ask_in_background(
        "explain", inputs, asked, doing="Predicting the nearest runs"
    ).ready_value
    views.show_table(nearest_table(found.evidence))
    links = dict.fromkeys(f"[{run.source}]({run.url}), {run.date}" for run in found.evidence)
    st.caption("Sources: " + "; ".join(links))
st.subheader("All published runs")
st.caption(
    "This version predicts every run of the built-in list now. The list includes runs that were used to choose "
    "constants and formulas; docs/accuracy.md separates these from held-out runs."
)
with show_errors():
    task = Task(function="capacity.answers.published_runs:predict_published_runs", reports=True)
    runs = parts.run_in_background("published", task, doing="Predicting published runs").ready_value
    views.draw_view(published_view(runs), runs)
