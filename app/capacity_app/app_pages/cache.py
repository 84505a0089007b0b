"""Prefix cache page: hit rate by cache size for a trace, and the prefill time saved."""

from pathlib import Path

import streamlit as st

from capacity.base.mappings import select
from capacity.report.views.cache_curve import cache_curve_facts, cache_curve_view
from capacity.service.jobs import Task
from capacity_app import dropped_files, example_files, parts, views
from capacity_app.example_files import read_files
from capacity_app.router import current_inputs
from capacity_app.traffic import TRACE_TYPES
from capacity_app.widgets import draw_fields, page_switch, widget_row

inputs = current_inputs()

place = st.container()  # above the widgets, which are drawn first because a link may set them
with widget_row():
    options = draw_fields("cache_replicas", "cache_engine")
    saves = page_switch("cache_saves")
with place:
    paths = read_files(
        "Request trace",
        "cache_trace",
        example_files.TRACE,
        dropped=dropped_files.TRACE,
        type=TRACE_TYPES,
        help="A trace with block hashes (Mooncake, Qwen) or conversations, optionally gzip. It stays on this machine.",
    )
asked, python, typed = options, options, options
if saves:
    served = select(inputs.pool, ("gpu", "tensor_parallel_size"))
    asked = {**options, "served_by": (inputs.model, served)}
    python = {**options, "served_by": (inputs.model_name, served)}
    typed = {**options, "model": inputs.model_name, **served}
task = Task(function="capacity:cache_curve", arguments={"trace": paths[0], **asked})
found = parts.run_in_background("cache_curve", task, doing="Finding common prefixes")
parts.draw_code_snippets("cache-curve", Path(paths[0]).name, python, found.value, typed=typed)
answer = found.ready_value
parts.draw_kpis(views.figures_of_merit(cache_curve_facts(answer)))
views.draw_view(cache_curve_view(answer), answer)
