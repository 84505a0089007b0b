"""Fit page: whether the model fits, the remaining KV cache, and other GPUs on which it fits."""

import streamlit as st

import capacity
from capacity.answers.records import Fit, Quantity
from capacity.report.views.memory_parts import fit_facts, grid_rows, memory_chart
from capacity.service.jobs import Task
from capacity_app import fitting, parts, sides, views
from capacity_app.error_display import escape_markdown, replace_flags
from capacity_app.questions import verb_task
from capacity_app.router import current_inputs
from capacity_app.side import POOL, SETTINGS

inputs = current_inputs()
answer = capacity.fit(inputs.model, **inputs.pool)

if answer.fits:
    st.success(
        f"{escape_markdown(answer.model.name)} fits on {answer.gpu.count} x {answer.gpu.name}.",
        icon=":material/check:",
    )
else:
    st.error(
        escape_markdown(replace_flags(f"The model does not fit: {answer.reason}")), icon=":material/close:"
    )
    fitting.draw_change_buttons(inputs)


def figures_of_merit(found: Fit) -> list[parts.Kpi]:
    """Return the key metrics of the page."""
    tokens = inputs.input_len + inputs.output_len
    at_once = found.kv_capacity_tokens // tokens
    number, below = Quantity(value=at_once), f"requests of {tokens:,} tokens"
    concurrent = parts.Kpi("At these lengths", f"{at_once:,} at once", below, number)
    return [concurrent, *views.figures_of_merit(fit_facts(found))]


def side_task(side: sides.Side) -> Task:
    """Return the task that checks whether the model of one side of the comparison fits."""
    return verb_task("fit", sides.side_model(side, inputs), side.select_fields((*POOL, *SETTINGS)))


current = sides.Side(page="fit", model=inputs.model_name, options={**inputs.pool, **inputs.lengths}, cost={})
sides.draw_figures(current, answer, ask=side_task, row=figures_of_merit)
views.show_chart(memory_chart(answer), answer)
parts.draw_code_snippets("fit", inputs.model_name, inputs.pool, answer)
parts.draw_notes(answer.warnings)

st.subheader("All GPUs and tensor-parallel sizes")
task = Task(function="capacity.answers.grid:fit_grid", arguments={"model": inputs.model, **inputs.pool})
grid = parts.run_in_background("grid", task, doing="Checking all GPUs").ready_value
alt = "Whether the model fits on each GPU at each tensor-parallel size, or the reason if not."
st.caption(
    f"✓ fits, with the number of concurrent requests of {answer.max_model_len:,} tokens; ✗ does not fit."
)
parts.draw_table("fit_grid", grid_rows(grid), alt=alt, column_config={"GPU": {"pinned": True}})
