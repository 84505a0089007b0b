"""More GPUs: latency, throughput and efficiency along one axis of parallelism."""

from __future__ import annotations

from typing import Any

import streamlit as st

from capacity.report.views.scaling import layouts, scaling_facts, scaling_view
from capacity.techniques.scaling import AXES
from capacity_app import parts, state, views
from capacity_app.jobs import Task
from capacity_app.router import current_inputs

inputs = current_inputs()


with st.container(horizontal=True, vertical_alignment="bottom"):
    axis = state.segments(
        "Divide",
        "scale_axis",
        AXES,
        "tensor",
        help="Layers, groups of layers, experts, or requests (with experts).",
    )
    most = state.whole("GPUs at most", "scale_most", 8, 1, 64, width=130)
    limit_ms = st.number_input(
        "TPOT up to, ms", 0.1, 60_000.0, None, placeholder="any", **state.bound("scale_tpot", None), width=150
    )
options: dict[str, Any] = {
    **inputs.pool,
    **inputs.lengths,
    "concurrency": inputs.concurrency,
    "axis": axis,
    "most_gpus": most,
    **inputs.cost,
}
typed = options if limit_ms is None else {**options, "tpot": limit_ms}
options |= {} if limit_ms is None else {"tpot_s": limit_ms / 1e3}
task = Task(function="capacity:scale", arguments={"model": inputs.model, **options})
answer = parts.background("scale", task, doing="Trying layouts").value
parts.copies("scale", inputs.model_name, options, answer, typed=typed)
if answer is not None:
    if run := layouts(answer):
        parts.kpis(views.figures_of_merit(scaling_facts(run)))
    views.show(scaling_view(answer), answer)
