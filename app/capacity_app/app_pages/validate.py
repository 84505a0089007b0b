"""Validate: what was measured on a GPU beside what is predicted, from measurement files."""

from __future__ import annotations

import streamlit as st
from capacity_validate.review import errors_chart, parity_chart, review_html

from capacity_app import parts, uploads
from capacity_app.jobs import Task
from capacity_app.router import current_inputs

inputs = current_inputs()
units = inputs.units


def measured() -> None:
    """Measurement files: parity, errors before and after, and both profiles' constants side by side."""
    st.caption(
        "Run `capacity validate` on the GPU and upload its measurements (.jsonl). Half of the cases calibrate "
        "the profile; the other half says how far off it is."
    )
    files = st.file_uploader("Measurements", type="jsonl", key="val_files", accept_multiple_files=True)
    if not files:
        st.info("Upload one or more measurement files of one device.", icon=":material/upload_file:")
        return
    paths = tuple(str(uploads.kept(file)) for file in files)
    task = Task(function="capacity_validate.review:review", arguments={"measurements": paths})
    review = parts.background("review", task, doing="Fitting").value
    if review is None:
        return
    judged = [c for c in review.classes if c.after_median is not None]
    parts.kpis(
        [
            parts.Kpi("Device", review.device, f"profile {review.profile}"),
            parts.Kpi("Cases", f"{len(review.cases):,}", f"{len(judged)} classes calibrated"),
            *(
                parts.Kpi(
                    f"Error, {c.family}",
                    f"{c.after_median:.1%}",
                    f"{c.before_median:.1%} before, {c.held_out} held out",
                )
                for c in judged
            ),
        ]
    )
    python = (
        f"from capacity_validate.review import review\n\nanswer = review({[file.name for file in files]!r})\n"
    )
    parts.record_downloads("review", review, lambda: review_html(review, python=python))
    parts.chart(parity_chart(review.cases, review.device, units))
    parts.chart(errors_chart(review))
    st.subheader("The profile as it is, and calibrated")
    parts.table(
        "constants",
        [
            {"family": row.family, "constant": row.name, "profile": row.before, "calibrated": row.after}
            for row in review.constants
        ],
        alt="Constants of the step model before and after calibration.",
    )
    parts.notes([f"{family}: not changed: {reason}" for family, reason in review.refused.items()])


measured()
