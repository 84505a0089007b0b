"""Beam search page: step time and KV cache by beam width and engine implementation."""

from capacity.report.views.beam_search import beam_search_facts, beam_search_view
from capacity_app.questions import ask_in_background, show_answer
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, widget_row

inputs = current_inputs()

with widget_row():
    asked = draw_fields("beam_batch", "beam_widths")
options = {**inputs.pool, **inputs.lengths, **asked, "beam_widths": tuple(sorted(asked["beam_widths"]))}
found = ask_in_background("beam_search", inputs, options, doing="Computing beam widths")
show_answer("beam_search", inputs, found, beam_search_facts, beam_search_view)
