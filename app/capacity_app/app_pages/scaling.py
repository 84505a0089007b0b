"""More GPUs: latency, throughput and efficiency along one axis of parallelism."""

from __future__ import annotations

from typing import Any

import streamlit as st

from capacity.answers.records import Quantity
from capacity.report.figures.techniques import scaling_chart, scaling_rows
from capacity.techniques.glossary import define
from capacity.techniques.scaling import AXES, Layout, Scaling
from capacity_app import parts, state
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.router import current_inputs

inputs = current_inputs()
units = inputs.units


def tpot(row: Layout) -> Quantity:
    """With its interval."""
    low, high = row.intervals_s.get("tpot_s", (None, None))
    return Quantity(value=row.tpot_s or 0.0, low=low, high=high)


def show(answer: Scaling) -> None:
    """The largest layout that runs beside the smallest, then all."""
    run = [row for row in answer.rows if row.tpot_s is not None]
    if run:
        first, last = run[0], run[-1]
        parts.kpis(
            [
                parts.Kpi(
                    label=f"TPOT on {last.num_gpus}",
                    value=units.time_text(last.tpot_s or 0.0, tpot(last)),
                    below=f"{units.time_interval(tpot(last))}; {units.time_text(first.tpot_s or 0.0, tpot(first))} on "
                    f"{first.num_gpus}",
                    help=define("tpot").definition,
                ),
                parts.Kpi(
                    label="Times as fast",
                    value="-" if last.speedup is None else f"{last.speedup:.2f}",
                    below=f"with {last.num_gpus} in place of {first.num_gpus}",
                    help="Time per output token of the smallest layout, over that of the largest.",
                ),
                parts.Kpi(
                    label="Efficiency",
                    value="-" if last.efficiency is None else f"{last.efficiency:.0%}",
                    below="tokens a GPU, of the smallest's",
                    help="What is left of a GPU's output where so many work together.",
                ),
                parts.Kpi(
                    label="Links",
                    value="-" if last.communication_share is None else f"{last.communication_share:.0%}",
                    below="of a decode step",
                    help="Share of a step in which GPUs send to each other.",
                ),
            ]
        )
    if answer.tpot_limit_s is not None:
        gpus = answer.cheapest_num_gpus
        found = "no layout has it" if gpus is None else f"the cheapest has {gpus} GPUs"
        st.info(
            plain(f"TPOT of at most {units.time_text(answer.tpot_limit_s)}: {found}"), icon=":material/flag:"
        )
    parts.chart(scaling_chart(answer))
    parts.table("scaling", scaling_rows(answer), alt="Every layout, in numbers.")
    parts.notes(
        [*(f"{row.num_gpus} GPUs: {row.reason}" for row in answer.rows if row.reason), *answer.warnings]
    )


with st.container(horizontal=True, vertical_alignment="bottom"):
    axis = state.segments(
        "Divide",
        "scale_axis",
        AXES,
        "tensor",
        help="Layers, groups of layers, experts, or requests (with experts).",
    )
    most = state.whole("GPUs at most", "scale_most", 8, 1, 64, width=130)
    limit_ms = st.number_input(
        "TPOT up to, ms", 0.1, 60_000.0, None, placeholder="any", **state.bound("scale_tpot", None), width=150
    )
options: dict[str, Any] = {
    **inputs.pool,
    **inputs.lengths,
    "concurrency": inputs.concurrency,
    "axis": axis,
    "most_gpus": most,
    **inputs.cost,
}
typed = options if limit_ms is None else {**options, "tpot": limit_ms}
options |= {} if limit_ms is None else {"tpot_s": limit_ms / 1e3}
task = Task(function="capacity:scale", arguments={"model": inputs.model, **options})
answer = parts.background("scale", task, doing="Trying layouts").value
parts.copies("scale", inputs.model_name, options, answer, typed=typed)
if answer is not None:
    show(answer)
