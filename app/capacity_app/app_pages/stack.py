"""Techniques page: effect of techniques applied one after the other, and of each alone, for this model and traffic."""

import streamlit as st

from capacity.planning.variations.stack import Stack
from capacity.planning.variations.technique_steps import ORDER
from capacity.report.views.stack import charted_figures, stack_facts, stack_view
from capacity_app import state, views
from capacity_app.error_display import escape_markdown
from capacity_app.questions import ask_in_background, show_figures
from capacity_app.router import current_inputs
from capacity_app.traffic import draw_loop_or_rate
from capacity_app.widgets import draw_fields, page_field, widget_row

inputs = current_inputs()

with widget_row():
    load = draw_loop_or_rate(
        inputs,
        "stack_load",
        "A closed loop keeps the sidebar's concurrency in flight. Arrivals use the sidebar's requests/s.",
    )
    requests = draw_fields("stack_n")
order = page_field("stack_order", start=ORDER, default=ORDER)
options = {
    **inputs.pool,
    **inputs.lengths,
    **inputs.spread,
    **load,
    **requests,
    **inputs.client,
    **draw_fields(order, stretch=True),
    **inputs.cost,
}
found = ask_in_background(
    "stack", inputs, options, doing="Simulating techniques", button="Try every technique"
)
answer: Stack = found.ready_value
show_figures("stack", inputs, found, stack_facts)
st.caption(escape_markdown(f"{answer.deployment}. Naive: {answer.naive_flags}"))
titles = charted_figures(answer)
views.draw_view(stack_view(answer, state.segments("Chart", "stack_of", titles, titles[0])), answer)
