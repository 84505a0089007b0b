"""What would help: the changes of the checklist that help this deployment, simulated on the same arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import streamlit as st

import capacity
from capacity.answers.records import Simulation
from capacity.base.errors import CapacityError
from capacity.planning.variations.advice import AdviceList
from capacity.report.views.advice import advice_facts, advice_view
from capacity.report.views.view import compared_text
from capacity_app import parts, views
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.questions import answered
from capacity_app.router import current_inputs
from capacity_app.traffic import requests_to_simulate
from capacity_app.widgets import draw, show_field, widget_row

inputs = current_inputs()


def run_alone(arguments: Mapping[str, Any]) -> Simulation | None:
    """The deployment as it is, simulated once more with the intervals of its latencies; None before it is there, and
    of what only advice is given on."""
    task = Task(function="capacity:simulate", arguments=arguments, reports=True)
    with suppress(CapacityError):
        run = parts.background("advise_base", task, doing="Simulating it as it is")
        return None if run.stale else run.value
    return None


def show(answer: AdviceList, base_run: Simulation | None) -> None:
    """The deployment before any change; then the changes that help, and why others cannot be made."""
    known = {} if base_run is None else base_run.predicted_ms
    parts.kpis(views.figures_of_merit(advice_facts(answer, known)))
    if answer.busiest_window is not None:
        st.caption(plain(compared_text(answer.busiest_window)))
    views.show(advice_view(answer, reasons=True), answer)


with widget_row():
    asked = draw(
        show_field(capacity.advise, "replicas", "adv_replicas", "Replicas", most=64),
        requests_to_simulate("adv_n", start=300, least=20, most=10_000),
    )
st.caption(
    plain(
        f"{inputs.request_rate:g} requests/s as in the sidebar; each change is simulated on the same arrivals."
    )
)
options = {**inputs.pool, **inputs.load, **asked, **inputs.cost}
found = answered("advise", inputs, options, doing="Trying changes", button="Try every change")
if found.value is not None:
    whole = found.value.busiest_window is None  # a run is of all requests
    show(found.value, run_alone(found.arguments) if whole else None)
