"""Simulate page: latency of each request, and variants of the deployment with other batching or caching."""

import math
from pathlib import Path
from typing import Any

import streamlit as st

from capacity.answers.records import Simulation
from capacity.base.latency_metrics import METRICS, REQUEST_METRICS
from capacity.base.mappings import omit
from capacity.deployment.pool_routers import POOL_ROUTERS
from capacity.deployment.routers import ROUTERS
from capacity.report.views.one_run import first_facts, run_charts
from capacity.workload import parse_slos
from capacity_app import parts, sides, state, views, watch_view
from capacity_app.error_display import escape_markdown
from capacity_app.questions import make_side_task, verb_task
from capacity_app.router import current_inputs
from capacity_app.traffic import draw_traffic, duration_s
from capacity_app.widgets import draw_fields, page_field, widget_row

VARIANTS: dict[str, dict[str, Any]] = {
    "static batching": {"scheduling": "static"},
    "contiguous KV": {"kv_layout": "contiguous"},
    "no prefix cache": {"enable_prefix_caching": False},
    "whole prompts": {"enable_chunked_prefill": False},
}
SAMPLES = 400  # of the time series, approximately
inputs = current_inputs()


def run_simulation(label: str, options: dict[str, Any], sample_s: float) -> Simulation | None:
    """Return the simulation with these options, or None until it is finished."""
    task = verb_task("simulate", inputs.model, {**options, "sample_interval_s": sample_s})
    answer: Simulation | None = parts.run_in_background(
        f"simulate_{label}", task, doing=f"Simulating, {label}"
    ).value
    return answer


def draw_verdict(label: str, answer: Simulation) -> None:
    """Draw the verdict (stable or not) and its reason as text with an icon."""
    verdict = answer.verdict
    if verdict is None:
        st.info(escape_markdown(f"{label}: {answer.run.status}"), icon=":material/stop:")
    else:
        parts.draw_verdict(verdict.verdict, f"{label}: {verdict.verdict}. {verdict.reason}")


def figures_of_merit(answer: Simulation) -> list[parts.Kpi]:
    """Return the key metrics of a simulated run; costs are those at the simulated load."""
    return views.figures_of_merit(first_facts(answer))


def draw_metrics(answer: Simulation, options: dict[str, Any]) -> None:
    """Draw the metrics of the configured deployment; if it is overloaded, also the replicas that it needs."""
    without_cost = omit(options, *inputs.cost)
    current = sides.Side(
        page="simulate", model=inputs.model_name, options=without_cost, cost=dict(inputs.cost)
    )
    overloaded = answer.verdict is not None and answer.verdict.verdict == "overloaded"
    has_rate = math.isfinite(options.get("request_rate", math.inf))
    if overloaded and has_rate and not sides.pinned_sides():
        parts.draw_replicas(sides.replicas_task(inputs.model, current, inputs.slo))
    sides.draw_figures(
        current, answer, ask=make_side_task("simulate", inputs), row=figures_of_merit, slo=inputs.slo
    )
    if answer.cost is not None:
        source = f"{answer.cost.tier}: {answer.cost.source}"
        st.caption(escape_markdown(f"{source}. The cost excludes the run's warm-up and drain."))


def draw_variants(done: dict[str, Simulation]) -> None:
    """Draw the metrics of every variant, and their differences from the configured deployment."""
    st.markdown("**Variants on the same arrivals**")
    table = sides.comparison_rows({label: figures_of_merit(answer) for label, answer in done.items()})
    parts.draw_table(
        "variants",
        table,
        alt="Metrics of each variant, and their differences from the configured deployment.",
    )


def draw_results(traffic: dict[str, Any]) -> None:
    """Draw everything below the inputs: verdict, metrics, charts and variants."""
    options = {
        **inputs.pool,
        **traffic,
        **service,
        **inputs.client,
        **inputs.cost,
        "goodput": [str(level) for level in (f"ttft:{inputs.ttft_ms:g}", f"tpot:{inputs.tpot_ms:g}")],
    }
    parse_slos(options["goodput"])
    sample_s = duration_s(traffic, inputs) / SAMPLES
    answers = {"as configured": run_simulation("as configured", options, sample_s)}
    for variant in chosen:
        answers[variant] = run_simulation(variant, {**options, **VARIANTS[variant]}, sample_s)
    done = {label: answer for label, answer in answers.items() if answer is not None}

    base = done.get("as configured")
    if base is not None:
        for label, answer in done.items():
            draw_verdict(label, answer)
        draw_metrics(base, options)
        if len(done) > 1:
            draw_variants(done)
        pasted = {**options, "trace": Path(options["trace"]).name} if "trace" in options else options
        parts.draw_code_snippets("simulate", inputs.model_name, pasted, base)
        parts.draw_notes(base.warnings)
    if done:
        keys = {METRICS[key].title: key for key in REQUEST_METRICS}
        key = keys[state.segments("Latency", "sim_metric", tuple(keys), "TTFT")]
        for drawing in run_charts(done, [key], ttft=inputs.ttft_ms / 1e3, tpot=inputs.tpot_ms / 1e3):
            views.show_chart(drawing, next(iter(done.values())))

    watch_view.show_recording(inputs, options, service.get("replicas", 1))


traffic = draw_traffic(inputs)
with widget_row():
    service = draw_fields("sim_replicas")
    routers = tuple(name for name in ROUTERS if name not in POOL_ROUTERS)  # a page has one pool
    service |= draw_fields(page_field("sim_router", choices=routers), disabled=not service)
chosen = st.pills(
    "Variants on the same arrivals",
    tuple(VARIANTS),
    selection_mode="multi",
    default=[],
    **state.bind_to_url("sim_beside", []),
    help="Simulate the same requests with another batching or caching method.",
)

draw_results(traffic)
