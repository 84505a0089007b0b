"""Techniques: what each is worth on this model and traffic, from none to all, one upon the other and each alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

import capacity
from capacity.answers.records import Quantity
from capacity.planning.variations.stack import Stack
from capacity.planning.variations.stack_figures import Figures
from capacity.planning.variations.technique_steps import ORDER
from capacity.report.display import rate_and_interval, time_and_interval, usd_interval, usd_text
from capacity.report.figures import stacks as figures
from capacity.report.stack import explained, times
from capacity_app import parts, sides, state
from capacity_app.boundary import plain
from capacity_app.pages import LOOP, RATE
from capacity_app.questions import answered, asker
from capacity_app.router import current_inputs
from capacity_app.traffic import requests_to_simulate
from capacity_app.widgets import draw, show_field, widget_row

inputs = current_inputs()
units = inputs.units


def figures_of_merit(answer: Stack) -> list[parts.Kpi]:
    """What all techniques make of the naive deployment."""
    taken = figures.taken(answer)
    first, last = answer.naive, (taken[-1].figures if taken else None) or answer.naive
    together, single = answer.together.throughput, answer.product_of_single.throughput
    return [
        parts.exact("Together", times(together), "the naive deployment's tokens/s", together),
        parts.exact("If multiplied", times(single), "those that each has alone", single),
        *_throughput(first, last),
        _time("TTFT", first.ttft_s, last.ttft_s),
        _time("TPOT", first.tpot_s, last.tpot_s),
        *_price(first, last),
    ]


def _throughput(first: Figures, last: Figures) -> list[parts.Kpi]:
    value, within = rate_and_interval(last.output_tokens_per_s)
    naive = rate_and_interval(first.output_tokens_per_s)[0]
    return [parts.Kpi("Output tokens/s", value, f"{within}; {naive} naive", last.output_tokens_per_s)]


def _time(label: str, first: Quantity | None, last: Quantity | None) -> parts.Kpi:
    if first is None or last is None:
        return parts.Kpi(label, "-", "a single output token")
    value, within = time_and_interval(last, units)
    naive = time_and_interval(first, units)[0]
    return parts.Kpi(label, value, f"{within}; {naive} naive", last)


def _price(first: Figures, last: Figures) -> list[parts.Kpi]:
    usd = last.usd_per_million_output_tokens
    if usd is None:
        return []
    naive = usd_text(first.usd_per_million_output_tokens)
    return [parts.Kpi("$ per 1M output", usd_text(usd), f"{usd_interval(usd)}; {naive} naive", usd)]


def show(answer: Stack, asked: Mapping[str, Any]) -> None:
    """The waterfall, the factors beside those of each alone, and why they differ."""
    sides.figures(sides.side_of("stack", asked), answer, ask=asker("stack", inputs), row=figures_of_merit)
    st.caption(plain(f"{answer.deployment}. Naive: {answer.naive_flags}"))
    titles = {figures.label(name): name for name in figures.figure_names(answer)}
    of = titles[state.segments("Look at", "stack_of", tuple(titles), next(iter(titles)))]
    parts.chart(figures.stack_chart(answer, of, units))
    parts.chart(figures.factors_chart(answer, of))
    st.caption(
        "Factors compare two simulations of the same requests by the same step model, so that most of its error is in "
        "both: they have no interval of their own. Below 1 is worse."
    )
    st.subheader("Why factors of tokens/s do not multiply")
    for line in explained(answer):
        st.markdown(f"- {plain(line)}")
    parts.table("stack", figures.factor_rows(answer, of), alt="Every technique with its factors and reasons.")
    taken = figures.taken(answer)
    st.caption("With all of them:")
    st.code(taken[-1].flags if taken else answer.naive_flags, language=None, wrap_lines=True)
    parts.notes(answer.observations)


with widget_row():
    load = state.segments(
        "Requests come",
        "stack_load",
        (LOOP, RATE),
        LOOP,
        help="The sidebar's concurrency stays in flight, or its requests/s arrive.",
    )
    requests = draw(requests_to_simulate("stack_n", start=100, most=10_000))
order = show_field(
    capacity.stack,
    "order",
    "stack_order",
    "Techniques, in the order to take them",
    start=ORDER,
    default=ORDER,
    help="Leave some out, or take them away and add them in another order: factors depend on what came before.",
)
options = {
    **inputs.pool,
    **inputs.lengths,
    **inputs.spread,
    **({"concurrency": inputs.concurrency} if load == LOOP else {"request_rate": inputs.request_rate}),
    **requests,
    **inputs.client,
    **draw(order, stretch=True),
    **inputs.cost,
}
answer = answered("stack", inputs, options, doing="Simulating techniques", button="Try every technique")
if answer.value is not None:
    show(answer.value, answer.arguments)
