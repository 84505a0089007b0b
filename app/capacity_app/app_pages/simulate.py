"""Simulate: what users would see, and what they would see if it were batched or cached otherwise."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

import capacity
from capacity.answers.records import Quantity, Simulation
from capacity.base.latency_metrics import METRICS, REQUEST_METRICS
from capacity.deployment.pool_routers import APART
from capacity.deployment.routers import ROUTERS
from capacity.report.display import shown
from capacity.report.figures import runs as figures
from capacity.report.simulation import drained_text, is_at_full_load, prediction_of
from capacity.simulator.verdict import UNSETTLED
from capacity.workload import parse_slos
from capacity_app import parts, sides, state, watch_view
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.questions import asker
from capacity_app.router import current_inputs
from capacity_app.traffic import duration_s, traffic_widgets
from capacity_app.widgets import draw, show_field, widget_row

VARIANTS: dict[str, dict[str, Any]] = {
    "static batching": {"scheduling": "static"},
    "contiguous KV": {"kv_layout": "contiguous"},
    "no prefix cache": {"enable_prefix_caching": False},
    "whole prompts": {"enable_chunked_prefill": False},
}
SAMPLES = 400  # of the time series, over about the run's length
inputs = current_inputs()
units = inputs.units


def run(label: str, options: dict[str, Any], sample_s: float) -> Simulation | None:
    """The run of these options; None while there is none."""
    task = Task(
        function="capacity:simulate",
        arguments={"model": inputs.model, **options, "sample_interval_s": sample_s},
        reports=True,
    )
    answer: Simulation | None = parts.background(
        f"simulate_{label}", task, doing=f"Simulating, {label}"
    ).value
    return answer


def verdict_line(label: str, answer: Simulation) -> None:
    """Stable or not, in words and by an icon."""
    if answer.verdict is None:
        st.info(plain(f"{label}: {answer.run.status}"), icon=":material/stop:")
        return
    verdict = answer.verdict
    parts.verdict(verdict.verdict, f"{label}: {verdict.verdict}. {verdict.reason}")


def figures_of_merit(answer: Simulation) -> list[parts.Kpi]:
    """The KPI row, and what the deployment costs at the load that the run shows."""
    values = answer.to_dict()

    def timed(label: str, name: str) -> parts.Kpi:
        """A latency with its 90 % interval, where the simulator has earned one against real servers."""
        value_ms, own, like = values[name], answer.predicted_ms.get(name), prediction_of(answer, name)
        if value_ms is None:
            return parts.Kpi(label, "-")
        text = units.time_text(value_ms / 1e3, None if like is None else like.scaled(1e-3))
        within = "" if own is None else units.time_interval(own.scaled(1e-3))
        return parts.Kpi(label, text, within, replace(own or Quantity(value=0.0), value=value_ms))

    def counted(label: str, form: str, below: str, number: float | None) -> parts.Kpi:
        return parts.exact(label, shown(number, form), below, number)

    return [
        timed("Mean TTFT", "mean_ttft_ms"),
        timed("p95 TTFT", "p95_ttft_ms"),
        timed("Mean TPOT", "mean_tpot_ms"),
        timed("p95 TPOT", "p95_tpot_ms"),
        counted("Requests/s", ",.2f", _rates(answer, values), values["request_throughput"]),
        counted("Output tokens/s", ",.0f", "over the whole run", values["output_throughput"]),
        counted("Goodput", ",.2f", "requests/s within the SLO", values["request_goodput"]),
        counted(
            "KV use",
            ".0%",
            f"peak {values['kv_utilization_peak']:.0%}, {values['preemptions']:,} preemptions",
            values["kv_utilization_mean"],
        ),
        *_cost(answer),
    ]


def _rates(answer: Simulation, values: dict[str, Any]) -> str:
    """How the rate of the whole run and the rate of arrivals go together."""
    failed = f", {values['failed']:,} failed" * (values["failed"] > 0)
    if drained_text(answer, values):
        offered = None if answer.verdict is None else answer.verdict.offered_requests_per_s
        return f"{shown(offered, ',.2f')} arrive and are served; less over the whole run, as its end drains{failed}"
    return f"{values['completed']:,} completed{failed}"


def _cost(answer: Simulation) -> list[parts.Kpi]:
    """What the deployment costs at the load that the run shows, by the same function as every bill."""
    cost = answer.cost
    if cost is None:
        return []
    judged = None if answer.verdict is None else answer.verdict.verdict
    steady = judged not in (None, *UNSETTLED)

    def dollars(label: str, form: str, below: str, usd: float) -> parts.Kpi:
        if not steady:
            full = f"; full load ${usd:{form}}" if is_at_full_load(answer) and label != "$ per hour" else ""
            return parts.Kpi(label, "-", (judged or "no verdict") + full)
        return parts.exact(label, f"${usd:{form}}", below, usd)

    gpus = f"{cost.billed_gpus} GPU{'s' * (cost.billed_gpus > 1)} at ${cost.usd_per_gpu_hour:,.2f}"
    at = f"at {cost.requests_per_s:,.2f} requests/s"
    return [
        dollars("$ per hour", ",.2f", gpus, cost.usd_per_hour),
        dollars("$ per 1M output", ",.3f", at, cost.usd_per_million_output_tokens),
        dollars("$ per 1M input", ",.3f", at, cost.usd_per_million_input_tokens),
        dollars("$ per 1k requests", ",.4f", at, 1e3 * cost.usd_per_request),
    ]


def variants(done: dict[str, Simulation]) -> None:
    """Figures of merit of every way of batching, and how far each is from what is configured."""
    st.markdown("**Beside it, on the same arrivals**")
    table = sides.rows({label: figures_of_merit(answer) for label, answer in done.items()})
    parts.table("variants", table, alt="The figures of each variant, and how far each is from as configured.")


def show(traffic: dict[str, Any]) -> None:
    """Everything below the inputs."""
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
    answers = {"as configured": run("as configured", options, sample_s)}
    for variant in chosen:
        answers[variant] = run(variant, {**options, **VARIANTS[variant]}, sample_s)
    done = {label: answer for label, answer in answers.items() if answer is not None}

    base = done.get("as configured")
    if base is not None:
        for label, answer in done.items():
            verdict_line(label, answer)
        said = {name: value for name, value in options.items() if name not in inputs.cost}
        current = sides.Side(page="simulate", model=inputs.model_name, options=said, cost=dict(inputs.cost))
        overloaded = base.verdict is not None and base.verdict.verdict == "overloaded"
        by_clock = math.isfinite(said.get("request_rate", math.inf))
        if overloaded and by_clock and not sides.pinned():
            parts.replicas_line(sides.replicas_task(inputs.model, current, inputs.slo))
        sides.figures(current, base, ask=asker("simulate", inputs), row=figures_of_merit, slo=inputs.slo)
        if base.cost is not None:
            st.caption(
                plain(
                    f"{base.cost.tier}: {base.cost.source}. The run's filling and draining are left out of its cost."
                )
            )
        if len(done) > 1:
            variants(done)
        pasted = {**options, "trace": Path(options["trace"]).name} if "trace" in options else options
        parts.copies("simulate", inputs.model_name, pasted, base)
        parts.notes(base.warnings)
    if done:
        keys = {METRICS[key].title: key for key in REQUEST_METRICS}
        key = keys[state.segments("Latency", "sim_metric", tuple(keys), "TTFT")]
        limit_s = {"ttft": inputs.ttft_ms / 1e3, "tpot": inputs.tpot_ms / 1e3}.get(key)
        parts.chart(figures.latency_chart(done, key, units, limit_s=limit_s))
        parts.chart(figures.state_chart(done))
        parts.chart(figures.time_parts_chart(done, units))
        parts.chart(figures.bounds_chart(done))

    watch_view.recorded(inputs, options, service.get("replicas", 1))


traffic = traffic_widgets(inputs)
of = partial(show_field, capacity.simulate)
with widget_row():
    service = draw(of("replicas", "sim_replicas", "Replicas", most=64))
    routers = tuple(name for name in ROUTERS if name not in APART)  # a page has one pool
    service |= draw(of("router", "sim_router", "Router", choices=routers), disabled=not service)
chosen = st.pills(
    "Beside it, on the same arrivals",
    tuple(VARIANTS),
    selection_mode="multi",
    default=[],
    **state.bound("sim_beside", []),
    help="The same requests under another way of batching or caching: every difference is that way's.",
)

if traffic is None:
    st.info("Upload a trace to replay it.", icon=":material/upload_file:")
else:
    show(traffic)
