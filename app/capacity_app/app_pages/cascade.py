"""Cascade: something cheaper first, a semantic cache or a small model; $ and latency against the large one alone."""

from __future__ import annotations

from functools import partial

import streamlit as st

import capacity
from capacity.answers.records import Quantity
from capacity.planning.cascades.cascade_answer import CascadeAnswer
from capacity.report.cascade import change_text, rate_text, share_text
from capacity.report.display import text_and_interval, time_and_interval
from capacity.report.figures import cascades as figures
from capacity_app import parts, sides, state
from capacity_app.boundary import plain
from capacity_app.pages import HOSTED, OWN_GPUS
from capacity_app.questions import answered, asker
from capacity_app.router import current_inputs
from capacity_app.widgets import draw, show_field, switch, widget_row

BY = {"answer": "its answer", "prompt": "the prompt"}
THOUSAND = 1e3
inputs = current_inputs()
units = inputs.units


def beside(label: str, texts: tuple[str, str], ours: Quantity, theirs: Quantity, alone: str) -> parts.Kpi:
    """A figure of the cascade with its interval, and how far it is from the large model alone."""
    value, within = texts
    below = "; ".join(filter(None, (within, f"alone {alone}, {change_text(ours, theirs)}")))
    return parts.Kpi(label, value, below, ours)


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
        parts.exact(
            "Saved",
            f"{answer.saved_fraction:.0%}",
            f"{'dearer' if answer.saved_fraction < 0 else 'less'} than {answer.model} alone",
            answer.saved_fraction,
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
        parts.exact("GPUs", f"{ours.billed_gpus:,}", f"{alone.billed_gpus:,} alone", ours.billed_gpus),
    ]
    if answer.escalation_rate is not None:
        row.append(
            parts.Kpi(
                "Pays up to",
                share_text(even.escalation_rate_at_scale).partition(" (")[0],
                f"escalated; in whole engines here {rate_text(even.escalation_rate_here)}, "
                f"yours is {answer.escalation_rate:.1%}",
                even.escalation_rate_at_scale,
            )
        )
    if answer.cache_hit_rate is not None:
        row.append(
            parts.Kpi(
                "Pays from",
                share_text(even.cache_hit_rate_at_scale).partition(" (")[0],
                f"cache hits; in whole engines here {rate_text(even.cache_hit_rate_here)}, "
                f"yours is {answer.cache_hit_rate:.1%}",
                even.cache_hit_rate_at_scale,
            )
        )
    return row


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


of = partial(show_field, capacity.cascade)
with widget_row():
    small = switch("A small model first", "casc_small", True)
    asked = draw(
        of("small", "casc_model", "Small model", start="llama-3.2-1b"),
        of("escalation_rate", "casc_rate", "goes on, share", start=0.3, step=0.05),
        of("escalate_by", "casc_by", "decided by", words=BY),
        disabled=not small,
    )
with widget_row():
    cache = switch("A semantic cache first", "casc_cache", False)
    hits = of("cache_hit_rate", "casc_hits", "answers, share", start=0.2, step=0.05)
    asked |= draw(hits, disabled=not cache)
with widget_row():
    hosted = state.segments("The large model runs on", "casc_on", (OWN_GPUS, HOSTED), OWN_GPUS) == HOSTED
    prices = draw(
        of("api_input_price", "casc_in", "$ per 1M input", start=0.4, most=1000.0),
        of("api_output_price", "casc_out", "$ per 1M output", start=0.4, most=1000.0),
        disabled=not hosted,
    )
    whole = of(
        "simulate",
        "casc_whole",
        "Also simulate it whole",
        help="Both models as one deployment, request by request: a few seconds more.",
    )
    together = draw(whole, disabled=hosted or not small)
options = {
    **({} if hosted else inputs.pool),
    **({"small_gpu": inputs.pool["gpu"]} if hosted and small else {}),
    **prices,
    **together,
    **inputs.load,
    **asked,
    **inputs.cost,
}
found = answered("cascade", inputs, options, doing="Serving both")
if found.value is not None:
    current = sides.side_of("cascade", found.arguments)
    sides.figures(current, found.value, ask=asker("cascade", inputs), row=figures_of_merit)
    show(found.value)
