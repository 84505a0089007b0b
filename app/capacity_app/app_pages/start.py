"""Start page: from use case, users and response times to a plan, with all assumptions shown."""

from html import escape
from typing import Any

import streamlit as st

from capacity.deployment import Traffic, build
from capacity.deployment.use_cases import USE_CASES, UseCase, filled_notes, find_use_case
from capacity.report.use_cases import assumption_rows
from capacity.service.jobs import Task
from capacity.workload import Slo, parse_slos
from capacity_app import parts, state
from capacity_app.error_display import escape_markdown, show_errors
from capacity_app.question_box import draw_question_box
from capacity_app.router import current_inputs
from capacity_app.widgets import Field, draw_fields, show_field, widget_row

OBJECTIVES = {
    "the lowest bill": "cost",
    "the fewest GPUs": "gpus",
    "the least energy per token": "energy",
    "the least carbon per token": "carbon",
    "speed": "latency",
}
LIMITS = {  # per service level: label, unit in seconds, widget of the Plan page, and its value for no limit
    "ttft": ("Time to first token, ms", 1e-3, "plan_ttft", 600_000.0),
    "tpot": ("Time per token, ms", 1e-3, "plan_tpot", 60_000.0),
    "e2el": ("Time to whole answer, s", 1.0, "plan_e2e", None),
}
LINK = (
    "display:inline-block;padding:.55rem 1.1rem;margin-right:1rem;border-radius:.5rem;background:#0072B2;color:#ffffff;"
    "text-decoration:none;font-weight:600"
)
inputs = current_inputs()


def edited_fields(case: UseCase) -> dict[str, float | int]:
    """Draw the use case's traffic fields, and return the values that the user changed."""

    def show_number(name: str, key: str, label: str, usual: float, **page: Any) -> Field:
        # a key per use case, so that selecting another one shows its values
        key = f"start_{key}_{case.name}"
        return show_field((Traffic,), name, key, label, **{"start": usual, "default": usual} | page)

    think_s = case.think_time_s.mean
    response: dict[str, Any] = {"start": 0.0 if think_s else 1.0, "most": 86_400.0}
    with widget_row():
        return draw_fields(
            show_number(
                "input_len", "isl", "Tokens per question", case.input_len.mean, most=1_000_000, step=128
            ),
            show_number(
                "output_len", "osl", "Tokens per answer", case.output_len.mean, most=1_000_000, step=64
            ),
            show_number("think_time_s", "think", "Think time, s", think_s, most=86_400.0),
            show_number("response_s", "response", "Response time, s", 0.0, **response),
        )


def show_slos(case: UseCase, columns: Any) -> tuple[Slo, ...]:
    """Draw an input for each latency limit of the use case, and return the limits as service levels."""
    levels = []
    for level, column in zip(parse_slos(case.slo.limits), columns, strict=False):
        words, unit_s, *_ = LIMITS[level.metric]
        with column:
            limit = state.number(
                f"{words} (p{level.percentile:g})",
                f"start_{level.metric}_{case.name}",
                round(level.limit_s / unit_s, 6),
                0.001,
                1e6,
                help=f"{level.percentile:g} % of requests must meet this limit.",
            )
        levels.append(Slo(metric=level.metric, limit_s=limit * unit_s, percentile=level.percentile))
    return tuple(levels)


def plan_link(case: UseCase, traffic: Traffic, levels: tuple[Slo, ...], objective: str) -> str:
    """Return a link to the Plan page with all values filled in."""
    limits = {key: most for _, _, key, most in LIMITS.values() if most is not None}
    limits |= {LIMITS[level.metric][2]: round(level.limit_s / LIMITS[level.metric][1], 6) for level in levels}
    return state.link_to(
        "plan",
        isl=traffic.input_len,
        osl=traffic.output_len,
        rate=traffic.request_rate,
        lengths=case.name,
        plan_at=f"p{levels[0].percentile:g}",
        plan_for=objective,
        **limits,
    )


draw_question_box()
st.subheader("Or start from a use case")
st.caption("Set model, GPU and price in the sidebar.")
first = st.columns(3)
with first[0]:
    case = find_use_case(state.choice("Use case", "start_case", USE_CASES, USE_CASES[0]))
with first[1]:
    people = show_field(
        (Traffic,), "users", "start_users", "Concurrent users", start=100, most=10_000_000, step=50
    )
    users = draw_fields(people, stretch=True)["users"]
with first[2]:
    goal = OBJECTIVES[state.choice("Optimise for", "start_for", tuple(OBJECTIVES), next(iter(OBJECTIVES)))]
st.markdown(f"**{case.title}**: {case.about}")
levels = show_slos(case, st.columns(3))
answered = st.container()
with st.expander("Assumptions", expanded=True, key="start_more"):
    asked = {"use_case": case.name, "users": users, **edited_fields(case)}
    traffic = build(Traffic, asked)
    slo = tuple(str(level) for level in levels)
    same = levels == parse_slos(case.slo.limits)
    parts.draw_table(
        "assumptions",
        assumption_rows(traffic, case.slo.limits if same else slo),
        alt="Every assumed value and its source.",
        column_config={name: st.column_config.TextColumn(width="medium") for name in ("what", "value")},
    )
rate = traffic.request_rate or 0.0
simulate = state.link_to(
    "simulate", isl=traffic.input_len, osl=traffic.output_len, rate=rate, lengths=case.name
)
beside, onwards = answered.container(), answered.container()
formula = filled_notes(traffic)[-1]
with beside:
    parts.draw_kpis([parts.Kpi("Requests/s", f"{rate:,.2f}", f"from {users:,} users", help=formula)])
    with show_errors():
        served = {
            "model": inputs.model,
            "pool": inputs.pool,
            "traffic": asked,
            "cost": inputs.cost,
            "slo": slo,
        }
        tensor = inputs.pool.get("tensor_parallel_size", 1)
        st.markdown(
            escape_markdown(f"How many replicas of {inputs.model_name} on {tensor} x {inputs.pool['gpu']}?")
        )
        parts.draw_replicas(Task(function="capacity_app.tasks:replicas", arguments=served))
with onwards:
    st.html(
        f'<p><a style="{LINK}" href="{escape(plan_link(case, traffic, levels, goal))}">Find a deployment</a>'
        f'<a style="color: inherit" href="{escape(simulate)}">or simulate one deployment under this load</a></p>'
    )
options = {
    "gpus": ("h100-sxm-80gb", "l40s-48gb"),
    **asked,
    **({} if same else {"slo": slo}),
    **inputs.cost,
    **({} if goal == "cost" else {"objective": goal}),
}
parts.draw_code_snippets("plan", inputs.model_name, options, None)
parts.draw_notes([formula])
