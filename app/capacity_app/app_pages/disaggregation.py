"""Disaggregation page: simulates every ratio of prefill to decode replicas on the same arrivals."""

from typing import Any

import streamlit as st

from capacity.report.views.disaggregation import split_facts, splits_view
from capacity.report.views.units import value_at
from capacity.service.jobs import Task
from capacity_app import parts, views
from capacity_app.error_display import NotReady, escape_markdown
from capacity_app.router import current_inputs
from capacity_app.tasks import split_name
from capacity_app.widgets import draw_fields, page_field, widget_row

inputs = current_inputs()

with widget_row():
    shared = draw_fields("dis_replicas")
    transfer = draw_fields("dis_link", "dis_layers")
    shared |= draw_fields("dis_n")
common: dict[str, Any] = {**inputs.pool, **inputs.load, **shared, "router": "least-outstanding"}
task = Task(
    function="capacity_app.tasks:splits",
    arguments={"model": inputs.model, "common": common, "transfer": transfer},
    reports=True,
)
runs = parts.run_in_background("splits", task, doing="Simulating splits").value
replicas = shared["replicas"]
split = draw_fields(page_field("dis_prefill", choices=range(replicas)), stretch=True)
prefill = split.get("prefill_replicas", 0)
options = {**common, **split, **(transfer if prefill else {})}
answer = (runs or {}).get(split_name(replicas, prefill))
parts.draw_code_snippets("simulate", inputs.model_name, options, answer)
if answer is None:
    raise NotReady
st.caption(escape_markdown(f"{split_name(replicas, prefill)}, {inputs.request_rate:g} requests/s:"))
parts.draw_kpis(views.figures_of_merit(split_facts(answer)))
judgement = value_at(answer, "verdict.verdict")
parts.draw_verdict(judgement, f"{judgement}. {value_at(answer, 'verdict.reason')}")
views.draw_view(splits_view(runs), answer)
