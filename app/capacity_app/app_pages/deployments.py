"""Page that compares up to four deployments at equal served load within the SLO."""

from functools import partial
from typing import Any

import streamlit as st

import capacity
from capacity.base.mappings import omit
from capacity.report.figures.interactive import interactive_page
from capacity.report.tables import render
from capacity.report.views.deployment_comparison import comparison_view
from capacity.service.jobs import Task
from capacity_app import parts, sides, views
from capacity_app.error_display import escape_markdown
from capacity_app.pages import CANDIDATES
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, show_field, widget_row

inputs = current_inputs()
load = {**inputs.lengths, **inputs.spread, "request_rate": inputs.request_rate, **inputs.client}
current = {"model": inputs.model, "pools": [inputs.pool], "traffic": load, "cost": inputs.cost}
pinned = sides.pinned_sides()
compared: list[dict[str, Any]]
if pinned:
    st.caption("The pinned sides and the sidebar's deployment, all under the sidebar's load.")
    others = [side.deployment for side in pinned if side.has_one_deployment]
    compared = [{**omit(side, "service"), "model": side["model"], "traffic": load} for side in others] + [
        current
    ]
else:
    st.caption("Pin deployments on Estimate, Simulate or Cost to compare them here, or choose GPUs.")
    with widget_row():
        asked = draw_fields(
            show_field(capacity.frontier, "gpus", "deps_gpus", "Other GPUs", start=CANDIDATES["deps_gpus"])
        )
    gpus = [gpu for gpu in asked.get("gpus", CANDIDATES["deps_gpus"]) if gpu != inputs.pool["gpu"]]
    compared = [current, *({**current, "pools": [{**inputs.pool, "gpu": gpu}]} for gpu in gpus)]
if not 2 <= len(compared) <= len(sides.LETTERS):
    st.info("Choose 1 to 3 other GPUs to compare.", icon=":material/balance:")
elif not inputs.slo:
    st.info("Choose an SLO in the sidebar: sides are compared within it.", icon=":material/balance:")
else:
    task = Task(
        function="capacity:compare_deployments",
        arguments={"deployments": compared, "slo": list(inputs.slo)},
        reports=True,
    )
    answer = parts.run_in_background("deployments", task, doing="Searching the capacity of each side").current
    if answer is not None:
        st.success(escape_markdown(answer.verdict), icon=":material/balance:")
        page = partial(interactive_page, answer)
        parts.draw_download("Interactive page", "deployments.html", page, mime="text/html")
        parts.record_downloads("compare_deployments", answer, partial(render, answer, "html"))
        views.draw_view(comparison_view(answer), answer)
