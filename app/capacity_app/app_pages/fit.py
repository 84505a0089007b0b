"""Fit: does it fit, what is left for the KV cache, and where else it would fit."""

from __future__ import annotations

import streamlit as st

import capacity
from capacity.report.figures.memory import grid_rows, memory_chart
from capacity_app import fitting, parts
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.router import current_inputs

inputs = current_inputs()
answer = capacity.fit(inputs.model, **inputs.pool)

if answer.fits:
    st.success(
        f"{plain(answer.model.name)} fits {answer.gpu.count} x {answer.gpu.name}.", icon=":material/check:"
    )
else:
    st.error(plain(f"It does not fit: {answer.reason}"), icon=":material/close:")
    fitting.buttons(inputs)
parts.kpis(
    [
        parts.Kpi(
            label="KV cache",
            value=inputs.units.memory_text(answer.memory.kv_cache_bytes),
            below=f"{answer.kv_capacity_tokens:,} tokens",
            help="What is left on a GPU for keys and values, and the tokens that it holds.",
        ),
        parts.Kpi(
            label="Longest request",
            value=f"{answer.max_context_tokens:,} tokens",
            below="alone",
            help="Prompt and output of one request that has the engine to itself.",
        ),
        parts.Kpi(
            label="Concurrency",
            value=f"{answer.max_concurrency:,.2f}",
            below=f"requests of {answer.max_model_len:,} tokens",
            help="Requests of the longest length that the KV cache holds at once.",
        ),
        parts.Kpi(
            label="Smallest TP",
            value=str(answer.smallest_tensor_parallel_size or "none"),
            below="that fits",
            help="The least tensor-parallel size at which the model fits this GPU, all else equal.",
        ),
    ]
)
parts.chart(memory_chart(answer, inputs.units))
parts.copies("fit", inputs.model_name, inputs.pool, answer)
parts.notes(answer.warnings)

st.subheader("Every GPU, at every tensor-parallel size")
task = Task(function="capacity.answers.grid:fit_grid", arguments={"model": inputs.model, **inputs.pool})
grid = parts.background("grid", task, doing="Fitting")
if grid.value is not None:
    alt = "For each GPU and tensor-parallel size whether the model fits, or why not."
    st.caption(f"✓ fits, with so many requests of {answer.max_model_len:,} tokens at a time; ✗ does not.")
    parts.table("fit_grid", grid_rows(grid.value), alt=alt, column_config={"GPU": {"pinned": True}})
