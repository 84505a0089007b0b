"""Fleet: pools of unequal GPUs behind one router that tells requests apart by length, against one pool for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from capacity.answers.records import Quantity
from capacity.deployment import to_toml
from capacity.hardware import profile_names
from capacity.planning.fleets.fleet_records import FleetPlan, Layout, deployment_of_fleet
from capacity.planning.search.plan_search import Snapshot
from capacity.report.figures import fleets as figures
from capacity.report.fleet import PLACES, fleet_conditional_texts, layout_text, routed
from capacity.report.plan import CONDITIONAL, level_text
from capacity.report.subject import subject_of
from capacity_app import parts, sides, state
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.pages import AS_SIDEBAR, FLEET_SHAPES
from capacity_app.router import current_inputs

FUNCTION = "capacity.planning.fleets.fleet:fleet"
PERCENTILES = ("p50", "p90", "p95", "p99")
CHOSEN = ("h100-sxm-80gb", "l40s-48gb")
SPLITS = {"its prompt": "prompt", "prompt and answer": "request"}
inputs = current_inputs()


def exact(label: str, value: str, below: str, number: float | None) -> parts.Kpi:
    """A figure without an interval."""
    return parts.Kpi(
        label=label, value=value, below=below, number=None if number is None else Quantity(value=number)
    )


def figures_of_merit(plan: FleetPlan) -> list[parts.Kpi]:
    """What to rent, what it costs, and what that saves."""
    best = plan.best
    if best is None:
        return [
            parts.Kpi(label="To rent", value="nothing", below="neither one pool nor several meets the SLO")
        ]
    row = [
        parts.Kpi(label="To rent", value=layout_text(best), below=f"{plan.confidence:.0%} sure"),
        exact(
            "Threshold",
            figures.threshold_text(best),
            "for all" if len(best.pools) == 1 else f"of a {plan.split_by}, the shorter to the first pool",
            best.threshold_tokens,
        ),
        exact("GPUs", f"{best.num_gpus:,}", reserve_text(best), best.num_gpus),
    ]
    if best.usd_per_hour is not None:
        row.append(exact("Per hour", f"${best.usd_per_hour:,.2f}", "reserve included", best.usd_per_hour))
    if best.usd_per_request is not None:
        thousand = 1e3 * best.usd_per_request
        row.append(exact("$ per 1k requests", f"${thousand:,.4f}", "as they come", thousand))
    if plan.saved is not None:
        row.append(exact("Saved", f"{plan.saved:.1%}", "of one pool for all", plan.saved))
    day = plan.day
    if day is not None and day.scaled_usd_per_day is not None and day.fixed_usd_per_day is not None:
        row.append(
            exact(
                "A day",
                f"${day.scaled_usd_per_day:,.2f}",
                f"${day.fixed_usd_per_day:,.2f} with the peak's fleet around the clock",
                day.scaled_usd_per_day,
            )
        )
    return row


def reserve_text(best: Layout) -> str:
    """How many replicas of it are there in case others fail."""
    spare = [pool.spare_replicas for pool in best.pools]
    return "no reserve" if not any(spare) else f"{' + '.join(map(str, spare))} replicas in reserve"


def ask(side: sides.Side) -> Task:
    """The fleet of a side."""
    model = inputs.model if side.model == inputs.model_name else side.model
    return Task(function=FUNCTION, arguments={"model": model, **side.options, **side.cost}, reports=True)


def so_far(report: Snapshot) -> tuple[float, str]:
    """How the search of this threshold stands."""
    return min(report.settled / max(report.engines, 1), 1.0), f"{report.stage}, {report.elapsed_s:.0f} s"


def show(plan: FleetPlan, asked: Mapping[str, Any]) -> None:
    """The fleet, what every threshold would cost, the limits, the day, and the file that simulates it."""
    best = plan.best
    sides.figures(sides.side_of("fleet", asked), plan, ask=ask, row=figures_of_merit)
    for line in () if best is None else routed(plan, best):
        st.markdown(f"- {plain(line)}")
    if not plan.proved:
        st.warning("Not proved: the search ended early; cheaper fleets may exist.", icon=":material/timer:")
    if plan.proof is not None:
        met = "met" if plan.proof.met else "missed"
        levels = ", ".join(f"{level.slo} {level_text(level)}" for level in plan.proof.levels)
        worst = "" if plan.proof.window is None else f" (worst window: {plan.proof.window.text})"
        line = plain(
            f"All pools behind their router, simulated on {plan.proof.requests:,} requests: {met}; {levels}{worst}"
        )
        if plan.proof.met:
            st.success(line, icon=":material/check:")
        else:
            st.error(line, icon=":material/close:")
    drawn = figures.layouts_chart(plan)
    if drawn.rows:
        parts.chart(drawn)
        st.caption("Replicas are whole and prices those of the table: bars have no interval of their own.")
    if best is not None:
        parts.table("pools", figures.pool_rows(best), alt="The pools to rent.")
        parts.chart(figures.levels_chart(best, subject=subject_of(plan)))
        if plan.day is not None:
            parts.chart(figures.fleet_day_chart(plan))
    if plan.conditional:
        st.subheader(CONDITIONAL)
        for text in fleet_conditional_texts(plan):
            st.markdown(f"- {plain(text)}")
    st.subheader("Thresholds that were tried")
    parts.table(
        "layouts", figures.layout_rows(plan), alt="Every threshold that was tried, and what it costs."
    )
    if best is not None:
        said = {name: value for name, value in asked.items() if name != "model"}
        parts.download(
            "Deployment file",
            "fleet.toml",
            lambda: to_toml(deployment_of_fleet(plan, asked["model"], said)),
            mime="application/toml",
        )
        st.caption("Simulate it with: capacity simulate fleet.toml")
    parts.notes([*(f"price of {price}" for price in plan.prices), *plan.warnings])


def levels() -> tuple[str, ...]:
    """The service levels."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        at = state.choice("Service level at", "fleet_at", PERCENTILES, "p95", width=140)
        ttft_ms = state.number("TTFT up to, ms", "fleet_ttft", 1000.0, 1.0, 600_000.0, step=50.0, width=140)
        tpot_ms = state.number("TPOT up to, ms", "fleet_tpot", 50.0, 0.1, 60_000.0, step=5.0, width=140)
    return f"ttft:{at}:{ttft_ms:.15g}ms", f"tpot:{at}:{tpot_ms:.15g}ms"


def lengths() -> dict[str, Any]:
    """How far lengths differ: without that there is nothing to tell apart."""
    shape = state.choice(
        "Lengths",
        "fleet_lengths",
        FLEET_SHAPES,
        FLEET_SHAPES[0],
        width=190,
        help="As the sidebar varies them, or lognormal or gamma with the spread given here.",
    )
    spread = state.number(
        "Spread of prompts",
        "fleet_cv",
        1.0,
        0.0,
        10.0,
        step=0.1,
        disabled=shape == AS_SIDEBAR,
        width=150,
        help="Standard deviation over the mean of prompts.",
    )
    if shape == AS_SIDEBAR:
        return dict(inputs.spread)
    return {"length_distribution": shape, **({} if spread == 1.0 else {"input_len_cv": spread})}


slo = levels()
gpus = st.multiselect(
    "GPUs to choose from", profile_names(), CHOSEN, **state.bound("fleet_gpus", list(CHOSEN))
)
with st.container(horizontal=True, vertical_alignment="bottom"):
    shape = lengths()
    split = state.segments(
        "Told apart by",
        "fleet_by",
        tuple(SPLITS),
        "its prompt",
        help="What the router knows of a request's length.",
    )
    pools = state.whole(
        "Pools at most",
        "fleet_pools",
        2,
        1,
        len(PLACES),
        width=130,
        help="Of unequal GPUs, each for requests of some length. More take longer to search.",
    )
with st.container(horizontal=True, vertical_alignment="bottom"):
    spare = state.whole(
        "Spare replicas a pool",
        "fleet_spare",
        0,
        0,
        64,
        width=150,
        help="In reserve for failures, beyond those that the load needs; they count in the bill.",
    )
    peak = st.number_input(
        "Peak over mean",
        1.0,
        2.0,
        None,
        placeholder="no day",
        **state.bound("fleet_peak", None),
        width=140,
        help="The sidebar's requests/s are a day's peak, so many times its mean: asks for the bill of a fleet that "
        "follows the day.",
    )
    most = state.whole("GPUs at most", "fleet_most", 64, 1, 100_000, width=120)
    requests = state.whole("Requests to simulate", "fleet_n", 200, 10, 20_000, step=100, width=170)
    limit_s = state.whole("Search for up to, s", "fleet_s", 60, 5, 600, step=10, width=150)
options = {
    "gpus": tuple(gpus),
    "slo": slo,
    **inputs.lengths,
    **shape,
    "request_rate": inputs.request_rate,
    "num_prompts": requests,
    **inputs.client,
    **inputs.cost,
    **({} if inputs.cost else {"objective": "gpus"}),
    **({} if SPLITS[split] == "prompt" else {"split_by": SPLITS[split]}),
    **({} if pools == 2 else {"max_pools": pools}),
    **({} if spare == 0 else {"spare_replicas": spare}),
    **({} if peak is None else {"peak_to_mean": peak}),
    "max_gpus": most,
    "time_limit_s": float(limit_s),
}
if "engine" in inputs.pool:
    options["engines"] = (inputs.pool["engine"],)
task = Task(function=FUNCTION, arguments={"model": inputs.model, **options}, reports=True)
button = None if sides.is_pinned("fleet") else "Search"
answer = parts.background("fleet", task, doing="Searching", button=button, reading=so_far)
parts.copies("fleet", inputs.model_name, options, answer.value)
if answer.value is not None:
    show(answer.value, answer.arguments)
