"""Speculation: how much faster, over acceptance, draft length, way of drafting and batch; where it stops paying."""

from __future__ import annotations

from functools import partial

import streamlit as st

from capacity.answers.records import Quantity
from capacity.report.figures import speculation as figures
from capacity.techniques.speculate import Speculating, speculate, speculation_methods
from capacity_app import parts, sides, state
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.questions import asker
from capacity_app.router import current_inputs
from capacity_app.widgets import draw, show_field, widget_row

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PUBLISHED, OWN = "published", "my own"
NO_BANDS = (
    "No bands here: a speed-up is one step over another of the same step model, whose error moves both alike. "
    "It hangs on the acceptance, which varies with model and task, as drawn below. "
    "How sure TPOT itself is, Estimate says."
)

inputs = current_inputs()
units = inputs.units
methods = {row.method: row for row in speculation_methods().rows}

of = partial(show_field, speculate)
with widget_row():
    asked = draw(
        of("method", "spec_method", "Way to draft", start="eagle3"),
        of("draft_tokens", "spec_k", "Tokens drafted, k", start=3, least=1, most=16),
    )
    batch = int(st.select_slider("Batch size", BATCHES, 8, **state.bound("spec_batch", 8), width=240))
    context = of("context_tokens", "spec_context", "Context, tokens", least=1, most=1_000_000, step=512)
    asked |= draw(context)
with widget_row():
    published = state.segments("Acceptance", "spec_known", (PUBLISHED, OWN), PUBLISHED) == PUBLISHED
    share = state.number(
        "of each drafted token", "spec_acceptance", 0.7, 0.0, 1.0, step=0.05, disabled=published, width=190
    )
    if methods[asked["method"]].kind == "draft-model":
        asked |= draw(of("draft", "spec_draft", "Draft model", start="llama-3.2-1b"))
options = {**inputs.pool, **asked, **({} if published else {"acceptance": f"{share:g}"})}


def figures_of_merit(found: Speculating) -> list[parts.Kpi]:
    """The KPI row, at the greatest batch up to the chosen one."""
    row = max((row for row in found.rows if row.batch_size <= batch), key=lambda row: row.batch_size)
    stops = found.break_even_batch

    def kpi(label: str, value: str, below: str, number: float) -> parts.Kpi:
        return parts.Kpi(label=label, value=value, below=below, number=Quantity(value=number))

    return [
        kpi(
            f"Times as fast at batch {row.batch_size}",
            f"{row.speedup:.2f}",
            f"best k {row.best_draft_tokens}: {row.best_speedup:.2f}",
            row.speedup,
        ),
        kpi("TPOT", units.time_text(row.tpot_s), f"{units.time_text(row.plain_step_s)} without", row.tpot_s),
        kpi(
            "Tokens a round",
            f"{row.tokens_per_round:.2f}",
            f"{row.verified_tokens} verified",
            row.tokens_per_round,
        ),
        kpi(
            "Verification",
            f"{row.verify_cost:.2f} steps",
            f"draft {units.time_text(row.draft_s)}",
            row.verify_cost,
        ),
        parts.Kpi(label="Stops paying at batch", value="never" if stops is None else f"{stops:,}"),
        kpi(
            "TTFT",
            units.time_text(found.ttft_s.with_draft),
            f"{units.time_text(found.ttft_s.plain)} without",
            found.ttft_s.with_draft,
        ),
    ]


answer = speculate(inputs.model, batches=BATCHES, **options)
current = sides.Side(
    page="speculation", model=inputs.model_name, options={**options, "batches": list(BATCHES)}, cost={}
)
sides.figures(current, answer, ask=asker("speculate", inputs), row=figures_of_merit)
source = answer.acceptance_source
st.caption(plain(f"Acceptance: {source.text}, {source.date}, {source.basis}."))
parts.copies("speculate", inputs.model_name, {**options, "batches": BATCHES}, answer)
parts.notes(answer.warnings)
parts.chart(figures.speedup_chart(answer))
st.caption(NO_BANDS)

place = {"model": inputs.model, "batch": batch, "options": options}
grid = parts.background(
    "spec_grid",
    Task(function="capacity_app.tasks:acceptance_grid", arguments=place),
    doing="Varying acceptance",
)
if grid.value is not None:
    parts.chart(figures.acceptance_chart(grid.value))
ways = parts.background(
    "spec_ways", Task(function="capacity_app.tasks:ways_to_draft", arguments=place), doing="Trying every way"
)
if ways.value is not None:
    rounds, refused = ways.value
    parts.chart(figures.methods_chart(rounds))
    parts.notes(refused)
