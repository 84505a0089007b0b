"""Quantization: every format for this model and GPU, by memory, latency, cost and published quality."""

from __future__ import annotations

from typing import Any

import streamlit as st

from capacity.report.views.quantize import quantize_facts, quantize_view
from capacity.techniques.quantize import Quantizing
from capacity_app import parts, state, views
from capacity_app.jobs import Task
from capacity_app.router import current_inputs

inputs = current_inputs()


def show(answer: Quantizing) -> None:
    """One method in figures, all of them in a picture and a table."""
    methods = {row.method: row for row in answer.rows}
    chosen = state.choice("Look at", "quant_method", tuple(methods), next(iter(methods)))
    parts.kpis(views.figures_of_merit(quantize_facts(methods[chosen])))
    every = st.toggle("Also what this engine does not load", False, **state.bound("quant_every", False))
    views.show(quantize_view(answer, every=every), answer)


batch = state.whole("Batch of the second TPOT", "quant_batch", 64, 1, 4096, width=200)
options: dict[str, Any] = {
    **{name: value for name, value in inputs.pool.items() if name != "quantization"},
    **inputs.lengths,
    "large_batch": batch,
    **inputs.cost,
}
task = Task(function="capacity:quantize", arguments={"model": inputs.model, **options})
answer = parts.background("quantize", task, doing="Trying formats").value
parts.copies("quantize", inputs.model_name, options, answer)
if answer is not None:
    show(answer)
