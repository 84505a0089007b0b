"""What would help: the optimisation checklist, each line simulated for this deployment on the same arrivals."""

from __future__ import annotations

import streamlit as st

from capacity.planning.advice import AdviceList
from capacity.report.figures.techniques import advice_chart, advice_rows
from capacity.techniques.glossary import define
from capacity_app import parts, state
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.router import current_inputs

inputs = current_inputs()
units = inputs.units


def as_it_is(answer: AdviceList) -> None:
    """The deployment before any change."""
    base = answer.base
    full = base.usd_per_request_full
    parts.kpis(
        [
            parts.Kpi(
                label="p95 TTFT", value=units.time_text(base.ttft_p95_s), help=define("ttft").definition
            ),
            parts.Kpi(
                label="p95 TPOT",
                value="-" if base.tpot_p95_s is None else units.time_text(base.tpot_p95_s),
                help=define("tpot").definition,
            ),
            parts.Kpi(
                label="p95 E2E", value=units.time_text(base.e2e_p95_s), help="From question to last token."
            ),
            parts.Kpi(
                label="Requests/s",
                value=f"{base.requests_per_s:,.2f}",
                below=f"{base.failed:,} failed",
                help="What is served while the load lasts.",
            ),
            parts.Kpi(
                label="$ per 1k requests",
                value="-" if full is None else f"${1e3 * full:,.4f}",
                below="at full load",
                help="What a thousand requests cost where the deployment is as busy as it can be.",
            ),
        ]
    )


def show(answer: AdviceList) -> None:
    """The changes, most beneficial first; what cannot be done here, and why."""
    as_it_is(answer)
    parts.chart(advice_chart(answer))
    st.subheader("Every change, most beneficial first")
    parts.table("advice", advice_rows(answer), alt="Every change with its effects on latency and cost.")
    if answer.refused:
        st.subheader("Not here, and why")
        rows = [{"change": line.change, "why not": line.refused} for line in answer.refused]
        parts.table("refused", rows, alt="Changes that cannot be made here, each with its reason.")
    parts.notes(answer.observations)


with st.container(horizontal=True, vertical_alignment="bottom"):
    replicas = state.whole("Replicas", "adv_replicas", 1, 1, 64, width=130)
    requests = state.whole("Requests to simulate", "adv_n", 300, 20, 10_000, step=100, width=180)
st.caption(
    plain(
        f"{inputs.request_rate:g} requests/s as in the sidebar; each change is simulated on the same arrivals."
    )
)
options = {
    **inputs.pool,
    **({} if replicas == 1 else {"replicas": replicas}),
    **inputs.lengths,
    **inputs.spread,
    "request_rate": inputs.request_rate,
    "num_prompts": requests,
    **inputs.client,
    **inputs.cost,
}
task = Task(function="capacity:advise", arguments={"model": inputs.model, **options}, reports=True)
answer = parts.background("advise", task, doing="Trying changes", button="Try every change").value
parts.copies("advise", inputs.model_name, options, answer)
if answer is not None:
    show(answer)
