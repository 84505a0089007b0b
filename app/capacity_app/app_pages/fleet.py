"""Fleet page: pools of different GPUs behind a router that splits requests by length, compared with one pool."""

from functools import partial

import streamlit as st

import capacity
from capacity.base.mappings import omit
from capacity.deployment import to_toml
from capacity.planning.fleets.fleet_records import deployment_of_fleet
from capacity.planning.search.snapshot import Snapshot
from capacity.report.views.fleet import ORDINALS, fleet_facts, fleet_view
from capacity_app import parts
from capacity_app.pages import AS_SIDEBAR, CANDIDATES, FLEET_SHAPES
from capacity_app.questions import ask_in_background, show_answer
from capacity_app.router import current_inputs
from capacity_app.traffic import draw_service_levels, requests_to_simulate
from capacity_app.widgets import draw_fields, show_field, widget_row

SPLITS = {"prompt": "its prompt", "request": "prompt and answer"}
inputs = current_inputs()


def search_progress(report: Snapshot) -> tuple[float, str]:
    """Return the progress of the search: finished fraction of the current stage, and text for the progress bar."""
    return min(report.settled / max(report.engines, 1), 1.0), f"{report.stage}, {report.elapsed_s:.0f} s"


field = partial(show_field, capacity.fleet)
slo = draw_service_levels("fleet")
asked = draw_fields(
    field("gpus", "fleet_gpus", "Candidate GPUs", start=CANDIDATES["fleet_gpus"]), stretch=True
)
with widget_row():
    shape = field(
        "length_distribution", "fleet_lengths", "Lengths", start=None, choices=FLEET_SHAPES, empty=AS_SIDEBAR
    )
    drawn = draw_fields(shape)
    spread = field("input_len_cv", "fleet_cv", "CV of prompt lengths", most=10.0, step=0.1)
    lengths = {**(drawn or inputs.spread), **draw_fields(spread, disabled=not drawn)}
    asked |= draw_fields(
        field("split_by", "fleet_by", "Split requests by", words=SPLITS),
        field("max_pools", "fleet_pools", "Maximum pools", most=len(ORDINALS)),
    )
with widget_row():
    asked |= draw_fields(
        field("spare_replicas", "fleet_spare", "Spare replicas per pool", most=64),
        field("peak_to_mean", "fleet_peak", "Peak / mean load", empty="constant"),
        field("max_gpus", "fleet_most", "Maximum GPUs", most=100_000),
        requests_to_simulate("fleet_n", start=200, most=20_000),
        field("time_limit_s", "fleet_s", "Time limit, s", start=60, least=5, most=600, step=10),
    )
options = {
    "slo": slo,
    **inputs.lengths,
    **lengths,
    "request_rate": inputs.request_rate,
    **inputs.client,
    **inputs.cost,
    **({} if inputs.cost else {"objective": "gpus"}),
    **asked,
    **inputs.search,
}
found = ask_in_background(
    "fleet", inputs, options, doing="Searching", button="Search", reading=search_progress
)
show_answer("fleet", inputs, found, fleet_facts, fleet_view)
if found.value is not None and found.value.best is not None:
    said = omit(found.arguments, "model")
    parts.draw_download(
        "Deployment file",
        "fleet.toml",
        lambda: to_toml(deployment_of_fleet(found.value, found.arguments["model"], said)),
        mime="application/toml",
    )
    st.caption("Simulate it with: capacity simulate fleet.toml")
