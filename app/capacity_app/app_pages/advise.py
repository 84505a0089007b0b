"""What would help: the changes of the checklist that help this deployment, simulated on the same arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import streamlit as st

import capacity
from capacity.answers.records import Quantity, Simulation
from capacity.base.errors import CapacityError
from capacity.planning.variations.advice import AdviceList
from capacity.report.comparisons import compared_text
from capacity.report.display import rounded
from capacity.report.figures.techniques import advice_chart, advice_rows
from capacity.techniques.glossary import define
from capacity_app import parts
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.questions import answered
from capacity_app.router import current_inputs
from capacity_app.traffic import requests_to_simulate
from capacity_app.widgets import draw, show_field, widget_row

NO_WHISKERS = (
    "Bars have no whiskers: with and without a change the same arrivals are simulated by the same step model, whose "
    "error moves both alike; how sure each latency is stands above. A change of GPU, engine or format is less sure."
)

inputs = current_inputs()
units = inputs.units


def as_it_is(answer: AdviceList, base_run: Simulation | None) -> None:
    """The deployment before any change; the run of it alone, once it is there, says how sure its latencies are."""
    base = answer.base
    full = base.usd_per_request_full
    known = {} if base_run is None else base_run.predicted_ms

    def latency(name: str, seconds: float | None, of: str, means: str) -> parts.Kpi:
        if seconds is None:
            return parts.Kpi(name, "-", help=means)
        found = known.get(f"p95_{of}_ms", Quantity(value=1e3 * rounded(seconds))).scaled(1e-3)
        return parts.Kpi(
            name, units.time_text(found.value, found), units.time_interval(found), found, help=means
        )

    parts.kpis(
        [
            latency("p95 TTFT", base.ttft_p95_s, "ttft", define("ttft").definition),
            latency("p95 TPOT", base.tpot_p95_s, "tpot", define("tpot").definition),
            latency("p95 E2E", base.e2e_p95_s, "e2el", "From question to last token."),
            parts.Kpi(
                "Requests/s",
                f"{base.requests_per_s:,.2f}",
                f"{base.failed:,} failed",
                help="What is served while the load lasts.",
            ),
            parts.Kpi(
                "$ per 1k requests",
                "-" if full is None else f"${rounded(1e3 * full):,.12g}",
                "at full load",
                help="What a thousand requests cost where the deployment is as busy as it can be.",
            ),
        ]
    )


def run_alone(arguments: Mapping[str, Any]) -> Simulation | None:
    """The deployment as it is, simulated once more with the intervals of its latencies; None before it is there, and
    of what only advice is given on."""
    task = Task(function="capacity:simulate", arguments=arguments, reports=True)
    with suppress(CapacityError):
        run = parts.background("advise_base", task, doing="Simulating it as it is")
        return None if run.stale else run.value
    return None


def show(answer: AdviceList, base_run: Simulation | None) -> None:
    """The changes that help; what cannot be done here, and why."""
    as_it_is(answer, base_run)
    if answer.busiest_window is not None:
        st.caption(plain(compared_text(answer.busiest_window)))
    parts.chart(advice_chart(answer))
    st.caption(NO_WHISKERS)
    st.subheader("Changes that help")
    parts.table(
        "advice", advice_rows(answer), alt="Changes that help, with their effects on latency and cost."
    )
    if answer.without_benefit:
        names = "; ".join(line.change for line in answer.without_benefit)
        st.caption(plain(f"Simulated, no or less benefit: {names}."))
    if answer.refused:
        st.subheader("Not here, and why")
        rows = [{"change": line.change, "why not": line.refused} for line in answer.refused]
        parts.table("refused", rows, alt="Changes that cannot be made here, each with its reason.")
    parts.notes(answer.observations)


with widget_row():
    asked = draw(
        show_field(capacity.advise, "replicas", "adv_replicas", "Replicas", most=64),
        requests_to_simulate("adv_n", start=300, least=20, most=10_000),
    )
st.caption(
    plain(
        f"{inputs.request_rate:g} requests/s as in the sidebar; each change is simulated on the same arrivals."
    )
)
options = {**inputs.pool, **inputs.load, **asked, **inputs.cost}
found = answered("advise", inputs, options, doing="Trying changes", button="Try every change")
if found.value is not None:
    whole = found.value.busiest_window is None  # a run is of all requests
    show(found.value, run_alone(found.arguments) if whole else None)
