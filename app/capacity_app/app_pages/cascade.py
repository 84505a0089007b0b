"""Cascade page: a semantic cache or small model in front of a large one, compared with the large one alone."""

from functools import partial

import capacity
from capacity.report.views.cascade import cascade_facts, cascade_view
from capacity_app import state
from capacity_app.pages import HOSTED, OWN_GPUS
from capacity_app.questions import ask_in_background, show_answer
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, show_field, switch, widget_row

BY = {"answer": "its answer", "prompt": "the prompt"}
inputs = current_inputs()

field = partial(show_field, capacity.cascade)
with widget_row():
    small = switch("Use a small model first", "casc_small", True)
    asked = draw_fields(
        field("small", "casc_model", "Small model", start="llama-3.2-1b"),
        field("escalation_rate", "casc_rate", "Escalated share", start=0.3, step=0.05),
        field("escalate_by", "casc_by", "Escalation based on", words=BY),
        disabled=not small,
    )
with widget_row():
    cache = switch("Use a semantic cache first", "casc_cache", False)
    hits = field("cache_hit_rate", "casc_hits", "Cache hit rate", start=0.2, step=0.05)
    asked |= draw_fields(hits, disabled=not cache)
with widget_row():
    hosted = state.segments("The large model runs on", "casc_on", (OWN_GPUS, HOSTED), OWN_GPUS) == HOSTED
    prices = draw_fields(
        field("api_input_price", "casc_in", "$ per 1M input", start=0.4, most=1000.0),
        field("api_output_price", "casc_out", "$ per 1M output", start=0.4, most=1000.0),
        disabled=not hosted,
    )
    whole = field(
        "simulate",
        "casc_whole",
        "Simulate each request",
        help="Simulate both models as one deployment, request by request. This takes a few seconds more.",
    )
    together = draw_fields(whole, disabled=hosted or not small)
options = {
    **({} if hosted else inputs.pool),
    **({"small_gpu": inputs.pool["gpu"]} if hosted and small else {}),
    **prices,
    **together,
    **inputs.load,
    **asked,
    **inputs.cost,
}
found = ask_in_background("cascade", inputs, options, doing="Computing the cascade")
show_answer("cascade", inputs, found, partial(cascade_facts, shown_in=inputs.units), cascade_view)
