"""Benchmark page: compare a client's results with the simulator's prediction, and list likely causes of a gap."""

from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st
from capacity_validate.comparison import MAIN_METRICS, Comparison, MetricRow, RunComparison
from capacity_validate.comparison_page import (
    error_text,
    inside_text,
    predicted_texts,
    run_blocks,
    server_blocks,
)

from capacity.report.tables import render
from capacity.report.views.view import View
from capacity_app import parts, state, uploads, views
from capacity_app.error_display import escape_except_code, escape_markdown, replace_flags
from capacity_app.jobs import Task
from capacity_app.pages import AS_FILE, AT_CONCURRENCY, AT_RATE
from capacity_app.router import current_inputs
from capacity_app.widgets import switch, widget_row

inputs = current_inputs()
# labels of the figures of merit by metric name
ERRORS = {
    name: f"{'Tokens/s' if words == 'throughput' else words} error" for name, words in MAIN_METRICS.items()
}


def figures_of_merit(run: RunComparison) -> list[parts.Kpi]:
    """Return the key metrics of the page: the prediction error of TTFT, TPOT and other main metrics."""
    found = {row.name: row for row in run.metrics}
    return [
        parts.Kpi(title, error_text(row.error), describe_difference(row))
        for name, title in ERRORS.items()
        if (row := found.get(name)) is not None and row.predicted is not None
    ]


def describe_difference(row: MetricRow) -> str:
    """Return a metric's measured and predicted values, and whether the measured value is inside the interval."""
    predicted, interval = predicted_texts(row)
    words = f"measured {row.measured:,.4g}, predicted {predicted}"
    if not interval:
        return words
    return f"{words} ({interval}): {'inside' if row.inside else inside_text(row)} the interval"


def hide_upload_folders(comparison: Comparison) -> Comparison:
    """Replace the paths of uploaded files on the server with file names."""
    fitted = comparison.overheads
    if fitted is not None:
        fitted = replace(fitted, fitted_to=tuple(map(uploads.hide_folders, fitted.fitted_to)))
    runs = tuple(replace(run, path=uploads.hide_folders(run.path)) for run in comparison.runs)
    return replace(comparison, runs=runs, overheads=fitted)


st.caption(
    "Upload results of `vllm bench serve --save-result --save-detailed`, SGLang, AIPerf, guidellm or inference-perf. "
    "Set the server's model, GPU and engine in the sidebar."
)
left, right = st.columns(2)
with left:
    files = st.file_uploader(
        "Benchmark results", type=("json", "jsonl", "csv"), key="cmp_results", accept_multiple_files=True
    )
with right:
    log = st.file_uploader(
        "Server log from start-up (optional)",
        type=("log", "txt"),
        key="cmp_log",
        help="Its memory and limits replace the estimated ones.",
    )
with widget_row():
    arrivals = state.segments(
        "Arrivals",
        "cmp_arrivals",
        (AS_FILE, AT_RATE, AT_CONCURRENCY),
        AS_FILE,
        help="For files that do not record how requests were sent, use the sidebar's requests/s or concurrency.",
    )
    lengths = switch(
        "Use the sidebar's lengths",
        "cmp_lengths",
        False,
        help="For files that do not record the lengths of requests.",
    )
    overheads = switch(
        "Fit overheads",
        "cmp_overheads",
        False,
        help="Fit a time per step and a time per request to alternate runs (1st, 3rd, ...); the others validate it.",
    )
load: dict[str, dict[str, Any]] = {
    AT_RATE: {"request_rate": inputs.request_rate},
    AT_CONCURRENCY: {"concurrency": inputs.concurrency},
}
asked = {**inputs.pool, **load.get(arrivals, {})}
if lengths:
    asked |= {**inputs.lengths, **inputs.spread}
if overheads:
    asked["fit_overheads"] = True
if not files:
    st.info("Upload one or more result files.", icon=":material/upload_file:")
else:
    kept = [uploads.store_upload(file) for file in files]
    said = {"model": inputs.model_name, **asked}
    arguments = {"results": tuple(map(str, kept)), "model": inputs.model, **asked}
    if log is not None:
        path = uploads.store_upload(log)
        said["server_log"], arguments["server_log"] = path.name, str(path)
    names = [path.name for path in kept]
    command, python = parts.draw_code_snippets("compare", names, said, None, package="capacity_validate")
    task = Task(function="capacity_validate.comparing:compare", arguments=arguments)
    found = parts.run_in_background("compare", task, doing="Replaying the benchmark").value
    if found is not None:
        comparison = hide_upload_folders(found)
        page = partial(render, comparison, "html", command=command, python=python)
        parts.record_downloads("comparison", comparison, page)
        st.info(escape_markdown(comparison.verdict), icon=":material/balance:")
        where = f"{comparison.model} on {comparison.gpu}, {comparison.engine}. Basis: {comparison.basis}."
        views.draw_view(View("", [where, *server_blocks(comparison)]), comparison)
        for number, run in enumerate(comparison.runs):
            st.caption(escape_markdown(run.path))
            parts.draw_kpis(figures_of_merit(run), place=f"run-{number}")
            for cause in run.causes:
                if cause.startswith("none needed"):
                    st.caption(escape_markdown(f"No causes listed: {cause.partition(': ')[2]}."))
                else:
                    text = escape_except_code(replace_flags(f"Likely cause: {cause}"))
                    st.warning(text, icon=":material/troubleshoot:")
            views.draw_view(View("", run_blocks(run, number), notes=run.notices), comparison)
