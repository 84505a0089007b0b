"""Beam search page: step time and KV cache by beam width and engine implementation."""

from functools import partial

import capacity
from capacity.report.views.beam_search import beam_search_facts, beam_search_view
from capacity_app.questions import ask_in_background, show_answer
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, show_field, widget_row

WIDTHS = (1, 2, 4, 8, 16, 32)
inputs = current_inputs()

field = partial(show_field, capacity.beam_search)
with widget_row():
    asked = draw_fields(
        field("batch_size", "beam_batch", "Requests per batch", most=4096),
        field("beam_widths", "beam_widths", "Beams per request", choices=WIDTHS, default=None),
    )
options = {**inputs.pool, **inputs.lengths, **asked, "beam_widths": tuple(sorted(asked["beam_widths"]))}
found = ask_in_background("beam_search", inputs, options, doing="Computing beam widths")
show_answer("beam_search", inputs, found, beam_search_facts, beam_search_view)
