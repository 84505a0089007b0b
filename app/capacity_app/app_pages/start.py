"""Start page: a question in any form, its assumptions, the replicas that it needs, and links to the other pages."""

import streamlit as st

from capacity.base.mappings import select
from capacity.deployment import Traffic, build
from capacity.deployment.use_cases import filled_notes, find_use_case
from capacity.report.use_cases import assumption_rows
from capacity.service.jobs import Task
from capacity.workload import parse_slos
from capacity_app import parts
from capacity_app.error_display import escape_markdown, show_errors
from capacity_app.question_box import draw_question_box
from capacity_app.router import current_inputs

inputs = current_inputs()
fields = draw_question_box()
slo, assumed = inputs.slo, None
if "use_case" in inputs.spread:
    case = find_use_case(inputs.spread["use_case"])
    limits = {"ttft": inputs.ttft_ms / 1e3, "tpot": inputs.tpot_ms / 1e3}
    if all(limits.get(level.metric, level.limit_s) == level.limit_s for level in parse_slos(case.slo.limits)):
        slo = case.slo.limits
    lengths = {name: value for name, value in inputs.lengths.items() if value != getattr(case, name).mean}
    users = select(fields, ("users", "think_time_s", "response_s"))
    with show_errors():
        assumed = build(Traffic, {"use_case": case.name, **lengths, **users})
with show_errors():
    tensor = inputs.pool.get("tensor_parallel_size", 1)
    question = f"How many replicas of {inputs.model_name} on {tensor} x {inputs.pool['gpu']} serve "
    st.markdown(escape_markdown(f"{question}{inputs.request_rate:g} requests/s?"))
    load = {
        "model": inputs.model,
        "pool": inputs.pool,
        "traffic": inputs.load,
        "cost": inputs.cost,
        "slo": slo,
    }
    parts.draw_replicas(Task(function="capacity_app.tasks:replicas", arguments=load))
if assumed is not None:
    with st.expander("Assumptions", expanded=True, key="start_more"):
        rows = assumption_rows(assumed, slo)
        columns = {name: st.column_config.TextColumn(width="medium") for name in ("what", "value")}
        alt = "Every assumed value and its source."
        parts.draw_table("assumptions", rows, alt=alt, column_config=columns)
    parts.draw_notes(filled_notes(assumed)[-1:] if "users" in fields else ())
