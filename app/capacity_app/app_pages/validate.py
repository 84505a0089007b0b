"""Validate: what was measured beside what is predicted, from a measurement file or a server's benchmark."""

from __future__ import annotations

import streamlit as st
from capacity_validate import figures

from capacity_app import parts, state, uploads
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.pages import MEASURED, SERVED
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
            parts.Kpi(label="Device", value=review.device, below=f"profile {review.profile}"),
            parts.Kpi(
                label="Cases", value=f"{len(review.cases):,}", below=f"{len(judged)} classes calibrated"
            ),
            *(
                parts.Kpi(
                    label=f"Error, {c.family}",
                    value=f"{c.after_median:.1%}",
                    below=f"{c.before_median:.1%} before, {c.held_out} held out",
                )
                for c in judged
            ),
        ]
    )
    parts.record_downloads("review", review)
    parts.chart(figures.parity_chart(review, units))
    parts.chart(figures.errors_chart(review))
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


def served() -> None:
    """Benchmark results: every metric that both know, and the likely cause of a gap."""
    st.caption(
        "Upload what `vllm bench serve --save-result --save-detailed`, SGLang, AIPerf, guidellm or inference-perf "
        "wrote. The sidebar says on what it ran."
    )
    files = st.file_uploader(
        "Benchmark results", type=("json", "jsonl", "csv"), key="val_results", accept_multiple_files=True
    )
    log = st.file_uploader(
        "What the server printed at start-up (optional)", type=("log", "txt"), key="val_log"
    )
    if not files:
        st.info("Upload one or more result files.", icon=":material/upload_file:")
        return
    arguments = {
        "results": tuple(str(uploads.kept(file)) for file in files),
        "model": inputs.model,
        **inputs.pool,
        **({} if log is None else {"server_log": str(uploads.kept(log))}),
    }
    comparison = parts.background(
        "compare",
        Task(function="capacity_validate.comparing:compare", arguments=arguments),
        doing="Replaying",
    ).value
    if comparison is None:
        return
    st.success(plain(comparison.verdict), icon=":material/balance:")
    parts.record_downloads("comparison", comparison)
    for index, run in enumerate(comparison.runs):
        parts.chart(figures.metrics_chart(run, index))
        parts.notes([*(f"likely cause: {cause}" for cause in run.causes), *run.notices])


kind = state.segments("Compare with", "val_kind", (MEASURED, SERVED), MEASURED)
if kind == MEASURED:
    measured()
else:
    served()
