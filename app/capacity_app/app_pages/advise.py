"""Advice page: simulates each suggested change of the deployment on the same arrivals."""

from collections.abc import Mapping
from contextlib import suppress

import streamlit as st

from capacity.answers.records import Quantity
from capacity.base.errors import CapacityError
from capacity.planning.variations.advice import AdviceList
from capacity.report.views.advice import advice_facts, advice_view
from capacity.report.views.units import value_at
from capacity.report.views.view import busiest_window_text
from capacity.service.jobs import Task
from capacity_app import parts, views
from capacity_app.advice_buttons import draw_change_button
from capacity_app.error_display import escape_markdown
from capacity_app.questions import ask_in_background
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, widget_row

inputs = current_inputs()

with widget_row():
    asked = draw_fields("adv_replicas", "adv_n")
st.caption(
    escape_markdown(
        f"Each change is simulated on the same arrivals at the sidebar's {inputs.request_rate:g} requests/s."
    )
)
options = {**inputs.pool, **inputs.load, **asked, **inputs.cost}
found = ask_in_background("advise", inputs, options, doing="Simulating changes", button="Try every change")
answer: AdviceList = found.ready_value
known: Mapping[str, Quantity] = {}
if answer.busiest_window is None:  # the base run covers all requests
    task = Task(function="capacity:simulate", arguments=found.arguments, reports=True)
    with suppress(CapacityError):  # `advise` accepts more than `simulate`
        run = parts.run_in_background("advise_base", task, doing="Simulating the current deployment").current
        known = value_at(run, "predicted_ms") or {}
parts.draw_kpis(views.figures_of_merit(advice_facts(answer, known)))
if answer.busiest_window is not None:
    st.caption(escape_markdown(busiest_window_text(answer.busiest_window)))
with st.container(horizontal=True):
    for line in answer.advice:
        draw_change_button(line.change, line.flags)
views.draw_view(advice_view(answer, reasons=True), answer)
