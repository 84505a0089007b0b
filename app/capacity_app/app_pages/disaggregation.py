"""Prefill apart: replicas that only prefill and others that only decode, at every ratio, on the same arrivals."""

from __future__ import annotations

from typing import Any

import streamlit as st

from capacity.report.views.disaggregation import split_facts, splits_view
from capacity_app import parts, state, views
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.router import current_inputs
from capacity_app.tasks import split_name

LINKS = ("infiniband", "nvlink", "pcie")
inputs = current_inputs()

with st.container(horizontal=True, vertical_alignment="bottom"):
    replicas = state.whole("Replicas", "dis_replicas", 4, 2, 16, width=120)
    link = state.choice("KV goes over", "dis_link", LINKS, "infiniband", width=150)
    layerwise = st.toggle(
        "Layer by layer",
        False,
        **state.bound("dis_layers", False),
        help="Sent while the prompt is still computed.",
    )
    requests = state.whole("Requests to simulate", "dis_n", 400, 20, 20_000, step=100, width=180)
common: dict[str, Any] = {
    **inputs.pool,
    **inputs.lengths,
    **inputs.spread,
    "request_rate": inputs.request_rate,
    "num_prompts": requests,
    **inputs.client,
    "replicas": replicas,
    "router": "least-outstanding",
}
transfer = {"kv_transfer_link": link, **({"kv_transfer_layerwise": True} if layerwise else {})}
task = Task(
    function="capacity_app.tasks:splits",
    arguments={"model": inputs.model, "common": common, "transfer": transfer},
    reports=True,
)
runs = parts.background("splits", task, doing="Simulating splits").value
prefill = int(
    st.select_slider(
        "Replicas that only prefill",
        range(replicas),
        min(1, replicas - 1),
        **state.bound("dis_prefill", min(1, replicas - 1)),
        help="0: every replica does both.",
    )
)
options = {**common, **({"prefill_replicas": prefill, **transfer} if prefill else {})}
answer = None if runs is None else runs.get(split_name(replicas, prefill))
parts.copies("simulate", inputs.model_name, options, answer)
if answer is not None:
    st.caption(plain(f"{split_name(replicas, prefill)}, {inputs.request_rate:g} requests/s:"))
    parts.kpis(views.figures_of_merit(split_facts(answer)))
    if answer.verdict is not None:
        parts.verdict(answer.verdict.verdict, f"{answer.verdict.verdict}. {answer.verdict.reason}")
    views.show(splits_view(runs), answer)
