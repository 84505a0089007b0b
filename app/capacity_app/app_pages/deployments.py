"""Page that compares up to four deployments at equal served load within the SLO."""

from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from capacity.base.errors import InvalidInput
from capacity.base.external_files import outside_path
from capacity.base.mappings import omit, select
from capacity.model import is_known
from capacity.planning.variations.diff import read_single_pool
from capacity.report.figures.interactive import interactive_page
from capacity.report.tables import render
from capacity.report.views.deployment_comparison import comparison_view
from capacity_app import parts, sides, state, uploads, views
from capacity_app.error_display import escape_markdown, show_errors
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
    kind = state.segments("Load", "deps_load", (RATE, LOOP, USERS, DAY), RATE, help=help_text)
    with widget_row():
        fields = draw_fields(*LOAD_FIELDS.get(kind, ()))
    common = {**inputs.lengths, **inputs.spread, **inputs.client}
    if kind == USERS:
        return {**common, **fields}
    if kind == LOOP:
        return {**common, "concurrency": inputs.concurrency}
    day = {"arrivals": "diurnal", **fields} if kind == DAY else {}
    return {**common, "request_rate": inputs.request_rate, **day}


def draw_upload() -> list[dict[str, Any]]:
    """Draw the upload of deployment files, and return their deployments without traffic. Show an error for each file
    that cannot be used."""
    files = st.file_uploader(
        "Deployment files",
        key="deps_files",
        type="toml",
        accept_multiple_files=True,
        max_upload_size=1,
        help="Deployments in TOML, as for `capacity side-by-side`. The load above replaces their traffic.",
    )
    found = []
    for file in files[: uploads.MAX_FILES]:
        with show_errors():
            found.append(read_upload(uploads.store_upload(file)))
    return found


def read_upload(path: Path) -> dict[str, Any]:
    """Return the deployment of a file without its traffic. Raises InvalidInput if it names a file of this machine."""
    fields = read_single_pool(path).model_dump(exclude_unset=True, exclude={"schema_", "traffic"})
    (pool,) = fields["pools"]
    models = {"model": fields["model"], **select(pool, ("draft",))}
    texts = {**omit(pool, "draft"), **fields.get("service", {}), **fields.get("cost", {})}
    wrong = [name for name, value in models.items() if value is not None and not is_known(value)]
    wrong += [name for name, value in texts.items() if isinstance(value, str) and is_path(value)]
    if wrong:
        raise InvalidInput(
            f"{path.name}: {', '.join(wrong)} must be a name that `capacity models` or `capacity gpus` lists; an "
            "uploaded deployment cannot name other files"
        )
    return fields


def is_path(text: str) -> bool:
    return "/" in text or outside_path(text).exists()


load = draw_load()
current = {"model": inputs.model, "pools": [inputs.pool], "cost": inputs.cost}
pinned = sides.pinned_sides()
others = [side.deployment for side in pinned if side.has_one_deployment] + draw_upload()
side = sides.side_of("estimate", {"model": inputs.model, **inputs.pool, **inputs.load, **inputs.cost})
sides.draw_pin_buttons(side, pinned)
compared: list[dict[str, Any]]
if others:
    st.caption("The pinned deployments, those of the files and the sidebar's, all under this load.")
    compared = [*others, current]
else:
    st.caption(
        "Pin deployments here, on Estimate, Simulate or Cost to compare them, upload files, or choose GPUs."
    )
    with widget_row():
        asked = draw_fields("deps_gpus", stretch=True)
    gpus = [gpu for gpu in asked.get("gpus", CANDIDATES["deps_gpus"]) if gpu != inputs.pool["gpu"]]
    compared = [current, *({**current, "pools": [{**inputs.pool, "gpu": gpu}]} for gpu in gpus)]
if not 2 <= len(compared) <= len(sides.LETTERS):
    st.info("Choose 1 to 3 deployments or GPUs to compare with the sidebar's.", icon=":material/balance:")
else:
    answer = sides.compare_in_background(compared, load, inputs.slo)
    st.success(escape_markdown(answer.verdict), icon=":material/balance:")
    for each in answer.sides:
        st.caption(escape_markdown(f"{each.name}: {each.deployment}"))
    page = partial(interactive_page, answer)
    parts.draw_download("Interactive page", "deployments.html", page, mime="text/html")
    parts.record_downloads("compare_deployments", answer, partial(render, answer, "html"))
    views.draw_view(comparison_view(answer), answer)
