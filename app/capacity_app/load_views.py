"""Views of the Estimate page: one deployment at rising load, and all GPUs or all engines at one load."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import streamlit as st

from capacity.answers.engine_comparison import DEFAULT_ENGINES
from capacity.answers.load_point import ORDERS, LoadPoint
from capacity.base.mappings import omit
from capacity.report.display import phrase
from capacity.report.figures.loads import FIGURES
from capacity.report.views.rising_load import load_sweep_view, saturation_sentence
from capacity.report.views.side_by_side import engine_comparison_view, gpu_comparison_view, pool_text
from capacity.report.views.view import Drawing
from capacity_app import parts, state, views
from capacity_app.error_display import escape_markdown
from capacity_app.questions import ask_in_background
from capacity_app.state import Inputs
from capacity_app.widgets import draw_fields, page_field

SORTS = {order.words: name for name, order in ORDERS.items()}
ORDER_WITHOUT_PRICE = ORDERS["throughput-per-gpu"].words  # default order without prices


def _load_options(inputs: Inputs, load: Mapping[str, Any]) -> dict[str, Any]:
    return {**inputs.lengths, **load, **inputs.client, **inputs.cost}


def draw_load_sweep(inputs: Inputs, load: Mapping[str, Any]) -> None:
    """Draw TTFT, TPOT, throughput and price against the load, with the chosen load and saturation marked."""
    over, chosen = next(iter(load.items()))
    options = {"over": over, **inputs.pool, **_load_options(inputs, omit(load, over))}
    found = ask_in_background("load_sweep", inputs, options, doing="Computing loads", command=None)
    sweep = found.ready_value
    st.caption(escape_markdown(saturation_sentence(sweep)))
    blocks = load_sweep_view(sweep, chosen).blocks
    charts = [block for block in blocks if isinstance(block, Drawing) and block.data]
    for column, chart in zip(cycle(st.columns(2)), charts):
        with column:
            views.show_chart(chart, sweep)


def draw_every_gpu(inputs: Inputs, load: Mapping[str, Any]) -> None:
    """Draw the metrics of every GPU type at this load, with the number of GPUs needed, sorted as the user chose."""
    usual = next(iter(SORTS)) if inputs.cost else ORDER_WITHOUT_PRICE
    order = SORTS[state.choice("Sort by", "gpu_sort", tuple(SORTS), usual)]
    pool = omit(inputs.pool, "gpu", "tensor_parallel_size")
    levels = {"slo": list(inputs.slo)} if "request_rate" in load else {}
    options = {"gpu": "all", "order": order, **levels, **pool, **_load_options(inputs, load)}
    compared = ask_in_background(
        "compare_gpus", inputs, options, doing="Estimating every GPU", command="estimate"
    ).ready_value
    st.caption(
        "Each GPU uses the cheapest tensor-parallel size, and at a request rate the cheapest number of replicas, "
        "that serve this load within the SLO. Other settings are from the sidebar. Whiskers are 90 % intervals. "
        "GPUs that miss the SLO or are saturated follow, then GPUs on which the model does not fit."
    )
    views.draw_view(gpu_comparison_view(compared), compared)
    _draw_reasons({pool_text(point): point for point in compared.rows})


def draw_every_engine(inputs: Inputs, load: Mapping[str, Any]) -> None:
    """Draw the metrics and missing features of every engine at this load on this GPU, sorted by tokens/s."""
    titles = {of.title: name for name, of in FIGURES.items() if name != "price" or inputs.cost}
    chosen = draw_fields(page_field("engine_which", choices=DEFAULT_ENGINES), stretch=True)
    title = state.segments("Metric", "engine_of", tuple(titles), "Output tokens/s")
    options = {**chosen, **omit(inputs.pool, "engine"), **_load_options(inputs, load)}
    compared = ask_in_background(
        "compare_engines", inputs, options, doing="Estimating every engine", command="engines --compare"
    ).ready_value
    st.caption(
        "Each engine uses its defaults and newest release, on the fewest GPUs that serve this load unless the "
        "sidebar sets more. Whiskers are 90 % intervals. Engines with overlapping intervals do not differ clearly."
    )
    views.draw_view(engine_comparison_view(compared, [titles[title]]), compared)
    _draw_reasons({row.engine: row.point for row in compared.rows})


def _draw_reasons(points: Mapping[str, LoadPoint]) -> None:
    """Show the reason for each verdict: the missed service levels, or why the load is not stable."""
    for name, point in points.items():
        reason = point.misses or (None if point.steady else point.verdict_reason)
        parts.draw_notes([phrase("{}: {}", name, reason)])
