"""Estimate: how fast and how dear, what bounds it, and what would help."""

from __future__ import annotations

import streamlit as st

import capacity
from capacity.report.display import (
    rate_and_interval,
    seconds_and_interval,
    time_and_interval,
    usd_interval,
    usd_text,
)
from capacity.report.figures.estimates import responses_chart, roofline_chart, shares_chart, step_chart
from capacity.techniques.glossary import define
from capacity_app import parts, state
from capacity_app.router import current_inputs

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
TOGETHER, LOOP, RATE = "a batch together", "a closed loop", "arrivals at a rate"

inputs = current_inputs()
units = inputs.units

load = state.segments(
    "Requests run as",
    "load",
    (TOGETHER, LOOP, RATE),
    TOGETHER,
    help="A batch is prefilled and decoded together, without a queue; a closed loop keeps the sidebar's concurrency in "
    "flight; arrivals come at the sidebar's requests/s.",
)
batch = st.select_slider(
    "Batch size",
    BATCHES,
    32,
    **state.bound("batch", 32),
    disabled=load != TOGETHER,
    help="Requests in the batch.",
)
loads: dict[str, dict[str, float]] = {
    TOGETHER: {"batch_size": batch},
    LOOP: {"concurrency": inputs.concurrency},
    RATE: {"request_rate": inputs.request_rate},
}
running = loads[load]
options = {**inputs.pool, **inputs.lengths, **running}
answer = capacity.estimate(inputs.model, **options, **inputs.cost)
steady = answer.ttft_s is not None
why = capacity.explain(inputs.model, **options) if steady else None


def kpi(label: str, shown: tuple[str, str], term: str) -> parts.Kpi:
    """A figure with its 90 % interval and the glossary's definition."""
    return parts.Kpi(label=label, value=shown[0], below=shown[1], help=define(term).definition)


figures = []
if answer.ttft_s is not None:
    figures.append(kpi("TTFT", time_and_interval(answer.ttft_s, units), "ttft"))
if answer.tpot_s is not None:
    figures.append(kpi("TPOT", time_and_interval(answer.tpot_s, units), "tpot"))
if answer.e2e_s is not None:
    figures.append(kpi("E2E latency", seconds_and_interval(answer.e2e_s), "e2e latency"))
figures.append(kpi("Output tokens/s", rate_and_interval(answer.output_tokens_per_s), "throughput"))
if answer.output_tokens_per_s_per_user is not None:
    figures.append(kpi("per user", rate_and_interval(answer.output_tokens_per_s_per_user), "throughput"))
figures += [
    kpi("per GPU", rate_and_interval(answer.output_tokens_per_s_per_gpu), "throughput"),
]
if answer.cost is not None:
    price = answer.usd_per_million_output_tokens
    figures.append(kpi("$ per 1M output", (usd_text(price), usd_interval(price)), "cost per token"))
parts.kpis(figures)
st.caption(f"Below each number: its 90 % interval. Basis: {answer.basis}.")
parts.copies("estimate", inputs.model_name, {**options, **inputs.cost}, answer)
if answer.verdict is not None:
    parts.verdict(answer.verdict, f"{answer.verdict}: {answer.verdict_reason}")
parts.notes(answer.warnings)

parts.chart(roofline_chart(answer))
left, right = st.columns(2)
with left:
    if why is not None:
        parts.chart(shares_chart(why))
with right:
    if why is not None:
        parts.chart(responses_chart(why))
phase = state.segments(
    "Step", "phase", ("prefill", "decode"), "decode" if answer.breakdown.decode else "prefill"
)
operators = answer.breakdown.prefill if phase == "prefill" else answer.breakdown.decode
if operators:
    parts.chart(step_chart(operators, "prefill" if phase == "prefill" else "decode", units))
else:
    st.info("A single output token: there is no decode step.")
