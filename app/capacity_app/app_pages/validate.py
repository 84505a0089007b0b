"""Validate page: compares the values in measurement files with the predicted values."""

from functools import partial
from pathlib import Path

import streamlit as st
from capacity_validate.review import Review, errors_chart, parity_chart, review_html

from capacity.report.views.units import COUNT, PERCENT, WORDS, Unit
from capacity.report.views.view import Column, Fact, Table
from capacity.service.jobs import Task
from capacity_app import parts
from capacity_app.example_files import MEASURED, read_files
from capacity_app.router import current_inputs
from capacity_app.views import figures_of_merit, show_table

EXACT = Unit(12)
CONSTANTS = (
    *(Column("family", "family"), Column("constant", "name")),
    *(Column("profile", "before", EXACT), Column("calibrated", "after", EXACT)),
)

inputs = current_inputs()

st.caption(
    "Run `capacity validate` on the GPU and upload its measurements (.jsonl). Half of the cases calibrate "
    "the profile; the other half is held out to measure the error."
)
paths = read_files("Measurements", "val_files", MEASURED, several=True, type="jsonl")
task = Task(function="capacity_validate.review:review", arguments={"measurements": paths})
review: Review = parts.run_in_background("review", task, doing="Fitting").ready_value
judged = [c for c in review.classes if c.after_median is not None]
facts = [
    Fact("Device", review.device, WORDS, f"profile {review.profile}"),
    Fact("Cases", len(review.cases), COUNT, f"{len(judged)} classes calibrated"),
]
for each in judged:
    before = f"{each.before_median:.1%} before calibration, {each.held_out} cases held out"
    facts.append(Fact(f"Error, {each.family}", each.after_median, PERCENT, before))
parts.draw_kpis(figures_of_merit(facts))
call = f"answer = review({[Path(path).name for path in paths]!r})"
python = f"from capacity_validate.review import review\n\n{call}\n"
parts.record_downloads("review", review, partial(review_html, review, python=python))
parts.draw_chart(parity_chart(review.cases, review.device, inputs.units))
parts.draw_chart(errors_chart(review))
show_table(Table("Profile before and after calibration", review.constants, CONSTANTS))
parts.draw_notes(f"{family}: not changed: {reason}" for family, reason in review.refused.items())
