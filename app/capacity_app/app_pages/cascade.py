"""Cascade: something cheaper first, a semantic cache or a small model; $ and latency against the large one alone."""

from __future__ import annotations

from typing import Any

import streamlit as st

from capacity.answers.records import Quantity
from capacity.model import model_names
from capacity.planning.cascades.cascade_answer import CascadeAnswer
from capacity.report.cascade import change_text, rate_text, share_text
from capacity.report.display import text_and_interval, time_and_interval
from capacity.report.figures import cascades as figures
from capacity_app import parts, sides, state
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.pages import HOSTED, OWN_GPUS
from capacity_app.router import current_inputs

FUNCTION = "capacity.planning.cascades.cascade:cascade"
BY = {"its answer": "answer", "the prompt": "prompt"}
THOUSAND = 1e3
inputs = current_inputs()
units = inputs.units


def beside(label: str, texts: tuple[str, str], ours: Quantity, theirs: Quantity, alone: str) -> parts.Kpi:
    """A figure of the cascade with its interval, and how far it is from the large model alone."""
    value, within = texts
    below = "; ".join(filter(None, (within, f"alone {alone}, {change_text(ours, theirs)}")))
    return parts.Kpi(label=label, value=value, below=below, number=ours)


def money(label: str, ours: Quantity, theirs: Quantity, digits: int) -> parts.Kpi:
    """The same of dollars."""
    value, within = text_and_interval(ours, digits=digits)
    within = "" if ours.low == ours.high else within
    alone, _ = text_and_interval(theirs, digits=digits)
    return beside(label, (f"${value}", within), ours, theirs, f"${alone}")


def latency(label: str, ours: Quantity | None, theirs: Quantity | None) -> list[parts.Kpi]:
    """The same of a latency; nothing of an API whose latency nobody said."""
    if ours is None or theirs is None:
        return []
    return [beside(label, time_and_interval(ours, units), ours, theirs, time_and_interval(theirs, units)[0])]


def figures_of_merit(answer: CascadeAnswer) -> list[parts.Kpi]:
    """Bill, latency, and the rates at which it breaks even."""
    ours, alone, even = answer.cascade, answer.alone, answer.break_even
    row = [
        parts.Kpi(
            label="Saved",
            value=f"{answer.saved_fraction:.0%}",
            below=f"{'dearer' if answer.saved_fraction < 0 else 'less'} than {answer.model} alone",
            number=Quantity(value=answer.saved_fraction),
        ),
        money("$ a month", ours.usd_per_month, alone.usd_per_month, 0),
        money(
            "$ per 1k requests",
            ours.usd_per_request.scaled(THOUSAND),
            alone.usd_per_request.scaled(THOUSAND),
            4,
        ),
        *latency("Mean TTFT", ours.mean_ttft_s, alone.mean_ttft_s),
        *latency("Mean E2E", ours.mean_e2e_s, alone.mean_e2e_s),
        *latency("p95 E2E", ours.p95_e2e_s, alone.p95_e2e_s),
        parts.Kpi(
            label="GPUs",
            value=f"{ours.billed_gpus:,}",
            below=f"{alone.billed_gpus:,} alone",
            number=Quantity(value=ours.billed_gpus),
        ),
    ]
    if answer.escalation_rate is not None:
        row.append(
            parts.Kpi(
                label="Pays up to",
                value=share_text(even.escalation_rate_at_scale).partition(" (")[0],
                below=f"escalated; in whole engines here {rate_text(even.escalation_rate_here)}, "
                f"yours is {answer.escalation_rate:.1%}",
                number=even.escalation_rate_at_scale,
            )
        )
    if answer.cache_hit_rate is not None:
        row.append(
            parts.Kpi(
                label="Pays from",
                value=share_text(even.cache_hit_rate_at_scale).partition(" (")[0],
                below=f"cache hits; in whole engines here {rate_text(even.cache_hit_rate_here)}, "
                f"yours is {answer.cache_hit_rate:.1%}",
                number=even.cache_hit_rate_at_scale,
            )
        )
    return row


def ask(side: sides.Side) -> Task:
    """The cascade of a side."""
    model = inputs.model if side.model == inputs.model_name else side.model
    return Task(function=FUNCTION, arguments={"model": model, **side.options, **side.cost})


def show(answer: CascadeAnswer) -> None:
    """Where requests are answered, what a month costs, how long users wait, and at which rate it pays."""
    parts.chart(figures.cascade_bill_chart(answer))
    waits = figures.cascade_latency_chart(answer, units)
    if waits.rows:
        parts.chart(waits)
    if answer.rates:
        parts.chart(figures.cascade_chart(answer))
    if answer.together is not None:
        run = answer.together
        st.caption(
            plain(
                f"Simulated as one deployment: {run.completed:,} of {run.requests:,} requests answered, "
                f"{run.escalated:,} by the large model; {run.unseen_tokens:,} tokens of the small one thrown away."
            )
        )
    st.subheader("Where requests are answered")
    parts.table("tiers", figures.tier_rows(answer, units), alt="Every place that requests reach, in numbers.")
    parts.notes(answer.warnings)


def first() -> dict[str, Any]:
    """What is asked before the large model, as the library's keywords."""
    asked: dict[str, Any] = {}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        small = st.toggle("A small model first", True, **state.bound("casc_small", True))
        name = state.choice(
            "Small model", "casc_model", model_names(), "llama-3.2-1b", disabled=not small, width=220
        )
        rate = state.number(
            "goes on, share",
            "casc_rate",
            0.3,
            0.0,
            1.0,
            step=0.05,
            disabled=not small,
            width=140,
            help="Share of what the small model gets that goes on to the large one: yours to measure, as quality "
            "hangs on it.",
        )
        by = state.segments(
            "decided by",
            "casc_by",
            tuple(BY),
            "its answer",
            disabled=not small,
            help="The small model's whole answer is judged, so that some requests are answered twice; or a router "
            "decides by the prompt alone.",
        )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        cache = st.toggle("A semantic cache first", False, **state.bound("casc_cache", False))
        hits = state.number(
            "answers, share",
            "casc_hits",
            0.2,
            0.0,
            1.0,
            step=0.05,
            disabled=not cache,
            width=140,
            help="Share of requests whose answer to a similar question is good enough: yours to measure.",
        )
    if small:
        asked |= {"small": name, "escalation_rate": rate}
        asked |= {} if BY[by] == "answer" else {"escalate_by": BY[by]}
    return asked | ({"cache_hit_rate": hits} if cache else {})


def large(small: bool) -> dict[str, Any]:
    """Where the large model is: the sidebar's pool, or an API at a price; then the small one has the sidebar's GPU."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        place = state.segments("The large model runs on", "casc_on", (OWN_GPUS, HOSTED), OWN_GPUS)
        hosted = place == HOSTED
        usd_in = state.number("$ per 1M input", "casc_in", 0.4, 0.0, 1000.0, disabled=not hosted, width=130)
        usd_out = state.number(
            "$ per 1M output", "casc_out", 0.4, 0.0, 1000.0, disabled=not hosted, width=130
        )
        together = st.toggle(
            "Also simulate it whole",
            False,
            **state.bound("casc_whole", False),
            disabled=hosted or not small,
            help="Both models as one deployment, request by request: a few seconds more.",
        )
    if not hosted:
        return {**inputs.pool, **({"simulate": True} if together and small else {})}
    gpu = {"small_gpu": inputs.pool["gpu"]} if small else {}
    return {"api_input_price": usd_in, "api_output_price": usd_out, **gpu}


asked = first()
options = {
    **large("small" in asked),
    **inputs.lengths,
    **inputs.spread,
    "request_rate": inputs.request_rate,
    **inputs.client,
    **asked,
}
task = Task(function=FUNCTION, arguments={"model": inputs.model, **options, **inputs.cost})
answer = parts.background("cascade", task, doing="Serving both").value
parts.copies("cascade", inputs.model_name, {**options, **inputs.cost}, answer)
if answer is not None:
    current = sides.Side(page="cascade", model=inputs.model_name, options=options, cost=dict(inputs.cost))
    sides.figures(current, answer, ask=ask, row=figures_of_merit)
    show(answer)
