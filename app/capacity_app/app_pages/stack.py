"""Techniques: what each is worth on this model and traffic, from none to all, one upon the other and each alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

import capacity
from capacity.planning.variations.stack import Stack
from capacity.planning.variations.technique_steps import ORDER
from capacity.report.views.stack import charted, stack_facts, stack_view
from capacity_app import parts, sides, state, views
from capacity_app.boundary import plain
from capacity_app.pages import LOOP, RATE
from capacity_app.questions import answered, asker
from capacity_app.router import current_inputs
from capacity_app.traffic import requests_to_simulate
from capacity_app.widgets import draw, show_field, widget_row

inputs = current_inputs()


def figures_of_merit(answer: Stack) -> list[parts.Kpi]:
    """What all techniques make of the naive deployment."""
    return views.figures_of_merit(stack_facts(answer))


def show(answer: Stack, asked: Mapping[str, Any]) -> None:
    """The waterfall, the factors beside those of each alone, and why they differ."""
    sides.figures(sides.side_of("stack", asked), answer, ask=asker("stack", inputs), row=figures_of_merit)
    st.caption(plain(f"{answer.deployment}. Naive: {answer.naive_flags}"))
    titles = charted(answer)
    views.show(stack_view(answer, state.segments("Look at", "stack_of", titles, titles[0])), answer)


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
