"""Fleet page: pools of different GPUs behind a router that splits requests by length, compared with one pool."""

import streamlit as st

from capacity.base.mappings import omit
from capacity.deployment import to_toml
from capacity.planning.fleets.fleet_records import deployment_of_fleet
from capacity.planning.search.snapshot import Snapshot
from capacity.report.views.fleet import ORDINALS, fleet_facts, fleet_view
from capacity_app import parts
from capacity_app.questions import ask_in_background, show_answer
from capacity_app.router import current_inputs
from capacity_app.traffic import draw_service_levels
from capacity_app.widgets import draw_fields, page_field, widget_row

inputs = current_inputs()


def search_progress(report: Snapshot) -> tuple[float, str]:
    """Return the finished fraction of the search's current stage, and the text for the progress bar."""
    return min(report.settled / max(report.engines, 1), 1.0), f"{report.stage}, {report.elapsed_s:.0f} s"


slo = draw_service_levels("fleet")
asked = draw_fields("fleet_gpus", stretch=True)
with widget_row():
    drawn = draw_fields("fleet_lengths")
    lengths = {**(drawn or inputs.spread), **draw_fields("fleet_cv", disabled=not drawn)}
    asked |= draw_fields("fleet_by", page_field("fleet_pools", most=len(ORDINALS)))
with widget_row():
    asked |= draw_fields("fleet_spare", "fleet_peak", "fleet_most", "fleet_n", "fleet_s")
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
