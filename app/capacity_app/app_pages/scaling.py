"""Scaling page: latency, throughput and efficiency by number of GPUs, for one kind of parallelism (such as tensor)."""

from functools import partial
from typing import Any

import capacity
from capacity.report.views.scaling import running_layouts, scaling_facts, scaling_view
from capacity_app import parts, views
from capacity_app.questions import ask_in_background
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, show_field, widget_row

inputs = current_inputs()

field = partial(show_field, capacity.scale)
with widget_row():
    asked = draw_fields(
        field("axis", "scale_axis", "Axis of parallelism"),
        field("most_gpus", "scale_most", "Maximum GPUs", least=1, most=64),
        field("tpot_s", "scale_tpot", "TPOT limit, ms", least=0.1, most=60_000.0, scale=1e-3, empty="any"),
    )
options: dict[str, Any] = {
    **inputs.pool,
    **inputs.lengths,
    "concurrency": inputs.concurrency,
    **asked,
    **inputs.cost,
}
limit_s = options.get("tpot_s")
typed = {**options, "tpot_s": None, "tpot": None if limit_s is None else 1e3 * limit_s}
answer = ask_in_background("scale", inputs, options, doing="Comparing layouts", typed=typed).value
if answer is not None:
    if run := running_layouts(answer):
        parts.draw_kpis(views.figures_of_merit(scaling_facts(run)))
    views.draw_view(scaling_view(answer), answer)
