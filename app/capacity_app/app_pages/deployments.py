"""Page that compares up to four deployments at equal served load within the SLO."""

from functools import partial
from typing import Any

import streamlit as st

from capacity.report.figures.interactive import interactive_page
from capacity.report.tables import render
from capacity.report.views.deployment_comparison import comparison_view
from capacity_app import parts, sides, state, views
from capacity_app.error_display import escape_markdown
from capacity_app.pages import CANDIDATES, DAY, LOOP, RATE, USERS
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, widget_row

LOAD_FIELDS = {USERS: ("deps_users", "deps_think"), DAY: ("deps_peak",)}  # inputs of the page by kind of load
inputs = current_inputs()


def draw_load() -> dict[str, Any]:
    """Draw the choice of the common load, and return it with the lengths as keyword arguments."""
    help_text = (
        "Arrivals and a day use the sidebar's requests/s, for a day as its mean. A closed loop keeps the sidebar's "
        "concurrency in flight."
    )
    with widget_row():
        kind = state.segments("Load", "deps_load", (RATE, LOOP, USERS, DAY), RATE, help=help_text)
        fields = draw_fields(*LOAD_FIELDS.get(kind, ()))
    common = {**inputs.lengths, **inputs.spread, **inputs.client}
    if kind == USERS:
        return {**common, **fields}
    if kind == LOOP:
        return {**common, "concurrency": inputs.concurrency}
    day = {"arrivals": "diurnal", **fields} if kind == DAY else {}
    return {**common, "request_rate": inputs.request_rate, **day}


load = draw_load()
current = {"model": inputs.model, "pools": [inputs.pool], "cost": inputs.cost}
pinned = sides.pinned_sides()
compared: list[dict[str, Any]]
if pinned:
    st.caption("The pinned deployments and the sidebar's, all under this load.")
    compared = [*(side.deployment for side in pinned if side.has_one_deployment), current]
else:
    st.caption("Pin deployments on Estimate, Simulate or Cost to compare them here, or choose GPUs.")
    with widget_row():
        asked = draw_fields("deps_gpus")
    gpus = [gpu for gpu in asked.get("gpus", CANDIDATES["deps_gpus"]) if gpu != inputs.pool["gpu"]]
    compared = [current, *({**current, "pools": [{**inputs.pool, "gpu": gpu}]} for gpu in gpus)]
if not 2 <= len(compared) <= len(sides.LETTERS):
    st.info("Choose 1 to 3 other GPUs to compare.", icon=":material/balance:")
else:
    answer = sides.compare_in_background(compared, load, inputs.slo)
    st.success(escape_markdown(answer.verdict), icon=":material/balance:")
    page = partial(interactive_page, answer)
    parts.draw_download("Interactive page", "deployments.html", page, mime="text/html")
    parts.record_downloads("compare_deployments", answer, partial(render, answer, "html"))
    views.draw_view(comparison_view(answer), answer)
