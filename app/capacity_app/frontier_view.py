"""Frontier view of the Estimate page: several deployments in one chart, with a link to each."""

from typing import Any

import streamlit as st

from capacity.answers.frontier import Frontier, FrontierLine
from capacity.answers.load_point import LoadPoint
from capacity.base.mappings import omit
from capacity.model.quantization import known_quantizations
from capacity.report.figures.frontiers import frontier_chart
from capacity.report.views.frontier import frontier_facts, frontier_tables
from capacity.report.views.units import value_at
from capacity.report.views.view import View
from capacity_app import parts, state, views
from capacity_app.error_display import link_html
from capacity_app.pages import LOOP, THIS_LOAD
from capacity_app.questions import ask_in_background
from capacity_app.state import AS_PUBLISHED, Inputs
from capacity_app.widgets import draw_fields, page_field, widget_row

# fewest: the smallest size that fits the model
SIZES: dict[int | None, str] = {None: "fewest", **{size: str(size) for size in (1, 2, 4, 8, 16)}}


def draw_frontier(inputs: Inputs) -> None:
    """Draw the inputs, the best deployment within the TPOT limit, the chart, and a link to the clicked point."""
    formats = (None, *known_quantizations())
    with widget_row():
        asked = draw_fields(
            "front_gpus",
            page_field("front_weights", choices=formats, words={None: AS_PUBLISHED}, start=(None, "fp8")),
            "front_engines",
            page_field("front_tp", choices=tuple(SIZES), words=SIZES),
        )
        tpot_ms = state.number("TPOT limit, ms", "front_tpot", 25.0, 0.1, 1e5, width=135)
    options: dict[str, Any] = {
        **asked,
        **omit(inputs.pool, "gpu", "tensor_parallel_size", "quantization", "engine"),
        **inputs.lengths,
        **inputs.spread,
        **inputs.client,
        **inputs.cost,
    }
    sizes = tuple(SIZES[size] for size in asked.get("tensor_parallel_sizes", (None,)))
    typed = {**options, "tensor_parallel_sizes": sizes, "tpot": tpot_ms}
    found: Frontier = ask_in_background(
        "frontier", inputs, options, doing="Estimating every deployment", typed=typed
    ).ready_value
    _draw_best_points(found, tpot_ms / 1e3)


def _draw_best_points(found: Frontier, tpot_s: float) -> None:
    st.caption(
        "Each deployment uses the smallest tensor-parallel size that fits the model, or the chosen sizes. The load is "
        "a closed loop from one request to the maximum concurrency. Bands cover the 90 % intervals of both axes."
    )
    parts.draw_kpis(views.figures_of_merit(frontier_facts(found, tpot_s)), place="frontier")
    clicked = parts.draw_chart(frontier_chart(found, tpot_limit_s=tpot_s), clickable=True)
    if len(clicked) == 2:
        line = value_at(found.lines, f"{int(clicked[0])}")
        point = value_at(line, f"points.{int(clicked[1])}")
        if point is not None:  # of this answer
            st.html(_point_link(line, point))
    else:
        st.caption(":material/ads_click: Click a point to open its deployment.")
    views.draw_view(View("", frontier_tables(found, tpot_s)), found)
    st.html("".join(f"<p>{_point_link(line, point)}</p>" for line, point in found.best(tpot_s)))


def _point_link(line: FrontierLine, point: LoadPoint) -> str:
    """Return an HTML link to the deployment at this load."""
    href = state.link_to(
        "estimate",
        gpu=line.gpu,
        tp=line.tensor_parallel_size,
        weights=line.quantization or AS_PUBLISHED,
        engine=line.engine,
        load=LOOP,
        concurrency=int(point.load),
        view=THIS_LOAD,
    )
    return link_html(href, f"Open {line.label}, {point.load:,.0f} in flight")
