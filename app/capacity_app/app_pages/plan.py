"""Plan page: ranked deployments that meet the SLO, rejected ones, and launch files."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import streamlit as st

from capacity.base.mappings import select
from capacity.deployment import Traffic
from capacity.deployment.command_words import wrap_command
from capacity.planning.records import Plan
from capacity.planning.search.snapshot import Snapshot
from capacity.report.display import money_phrase
from capacity.report.figures.planning import speed_chart, whisker_caption
from capacity.report.plan import (
    CONDITIONAL_HEADING,
    MISS_COLUMNS,
    REMEDIES_HEADING,
    conditional_texts,
    launch_scope_text,
    levels_table,
    ranked_table,
    rejected_table,
    remedy_text,
)
from capacity.report.plan_files import write_plan_files
from capacity.report.plan_summary import plan_facts
from capacity.report.views.units import value_at
from capacity.report.views.view import Table
from capacity_app import parts
from capacity_app.error_display import escape_markdown
from capacity_app.questions import ask_in_background, show_figures
from capacity_app.router import current_inputs
from capacity_app.traffic import draw_service_levels
from capacity_app.views import show_table
from capacity_app.widgets import draw_fields, page_field, widget_row

inputs = current_inputs()
st.caption("Set model, traffic and price in the sidebar. The search covers GPUs, parallelism and formats.")
slo = draw_service_levels("plan")
asked = draw_fields("plan_gpus", stretch=True)
with widget_row():
    objective = page_field("plan_for", start="cost" if inputs.cost else "gpus")
    asked |= draw_fields(objective, "plan_n", "plan_most", "plan_s")
options = {"slo": slo, **inputs.load, **inputs.cost, **asked, **inputs.search}


def search_progress(report: Snapshot) -> tuple[float, str]:
    """Return the progress of the search as a fraction from 0 to 1, and the text for the progress bar."""
    best = value_at(report, "best.label") or "none"
    words = f"{report.simulated:,} candidates simulated in {report.elapsed_s:.0f} s, best so far: {best}"
    return min(report.settled / max(report.engines, 1), 1.0), words


def draw_list(heading: str, texts: Sequence[str]) -> None:
    """Draw texts as a list below a heading; nothing without texts."""
    if texts:
        st.subheader(heading)
    for text in texts:
        st.markdown(f"- {escape_markdown(text)}")


def draw_plan_download(plan: Plan, options: Mapping[str, Any]) -> None:
    """Draw a download of the plan and its launch files as one ZIP file."""
    traffic = Traffic(**select(options, Traffic.model_fields))

    def write_archive() -> bytes:
        """Return the files that `capacity plan --output FOLDER` writes, as a ZIP file."""
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder, "plan")
            write_plan_files(plan, files, model=options["model"], traffic=traffic)
            return Path(shutil.make_archive(str(files), "zip", files)).read_bytes()

    parts.draw_download("Report and launch commands", "plan.zip", write_archive, mime="application/zip")


found = ask_in_background(
    "plan", inputs, options, doing="Searching", button="Search", reading=search_progress
)
plan: Plan | None = found.value
if plan is not None:
    best = plan.best
    if best is None:
        st.error("No candidate in the search space meets the service levels.", icon=":material/close:")
    else:
        price = money_phrase(", {} per hour", value_at(best, "cost.usd_per_hour"))
        st.success(escape_markdown(f"{best.label}{price}; {plan.proof}"), icon=":material/check:")
    show_figures("plan", inputs, found, plan_facts)
    if best is None:
        show_table(Table("Closest candidate for each service level", plan.misses, MISS_COLUMNS))
        draw_list(REMEDIES_HEADING, [remedy_text(plan, remedy) for remedy in plan.remedies])
    else:
        for line in best.launch:  # the archive below has the commands of all candidates
            st.caption(f"Starts {launch_scope_text(line)}:")
            st.code(dedent("\n".join(wrap_command(line.command))), language="shell", wrap_lines=True)
            parts.draw_notes(line.notes)
        if not best.launch:
            st.caption("This engine is a baseline without a launch command.")
        show_table(ranked_table(plan))
        show_table(levels_table(plan))
        parts.draw_chart(speed_chart(plan))
        st.caption(whisker_caption(plan))
    draw_list(CONDITIONAL_HEADING, conditional_texts(plan))
    draw_plan_download(plan, found.arguments)
    show_table(rejected_table(plan))
    parts.draw_notes([*(f"price of {price}" for price in plan.prices), *plan.warnings])
