"""Plan: what to rent for a service level, ranked, with what was turned down and the files to launch it."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import streamlit as st

import capacity
from capacity.deployment import Traffic
from capacity.planning.records import Plan, Ranked
from capacity.planning.search.snapshot import Snapshot
from capacity.report.figures.planning import miss_rows, ranked_rows, rejected_rows, speed_chart, whisker_words
from capacity.report.plan import CONDITIONAL, conditional_texts
from capacity.report.plan_files import write_plan_files
from capacity.report.plan_summary import wrapped
from capacity_app import parts, plan_sides, sides
from capacity_app.boundary import plain
from capacity_app.questions import answered, asker
from capacity_app.router import current_inputs
from capacity_app.traffic import levels, requests_to_simulate
from capacity_app.widgets import draw, show_field, widget_row

DOLLARS, SHARES = ("$/h", "$/month", "$/1M output"), ("of the limit", "confidence")
CHOSEN = ("h100-sxm-80gb", "l40s-48gb")

inputs = current_inputs()
st.caption("Traffic, model and price are the sidebar's; GPU, parallelism and formats are what is searched.")
of = partial(show_field, capacity.plan)
slo = levels("plan")
asked = draw(of("gpus", "plan_gpus", "GPUs to choose from", start=CHOSEN), stretch=True)
with widget_row():
    asked |= draw(
        of("objective", "plan_for", "Least", start="cost" if inputs.cost else "gpus"),
        requests_to_simulate("plan_n"),
        of("max_gpus", "plan_most", "GPUs at most", most=100_000),
        of("time_limit_s", "plan_s", "Search for up to, s", start=60, least=5, most=600, step=10),
    )
options = {
    "slo": slo,
    **inputs.load,
    **inputs.cost,
    **asked,
    **({"engines": (inputs.pool["engine"],)} if "engine" in inputs.pool else {}),
}


def so_far(report: Snapshot) -> tuple[float, str]:
    """How the search stands."""
    best = "nothing yet" if report.best is None else report.best.label
    words = f"{report.simulated:,} simulated in {report.elapsed_s:.0f} s, best so far: {best}"
    return min(report.settled / max(report.engines, 1), 1.0), words


def launched(best: Ranked) -> None:
    """What starts the winner, to copy; the archive below has it for all."""
    for line in best.launch:
        role = "" if line.role == "both" else f", for {line.role}"
        st.caption(
            f"Starts {'each of ' if line.replicas > 1 else ''}{line.replicas} replica"
            f"{'s' * (line.replicas > 1)}{role}:"
        )
        st.code(dedent("\n".join(wrapped(line.command))), language="shell", wrap_lines=True)
        parts.notes(line.notes)
    if not best.launch:
        st.caption("Nothing launches this engine: it is a baseline.")


def compared(plan: Plan, options: Mapping[str, Any]) -> None:
    """The winner in figures, beside those of the plans that are pinned."""
    side = sides.side_of("plan", options)
    sides.figures(side, plan, ask=asker("plan", inputs), row=plan_sides.figures_of_merit)


def archive(plan: Plan, options: Mapping[str, Any]) -> None:
    """The plan and what launches it, of what was asked, as one file."""
    traffic = Traffic(**{name: value for name, value in options.items() if name in Traffic.model_fields})

    def zipped() -> bytes:
        """What `capacity plan --output FOLDER` writes."""
        content = io.BytesIO()
        with (
            tempfile.TemporaryDirectory() as folder,
            zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for path in write_plan_files(plan, Path(folder), model=options["model"], traffic=traffic):
                packed.write(path, path.name)
        return content.getvalue()

    parts.download("Report and launch commands", "plan.zip", zipped, mime="application/zip")


def show(plan: Plan, options: Mapping[str, Any]) -> None:
    """The plan, and the files of what was asked."""
    if plan.best is None:
        st.error("Nothing in the space meets the service levels.", icon=":material/close:")
        compared(plan, options)
        parts.table("misses", miss_rows(plan), alt="For each service level the best value found, and where.")
    else:
        price = "" if plan.best.cost is None else f", ${plan.best.cost.usd_per_hour:,.2f} an hour"
        st.success(plain(f"{plan.best.candidate.label}{price}; {plan.proof}"), icon=":material/check:")
        compared(plan, options)
        launched(plan.best)
        st.subheader("Deployments that meet the service levels, best first")
        formats = {**dict.fromkeys(DOLLARS, "dollar"), **dict.fromkeys(SHARES, "percent")}
        columns = {name: st.column_config.NumberColumn(format=kind) for name, kind in formats.items()}
        parts.table("ranked", ranked_rows(plan), alt="The ranked deployments.", column_config=columns)
        parts.chart(speed_chart(plan))
        st.caption(whisker_words(plan))
    if plan.conditional:
        st.subheader(CONDITIONAL)
        for text in conditional_texts(plan):
            st.markdown(f"- {plain(text)}")
    archive(plan, options)
    st.subheader("Turned down, and why")
    parts.table("rejected", rejected_rows(plan), alt="Every deployment that is no answer, with its reason.")
    parts.notes([*(f"price of {price}" for price in plan.prices), *plan.warnings])


answer = answered("plan", inputs, options, doing="Searching", button="Search", reading=so_far)
if answer.value is not None:
    show(answer.value, answer.arguments)
