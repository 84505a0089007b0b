"""Beam search: what each more beam of a request costs, in steps and in KV, by how an engine carries beams along."""

from __future__ import annotations

from functools import partial

import capacity
from capacity.report.views.beam_search import beam_search_facts, beam_search_view
from capacity.techniques.beam_search import BeamSearch
from capacity_app import parts, sides, views
from capacity_app.questions import answered, asker
from capacity_app.router import current_inputs
from capacity_app.widgets import draw, show_field, widget_row

WIDTHS = (1, 2, 4, 8, 16, 32)
inputs = current_inputs()


def figures_of_merit(answer: BeamSearch) -> list[parts.Kpi]:
    """The widest search as this engine does it, beside its narrowest."""
    return views.figures_of_merit(beam_search_facts(answer))


of = partial(show_field, capacity.beam_search)
with widget_row():
    asked = draw(
        of("batch_size", "beam_batch", "Requests at a time", most=4096),
        of("beam_widths", "beam_widths", "Beams of a request", choices=WIDTHS, default=None),
    )
options = {**inputs.pool, **inputs.lengths, **asked, "beam_widths": tuple(sorted(asked["beam_widths"]))}
found = answered("beam_search", inputs, options, doing="Widening")
answer = found.value
if answer is not None:
    side = sides.side_of("beam_search", found.arguments)
    sides.figures(side, answer, ask=asker("beam_search", inputs), row=figures_of_merit)
    views.show(beam_search_view(answer), answer)
