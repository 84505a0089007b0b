"""Scaling page: latency, throughput and efficiency by number of GPUs, for one kind of parallelism (such as tensor)."""

from typing import Any

from capacity.report.views.scaling import running_layouts, scaling_facts, scaling_view
from capacity_app import parts, views
from capacity_app.questions import ask_in_background
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, widget_row

inputs = current_inputs()

with widget_row():
    asked = draw_fields("scale_axis", "scale_most", "scale_tpot")
options: dict[str, Any] = {
    **inputs.pool,
    **inputs.lengths,
    "concurrency": inputs.concurrency,
    **asked,
    **inputs.cost,
}
limit_s = options.get("tpot_s")
typed = {**options, "tpot_s": None, "tpot": limit_s and 1e3 * limit_s}
answer = ask_in_background("scale", inputs, options, doing="Comparing layouts", typed=typed).ready_value
if run := running_layouts(answer):
    parts.draw_kpis(views.figures_of_merit(scaling_facts(run)))
views.draw_view(scaling_view(answer), answer)
