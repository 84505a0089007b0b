"""More GPUs: latency, throughput and efficiency along one axis of parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

import capacity
from capacity.answers.records import Quantity
from capacity.report.figures.techniques import scaling_chart, scaling_rows
from capacity.techniques.glossary import define
from capacity.techniques.scaling import Layout, Scaling
from capacity_app import parts
from capacity_app.boundary import plain
from capacity_app.questions import answered
from capacity_app.router import current_inputs
from capacity_app.widgets import draw, show_field, widget_row

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


of = partial(show_field, capacity.scale)
with widget_row():
    asked = draw(
        of("axis", "scale_axis", "Divide"),
        of("most_gpus", "scale_most", "GPUs at most", least=1, most=64),
        of("tpot_s", "scale_tpot", "TPOT up to, ms", least=0.1, most=60_000.0, scale=1e-3, empty="any"),
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
answer = answered("scale", inputs, options, doing="Trying layouts", typed=typed).value
if answer is not None:
    show(answer)
