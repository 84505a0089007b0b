"""Estimate: how fast and how dear, what bounds it, and what would help."""

from __future__ import annotations

import streamlit as st

import capacity
from capacity.answers.records import Attribution, Estimate, Quantity
from capacity.report.display import (
    as_sure,
    number_text,
    offers_text,
    rate_and_interval,
    seconds_and_interval,
    time_and_interval,
    usd_interval,
    usd_text,
)
from capacity.report.figures.estimates import (
    Phase,
    responses_chart,
    roofline_chart,
    shares_chart,
    step_chart,
    ttft_chart,
)
from capacity.report.subject import subject_of
from capacity_app import fitting, frontier_view, load_views, parts, sides, state, watch_view
from capacity_app.boundary import boundary
from capacity_app.jobs import Task
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
from capacity_app.tasks import estimated
from capacity_app.widgets import draw, show_field

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
VIEWS = (THIS_LOAD, OVER_LOADS, EVERY_GPU, EVERY_ENGINE, FRONTIER, TYPING)
VIEWS_HELP = (
    "This load: what bounds it. Over the load: the same deployment from little to much, and where it is full. Every "
    "GPU: who else serves this load, how fast and how dear. Every engine: the same of engines, and what each lacks. "
    "Frontier: several GPUs, formats and engines, speed for a user against use of a GPU. Typing: what a user sees, in "
    "real time."
)

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
batch = show_field(capacity.estimate, "batch_size", "batch", "Batch size", choices=BATCHES, start=32)
together = draw(batch, disabled=load != TOGETHER, stretch=True)
loads: dict[str, dict[str, float]] = {
    TOGETHER: together,
    LOOP: {"concurrency": inputs.concurrency, **inputs.spread},
    RATE: {"request_rate": inputs.request_rate, **inputs.spread},
}
options = {**inputs.pool, **inputs.lengths, **loads[load], **inputs.client}


NONE = ("-", "no steady state")
UNSERVED = "does not serve this load"


def kpi(label: str, shown: tuple[str, str], number: Quantity | None = None) -> parts.Kpi:
    """A figure with its 90 % interval."""
    return parts.Kpi(label, shown[0], shown[1], number)


def figures_of_merit(found: tuple[Estimate, Attribution | None]) -> list[parts.Kpi]:
    """The KPI row; without a steady state no latency stands there, and the verdict says why."""
    answer, _ = found
    ttft, tpot, e2e, per_user = (
        answer.ttft_s,
        answer.tpot_s,
        answer.e2e_s,
        answer.output_tokens_per_s_per_user,
    )
    rate, per_gpu, requests = (
        answer.output_tokens_per_s,
        answer.output_tokens_per_s_per_gpu,
        answer.requests_per_s,
    )
    single = NONE if ttft is None else ("-", "a single output token")
    served = "at most" if ttft is None else "as they arrive" if answer.request_rate else ""
    figures = [
        kpi("TTFT", NONE if ttft is None else time_and_interval(ttft, units), ttft),
        kpi("TPOT", single if tpot is None else time_and_interval(tpot, units), tpot),
        kpi("E2E latency", NONE if e2e is None else seconds_and_interval(e2e), e2e),
        *(
            kpi(title, time_and_interval(each, units), each)
            for title, each in answer.further_latencies.items()
            if each
        ),
        kpi("Output tokens/s", rate_and_interval(rate), rate),
        kpi("per user", NONE if per_user is None else rate_and_interval(per_user), per_user),
        kpi("per GPU", rate_and_interval(per_gpu), per_gpu),
        kpi(
            "Requests/s", (rate_and_interval(requests)[0], rate_and_interval(requests)[1] or served), requests
        ),
    ]
    if answer.verdict is not None:
        figures.append(kpi("In flight", *_in_flight(answer)))
    if answer.cost is not None:
        price, month = answer.usd_per_million_output_tokens, answer.cost.usd_per_month
        steady = ttft is not None
        full = f"{answer.verdict}; full load {usd_text(price)}" if answer.verdict == "overloaded" else NONE[1]
        shown = (usd_text(price), usd_interval(price)) if steady else (NONE[0], full)
        figures.append(kpi("$ per 1M output", shown, price if steady else None))
        offers = offers_text(month, answer.cost.usd_per_gpu_hour, inputs.offers) if steady else UNSERVED
        figures.append(
            kpi("$ a month", (f"${month:,.0f}", offers), Quantity(value=month) if steady else None)
        )
    return figures


def _in_flight(answer: Estimate) -> tuple[tuple[str, str], Quantity | None]:
    count = answer.requests_in_flight
    if count is None:
        return ("grows", ""), None
    return (number_text(count, as_sure(count, answer.e2e_s)), "requests/s x E2E"), Quantity(value=count)


def summary(found: tuple[Estimate, Attribution | None]) -> dict[str, Estimate]:
    """What every view begins with, beside what is pinned: the estimates by their letters."""
    answer, _ = found
    if answer.verdict is not None:
        parts.verdict(answer.verdict, f"{answer.verdict}: {answer.verdict_reason or ''}")
    current = sides.Side(page="estimate", model=inputs.model_name, options=options, cost=dict(inputs.cost))
    if answer.ttft_s is None and not sides.pinned():
        parts.replicas_line(sides.replicas_task(inputs.model, current, inputs.slo))
    answers = sides.figures(current, found, ask=ask, row=figures_of_merit, slo=inputs.slo)
    queue = "" if answer.verdict is None else ", queueing included"
    st.caption(f"Below each number: its 90 % interval{queue}. Basis: {answer.basis}.")
    if load == TOGETHER:
        st.caption(
            "A batch begins at once and nobody waits in a queue: TTFT is the prefill of all its prompts. What users "
            "see of the sidebar's requests/s is under “arrivals at a rate”."
        )
    if answer.in_step:
        st.badge("Equal lengths synchronise", icon=":material/sync:", color="orange")
    parts.notes(answer.warnings)
    return {letter: each for letter, (each, _) in answers.items()}


def ask(side: sides.Side) -> Task:
    """The estimate of a side."""
    asked = {"model": sides.model_of(side, inputs), "options": side.options, "cost": side.cost}
    return Task(function="capacity_app.tasks:estimated", arguments=asked)


def this_load(answer: Estimate, why: Attribution | None) -> None:
    """What this one load is made of."""
    if answer.ttft_parts_s is not None:
        parts.chart(ttft_chart(answer.ttft_parts_s, units, ttft_s=answer.ttft_s, subject=subject_of(answer)))
    parts.chart(roofline_chart(answer))
    if why is not None:
        left, right = st.columns(2)
        with left:
            parts.chart(shares_chart(why))
        with right:
            parts.chart(responses_chart(why))
    phase = state.segments(
        "Step", "phase", ("prefill", "decode"), "decode" if answer.breakdown.decode else "prefill"
    )
    operators = answer.breakdown.prefill if phase == "prefill" else answer.breakdown.decode
    if operators:
        of: Phase = "prefill" if phase == "prefill" else "decode"
        like = answer.ttft_s if phase == "prefill" else answer.tpot_s
        parts.chart(step_chart(operators, of, units, like=like, subject=subject_of(answer)))
    else:
        st.info("A single output token: there is no decode step.")


def typing(answers: dict[str, Estimate]) -> None:
    """This deployment beside those that are pinned; where none is, beside another GPU."""
    if len(answers) < 2 and (other := watch_view.beside(inputs, options)) is not None:
        answers = {**answers, "B": other}
    watch_view.typing(answers, inputs)


asked = {"options": options, "cost": inputs.cost}
found: tuple[Estimate, Attribution | None] | None = None
beside_it: dict[str, Estimate] = {}
with boundary(), fitting.offered(inputs):
    if load == TOGETHER:
        found = estimated(inputs.model, **asked)
    else:
        task = Task(function="capacity_app.tasks:estimated", arguments={"model": inputs.model, **asked})
        found = parts.background("estimate", task, doing="Serving the load").value
    parts.copies("estimate", inputs.model_name, {**options, **inputs.cost}, found and found[0])
    if found is not None:
        beside_it = summary(found)
view = state.segments("Show", "view", VIEWS, THIS_LOAD, help=VIEWS_HELP)
with boundary():
    if view == OVER_LOADS:
        load_views.over_loads(inputs, loads[load])
    elif view == EVERY_GPU:
        load_views.every_gpu(inputs, loads[load])
    elif view == EVERY_ENGINE:
        load_views.every_engine(inputs, loads[load])
    elif view == FRONTIER:
        frontier_view.show(inputs)
    elif view == TYPING:
        typing(beside_it)
    elif found is not None:
        this_load(*found)
