"""Fleet: pools of unequal GPUs behind one router that tells requests apart by length, against one pool for all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

import capacity
from capacity.deployment import to_toml
from capacity.planning.fleets.fleet_records import FleetPlan, Layout, deployment_of_fleet
from capacity.planning.search.plan_search import Snapshot
from capacity.report.figures import fleets as figures
from capacity.report.fleet import PLACES, fleet_conditional_texts, layout_text, routed
from capacity.report.plan import CONDITIONAL, level_text
from capacity.report.subject import subject_of
from capacity_app import parts, sides
from capacity_app.boundary import plain
from capacity_app.pages import AS_SIDEBAR, FLEET_SHAPES
from capacity_app.parts import exact
from capacity_app.questions import answered, asker
from capacity_app.router import current_inputs
from capacity_app.traffic import levels, requests_to_simulate
from capacity_app.widgets import draw, show_field, widget_row

CHOSEN = ("h100-sxm-80gb", "l40s-48gb")
SPLITS = {"prompt": "its prompt", "request": "prompt and answer"}
inputs = current_inputs()


def figures_of_merit(plan: FleetPlan) -> list[parts.Kpi]:
    """What to rent, what it costs, and what that saves."""
    best = plan.best
    if best is None:
        return [parts.Kpi("To rent", "nothing", "neither one pool nor several meets the SLO")]
    row = [
        parts.Kpi("To rent", layout_text(best), f"{plan.confidence:.0%} sure"),
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


def so_far(report: Snapshot) -> tuple[float, str]:
    """How the search of this threshold stands."""
    return min(report.settled / max(report.engines, 1), 1.0), f"{report.stage}, {report.elapsed_s:.0f} s"


def show(plan: FleetPlan, asked: Mapping[str, Any]) -> None:
    """The fleet, what every threshold would cost, the limits, the day, and the file that simulates it."""
    best = plan.best
    sides.figures(sides.side_of("fleet", asked), plan, ask=asker("fleet", inputs), row=figures_of_merit)
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


of = partial(show_field, capacity.fleet)
slo = levels("fleet")
asked = draw(of("gpus", "fleet_gpus", "GPUs to choose from", start=CHOSEN), stretch=True)
with widget_row():
    shape = of(
        "length_distribution", "fleet_lengths", "Lengths", start=None, choices=FLEET_SHAPES, empty=AS_SIDEBAR
    )
    drawn = draw(shape)
    spread = of("input_len_cv", "fleet_cv", "Spread of prompts", most=10.0, step=0.1)
    lengths = {**(drawn or inputs.spread), **draw(spread, disabled=not drawn)}
    asked |= draw(
        of("split_by", "fleet_by", "Told apart by", words=SPLITS),
        of("max_pools", "fleet_pools", "Pools at most", most=len(PLACES)),
    )
with widget_row():
    asked |= draw(
        of("spare_replicas", "fleet_spare", "Spare replicas a pool", most=64),
        of("peak_to_mean", "fleet_peak", "Peak over mean", empty="no day"),
        of("max_gpus", "fleet_most", "GPUs at most", most=100_000),
        requests_to_simulate("fleet_n", start=200, most=20_000),
        of("time_limit_s", "fleet_s", "Search for up to, s", start=60, least=5, most=600, step=10),
    )
options = {
    "slo": slo,
    **inputs.lengths,
    **lengths,
    "request_rate": inputs.request_rate,
    **inputs.client,
    **inputs.cost,
    **({} if inputs.cost else {"objective": "gpus"}),
    **asked,
    **({"engines": (inputs.pool["engine"],)} if "engine" in inputs.pool else {}),
}
answer = answered("fleet", inputs, options, doing="Searching", button="Search", reading=so_far)
if answer.value is not None:
    show(answer.value, answer.arguments)
