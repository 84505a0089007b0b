"""Plan: what to rent for a service level, ranked, with what was turned down and the files to launch it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import dedent
from typing import Any

import streamlit as st

from capacity.base.command_text import command_line, python_call
from capacity.deployment import Traffic
from capacity.hardware import profile_names
from capacity.planning.records import Plan, Ranked
from capacity.planning.search.plan_search import Snapshot
from capacity.report.figures.planning import miss_rows, ranked_rows, rejected_rows, speed_chart, whisker_words
from capacity.report.plan import CONDITIONAL, conditional_texts
from capacity.report.plan_summary import wrapped
from capacity.report.tables import finite
from capacity_app import parts, plan_sides, sides, state
from capacity_app.boundary import plain
from capacity_app.plan_download import zipped
from capacity_app.router import current_inputs
from capacity_app.side import OBJECTIVES

PERCENTILES = ("p50", "p90", "p95", "p99")
DOLLARS, SHARES = ("$/h", "$/month", "$/1M output"), ("of the limit", "confidence")
CHOSEN = ("h100-sxm-80gb", "l40s-48gb")

inputs = current_inputs()
st.caption("Traffic, model and price are the sidebar's; GPU, parallelism and formats are what is searched.")
places = st.columns(5)
with places[0]:
    statistic = state.choice("Service level at", "plan_at", PERCENTILES, "p95")
with places[1]:
    ttft_ms = state.number("TTFT up to, ms", "plan_ttft", 1000.0, 1.0, 600_000.0, step=50.0, format="%.0f")
with places[2]:
    tpot_ms = state.number("TPOT up to, ms", "plan_tpot", 50.0, 0.1, 60_000.0, step=5.0, format="%.1f")
with places[3]:
    e2e_s = st.number_input(
        "E2E up to, s",
        0.001,
        1e6,
        None,
        placeholder="any",
        **state.bound("plan_e2e", None),
        help="From question to last token, where that is owed.",
    )
with places[4]:
    most = state.whole("GPUs at most", "plan_most", 64, 1, 100_000)
gpus = st.multiselect(
    "GPUs to choose from", profile_names(), CHOSEN, **state.bound("plan_gpus", list(CHOSEN))
)
wide, middle, last = st.columns([2, 1, 1])
with wide:
    objective = state.segments("Least", "plan_for", OBJECTIVES, "cost" if inputs.cost else "gpus")
with middle:
    requests = state.requests_to_simulate("plan_n")
with last:
    limit_s = state.whole("Search for up to, s", "plan_s", 60, 5, 600, step=10)

slo = [f"ttft:{statistic}:{ttft_ms:.15g}ms", f"tpot:{statistic}:{tpot_ms:.15g}ms"]
if e2e_s is not None:
    slo.append(f"e2el:{statistic}:{e2e_s:.15g}s")
traffic = {
    **inputs.lengths,
    **inputs.spread,
    "request_rate": inputs.request_rate,
    **requests,
    **inputs.client,
}
options = {
    "gpus": tuple(gpus),
    "slo": tuple(slo),
    **traffic,
    **inputs.cost,
    "objective": objective,
    "max_gpus": most,
    "time_limit_s": float(limit_s),
}
engine = inputs.pool.get("engine")
if engine is not None:
    options["engines"] = (engine,)
task = plan_sides.task_of(inputs.model, options)


def so_far(report: Snapshot) -> tuple[float, str]:
    """How the search stands."""
    best = "nothing yet" if report.best is None else report.best.label
    words = f"{report.simulated:,} simulated in {report.elapsed_s:.0f} s, best so far: {best}"
    return min(report.settled / max(report.engines, 1), 1.0), words


def launched(best: Ranked) -> None:
    """What starts the winner, to copy; the archive below has it for all."""
    for line in best.launch:
        role = "" if line.role == "both" else f", for {line.role}"
        st.caption(
            f"Starts {'each of ' if line.replicas > 1 else ''}{line.replicas} replica"
            f"{'s' * (line.replicas > 1)}{role}:"
        )
        st.code(dedent("\n".join(wrapped(line.command))), language="shell", wrap_lines=True)
        parts.notes(line.notes)
    if not best.launch:
        st.caption("Nothing launches this engine: it is a baseline.")


def compared(plan: Plan, options: Mapping[str, Any]) -> None:
    """The winner in figures, beside those of the plans that are pinned."""
    sides.figures(
        sides.side_of(plan_sides.PAGE, options),
        plan,
        ask=lambda side: plan_sides.ask(side, inputs),
        row=plan_sides.figures_of_merit,
    )


def files_of(plan: Plan, options: Mapping[str, Any]) -> None:
    """The plan on a page to print, as JSON, and with what launches it as one archive."""
    traffic = Traffic(**{name: value for name, value in options.items() if name in Traffic.model_fields})
    asked = {name: value for name, value in options.items() if name != "model"}
    command = command_line("plan", inputs.model_name, asked)
    with st.container(horizontal=True):
        parts.download(
            "Report and launch commands",
            "plan.zip",
            lambda: zipped(plan, options["model"], traffic),
            mime="application/zip",
        )
        parts.download(
            "JSON",
            "plan.json",
            lambda: json.dumps(finite(plan.to_dict()), indent=2, allow_nan=False),
            mime="application/json",
        )
        parts.answer_page("plan", plan, command, python_call("plan", inputs.model_name, asked))


def show(plan: Plan, options: Mapping[str, Any]) -> None:
    """The plan, and the files of what was asked."""
    if plan.best is None:
        st.error("Nothing in the space meets the service levels.", icon=":material/close:")
        compared(plan, options)
        parts.table("misses", miss_rows(plan), alt="For each service level the best value found, and where.")
    else:
        price = "" if plan.best.cost is None else f", ${plan.best.cost.usd_per_hour:,.2f} an hour"
        st.success(plain(f"{plan.best.candidate.label}{price}; {plan.proof}"), icon=":material/check:")
        compared(plan, options)
        launched(plan.best)
        st.subheader("Deployments that meet the service levels, best first")
        formats = {**dict.fromkeys(DOLLARS, "dollar"), **dict.fromkeys(SHARES, "percent")}
        columns = {name: st.column_config.NumberColumn(format=kind) for name, kind in formats.items()}
        parts.table("ranked", ranked_rows(plan), alt="The ranked deployments.", column_config=columns)
        parts.chart(speed_chart(plan))
        st.caption(whisker_words(plan))
    if plan.conditional:
        st.subheader(CONDITIONAL)
        for text in conditional_texts(plan):
            st.markdown(f"- {plain(text)}")
    files_of(plan, options)
    st.subheader("Turned down, and why")
    parts.table("rejected", rejected_rows(plan), alt="Every deployment that is no answer, with its reason.")
    parts.notes([*(f"price of {price}" for price in plan.prices), *plan.warnings])


button = None if sides.is_pinned(plan_sides.PAGE) else "Search"
answer = parts.background("plan", task, doing="Searching", button=button, reading=so_far)
parts.copies("plan", inputs.model_name, options, None)
if answer.value is not None:
    show(answer.value, answer.arguments)
