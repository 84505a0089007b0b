"""Quantization page: memory, latency, cost and published quality of every format."""

from typing import Any

from capacity.base.mappings import omit
from capacity.report.views.quantize import quantize_facts, quantize_view
from capacity.techniques.quantize import Quantizing
from capacity_app import parts, state, views
from capacity_app.questions import ask_in_background
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, page_switch

inputs = current_inputs()

options: dict[str, Any] = {
    **omit(inputs.pool, "quantization"),
    **inputs.lengths,
    **draw_fields("quant_batch"),
    **inputs.cost,
}
answer: Quantizing = ask_in_background("quantize", inputs, options, doing="Comparing formats").ready_value
methods = {row.method: row for row in answer.rows}
chosen = state.choice("Format", "quant_method", tuple(methods), next(iter(methods)))
parts.draw_kpis(views.figures_of_merit(quantize_facts(methods[chosen])))
every = page_switch("quant_every")
views.draw_view(quantize_view(answer, every=every), answer)
