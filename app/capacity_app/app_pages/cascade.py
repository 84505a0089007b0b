"""Cascade page: a semantic cache or small model in front of a large one, compared with the large one alone."""

from functools import partial

from capacity.report.views.cascade import cascade_facts, cascade_view
from capacity_app import state
from capacity_app.pages import HOSTED, OWN_GPUS
from capacity_app.questions import ask_in_background, show_answer
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, page_switch, widget_row

inputs = current_inputs()

with widget_row():
    small = page_switch("casc_small")
    asked = draw_fields("casc_model", "casc_rate", "casc_by", disabled=not small)
with widget_row():
    cache = page_switch("casc_cache")
    asked |= draw_fields("casc_hits", disabled=not cache)
with widget_row():
    hosted = state.segments("The large model runs on", "casc_on", (OWN_GPUS, HOSTED), OWN_GPUS) == HOSTED
    prices = draw_fields("casc_in", "casc_out", disabled=not hosted)
    together = draw_fields("casc_whole", disabled=hosted or not small)
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
