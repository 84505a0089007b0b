"""Estimate page: latency, cost, bottleneck and possible improvements."""

from typing import Any

import streamlit as st

from capacity.answers.records import Attribution, Estimate
from capacity.report.display import basis_text, phrase
from capacity.report.figures.estimates import PHASES, Phase
from capacity.report.views.one_load import estimate_charts, estimate_facts, explain_charts
from capacity.service.jobs import Task
from capacity_app import fitting, frontier_view, load_views, parts, sides, state, views, watch_view
from capacity_app.error_display import show_errors
from capacity_app.pages import (
    EVERY_ENGINE,
    EVERY_GPU,
    FRONTIER,
    LOOP,
    OVER_LOADS,
    RATE,
    THIS_LOAD,
    TOGETHER,
    TYPING,
)
from capacity_app.router import current_inputs
from capacity_app.tasks import estimate_and_bounds
from capacity_app.widgets import draw_fields

VIEWS = (THIS_LOAD, OVER_LOADS, EVERY_GPU, EVERY_ENGINE, FRONTIER, TYPING)
VIEWS_HELP = (
    "This load: the bottleneck. Over the load: the same deployment from low load to saturation. Every GPU: latency and "
    "cost of other GPUs at this load. Every engine: metrics and missing features of all engines on this GPU at this "
    "load. Frontier: speed per user against throughput per GPU, for several GPUs, formats and engines. Typing: what a "
    "user sees, in real time."
)

inputs = current_inputs()

load = state.segments(
    "Load type",
    "load",
    (TOGETHER, LOOP, RATE),
    TOGETHER,
    help="A batch is prefilled and decoded together, without a queue. A closed loop keeps the sidebar's concurrency in "
    "flight. Arrivals use the sidebar's requests/s.",
)
together = draw_fields("batch", disabled=load != TOGETHER, stretch=True)
loads: dict[str, dict[str, float]] = {
    TOGETHER: together,
    LOOP: {"concurrency": inputs.concurrency, **inputs.spread},
    RATE: {"request_rate": inputs.request_rate, **inputs.spread},
}
options = {**inputs.pool, **inputs.lengths, **loads[load], **inputs.client}


Found = tuple[Estimate, Attribution | None]


def draw_summary(found: Found) -> dict[str, Estimate]:
    """Draw the key metrics; return the estimates of the current and the pinned deployments by letter (A, B, ...)."""
    answer, _ = found
    parts.draw_verdict(answer.verdict, f"{answer.verdict}: {answer.verdict_reason or ''}")
    current = sides.Side(page="estimate", model=inputs.model_name, options=options, cost=dict(inputs.cost))
    if answer.ttft_s is None and not sides.pinned_sides():
        parts.draw_replicas(sides.replicas_task(inputs.model, current, inputs.slo))
    answers = sides.draw_figures(
        current,
        found,
        ask=side_task,
        row=lambda each: views.figures_of_merit(estimate_facts(each[0], inputs.offers)),
        slo=inputs.slo,
    )
    queue = phrase(", including queueing", answer.verdict)
    st.caption(
        f"Below each number is its 90 % interval{queue}. Basis: {basis_text(answer.basis, answer.gpu.name)}."
    )
    if load == TOGETHER:
        st.caption(
            "All requests of the batch start together without a queue, so TTFT is the prefill time of all prompts. "
            "For latencies at the sidebar's requests/s, choose “arrivals at a rate”."
        )
    if answer.in_step:
        st.badge("Identical lengths synchronise", icon=":material/sync:", color="orange")
    parts.draw_notes(answer.warnings)
    return {letter: each for letter, (each, _) in answers.items()}


def side_task(side: sides.Side) -> Task:
    """Return the task that computes the estimate of one side of the comparison."""
    asked = {"model": sides.side_model(side, inputs), "options": side.options, "cost": side.cost}
    return Task(function="capacity_app.tasks:estimate_and_bounds", arguments=asked)


def draw_this_load(answer: Estimate, why: Attribution | None) -> None:
    """Draw the components of the step time at this load."""
    usual: Phase = "decode" if answer.breakdown.decode else "prefill"
    phase: Any = state.segments("Step", "phase", PHASES, usual)
    if not getattr(answer.breakdown, phase):
        st.info("With a single output token there is no decode step.")
    for block in estimate_charts(answer, phase):
        views.show_chart(block, answer)
    if why is not None:
        for column, chart in zip(st.columns(2), explain_charts(why), strict=True):
            with column:
                views.show_chart(chart, why)


def show_typing(answers: dict[str, Estimate]) -> None:
    """Animate text at the speed of this deployment and of each pinned one, or of another GPU if none is pinned."""
    if len(answers) < 2 and (other := watch_view.estimate_of_other_gpu(inputs, options)) is not None:
        answers = {**answers, "B": other}
    watch_view.show_typing_speeds(answers, inputs)


asked = {"options": options, "cost": inputs.cost}
found: Found | None = None
beside_it: dict[str, Estimate] = {}
with show_errors(), fitting.show_ways_to_fit(inputs):
    if load == TOGETHER:
        found = estimate_and_bounds(inputs.model, **asked)
    else:
        task = Task(
            function="capacity_app.tasks:estimate_and_bounds", arguments={"model": inputs.model, **asked}
        )
        found = parts.run_in_background("estimate", task, doing="Estimating the load").value
    parts.draw_code_snippets("estimate", inputs.model_name, {**options, **inputs.cost}, found and found[0])
    if found is not None:
        beside_it = draw_summary(found)
view = state.segments("Show", "view", VIEWS, THIS_LOAD, help=VIEWS_HELP)
at_this_load = {
    OVER_LOADS: load_views.draw_load_sweep,
    EVERY_GPU: load_views.draw_every_gpu,
    EVERY_ENGINE: load_views.draw_every_engine,
}
with show_errors():
    if view in at_this_load:
        at_this_load[view](inputs, loads[load])
    elif view == FRONTIER:
        frontier_view.draw_frontier(inputs)
    elif view == TYPING:
        show_typing(beside_it)
    elif found is not None:
        draw_this_load(*found)
