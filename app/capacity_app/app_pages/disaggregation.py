"""Disaggregation page: simulates every ratio of prefill to decode replicas on the same arrivals."""

from functools import partial
from typing import Any

import streamlit as st

import capacity
from capacity.report.views.disaggregation import split_facts, splits_view
from capacity.service.jobs import Task
from capacity_app import parts, views
from capacity_app.error_display import escape_markdown
from capacity_app.router import current_inputs
from capacity_app.tasks import split_name
from capacity_app.traffic import requests_to_simulate
from capacity_app.widgets import draw_fields, show_field, widget_row

inputs = current_inputs()

field = partial(show_field, capacity.simulate)
with widget_row():
    shared = draw_fields(field("replicas", "dis_replicas", "Replicas", start=4, least=2, most=16))
    transfer = draw_fields(
        field("kv_transfer_link", "dis_link", "KV transfer link"),
        field("kv_transfer_layerwise", "dis_layers", "Transfer KV layer by layer"),
    )
    shared |= draw_fields(requests_to_simulate("dis_n", start=400, least=20, most=20_000))
common: dict[str, Any] = {**inputs.pool, **inputs.load, **shared, "router": "least-outstanding"}
task = Task(
    function="capacity_app.tasks:splits",
    arguments={"model": inputs.model, "common": common, "transfer": transfer},
    reports=True,
)
runs = parts.run_in_background("splits", task, doing="Simulating splits").value
replicas = shared["replicas"]
apart = field(
    "prefill_replicas", "dis_prefill", "Prefill replicas", choices=range(replicas), start=1, default=0
)
split = draw_fields(apart, stretch=True)
prefill = split.get("prefill_replicas", 0)
options = {**common, **split, **(transfer if prefill else {})}
answer = None if runs is None else runs.get(split_name(replicas, prefill))
parts.draw_code_snippets("simulate", inputs.model_name, options, answer)
if answer is not None:
    st.caption(escape_markdown(f"{split_name(replicas, prefill)}, {inputs.request_rate:g} requests/s:"))
    parts.draw_kpis(views.figures_of_merit(split_facts(answer)))
    if answer.verdict is not None:
        parts.draw_verdict(answer.verdict.verdict, f"{answer.verdict.verdict}. {answer.verdict.reason}")
    views.draw_view(splits_view(runs), answer)
