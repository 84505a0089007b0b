"""Prefill apart: replicas that only prefill and others that only decode, at every ratio, on the same arrivals."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

import capacity
from capacity.answers.records import Simulation
from capacity.report.display import time_and_interval
from capacity.report.figures.techniques import split_chart, split_rows
from capacity_app import parts
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.router import current_inputs
from capacity_app.tasks import split_name
from capacity_app.traffic import requests_to_simulate
from capacity_app.widgets import draw, show_field, widget_row

inputs = current_inputs()
units = inputs.units


def figures_of_merit(answer: Simulation) -> None:
    """What users of the chosen split see."""
    values = answer.to_dict()

    def latency(label: str, name: str) -> parts.Kpi:
        known = answer.predicted_ms.get(name)
        if values[name] is None or known is None:
            return parts.Kpi(label=label, value="-")
        value, interval = time_and_interval(known.scaled(1e-3), units)
        return parts.Kpi(label=label, value=value, below=interval)

    parts.kpis(
        [
            latency("p95 TTFT", "p95_ttft_ms"),
            latency("p95 TPOT", "p95_tpot_ms"),
            latency("p95 E2E", "p95_e2el_ms"),
            parts.Kpi(
                label="Requests/s",
                value=f"{values['request_throughput']:,.2f}",
                below=f"{values['completed']:,} completed, {values['failed']:,} failed",
                help="Completed requests over the whole run, its beginning and end included.",
            ),
            parts.Kpi(
                label="Output tokens/s",
                value=f"{values['output_throughput']:,.0f}",
                help="Of all replicas together, over the whole run.",
            ),
        ]
    )
    if answer.verdict is not None:
        parts.verdict(answer.verdict.verdict, f"{answer.verdict.verdict}. {answer.verdict.reason}")


of = partial(show_field, capacity.simulate)
with widget_row():
    shared = draw(of("replicas", "dis_replicas", "Replicas", start=4, least=2, most=16))
    transfer = draw(
        of("kv_transfer_link", "dis_link", "KV goes over"),
        of("kv_transfer_layerwise", "dis_layers", "Layer by layer"),
    )
    shared |= draw(requests_to_simulate("dis_n", start=400, least=20, most=20_000))
common: dict[str, Any] = {**inputs.pool, **inputs.load, **shared, "router": "least-outstanding"}
task = Task(
    function="capacity_app.tasks:splits",
    arguments={"model": inputs.model, "common": common, "transfer": transfer},
    reports=True,
)
runs = parts.background("splits", task, doing="Simulating splits").value
replicas = shared["replicas"]
apart = of(
    "prefill_replicas",
    "dis_prefill",
    "Replicas that only prefill",
    choices=range(replicas),
    start=1,
    default=0,
)
split = draw(apart, stretch=True)
prefill = split.get("prefill_replicas", 0)
options = {**common, **split, **(transfer if prefill else {})}
answer = None if runs is None else runs.get(split_name(replicas, prefill))
parts.copies("simulate", inputs.model_name, options, answer)
if answer is not None:
    st.caption(plain(f"{split_name(replicas, prefill)}, {inputs.request_rate:g} requests/s:"))
    figures_of_merit(answer)
    parts.chart(split_chart(runs))
    parts.table("splits", split_rows(runs), alt="Every split of the replicas, with its figures.")
    parts.notes(answer.warnings)
