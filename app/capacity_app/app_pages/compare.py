"""Page about the user's server: read its files, compare them with the prediction, calibrate a GPU profile on them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st
from capacity_validate.calibrating_runs import calibration_view
from capacity_validate.comparison import (
    MAIN_METRICS,
    Comparison,
    MetricRow,
    RunComparison,
    error_text,
    inside_text,
    predicted_texts,
    run_blocks,
    server_blocks,
)
from capacity_validate.server_files import MISSING, ServerFiles, ServerSetting, server_files_view

from capacity.base.mappings import omit, select
from capacity.deployment import Pool, build
from capacity.report.display import basis_text, phrase
from capacity.report.tables import render
from capacity.report.views.view import View
from capacity.service.jobs import Task
from capacity_app import dropped_files, example_files, parts, state, uploads, views
from capacity_app.error_display import (
    NotReady,
    escape_except_code,
    escape_markdown,
    replace_flags,
    show_errors,
)
from capacity_app.example_files import read_files
from capacity_app.pages import AS_FILE, AT_CONCURRENCY, AT_RATE, CANDIDATES
from capacity_app.router import current_inputs
from capacity_app.state import OWN_MODEL
from capacity_app.variants import Variant, keep_after_reload, session_variants
from capacity_app.what_if import apply_fields
from capacity_app.widgets import bind_to_url, page_switch, widget_row

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
    place = "inside" if row.inside else inside_text(row)
    words = f"measured {row.measured:,.4g}, predicted {predicted}"
    return words + phrase(" ({}): {} the interval", interval, place)


FROM_SIDEBAR = {  # names in messages of settings that the sidebar supplies
    "GPU": "gpu",
    "tensor parallel size": "tensor_parallel_size",
    "KV cache dtype": "kv_cache_dtype",
}


def use_variant(found: ServerFiles, variant: str) -> None:
    """Set the sidebar's GPU to the calibrated profile `variant`, and its model and settings to those in the files."""
    gpu = variant.partition("@")[0]
    for key, first in CANDIDATES.items():
        if listed := st.session_state.get(key, first):
            others = [name for name in listed if name.partition("@")[0] != gpu]
            st.session_state[key] = [variant, *others]
    pool = build(Pool, {**found.fields, "gpu": variant}, flags=True)
    stated = omit(select(dict(pool), found.fields), "max_model_len")
    apply_fields("compare", {**stated, "gpu": variant, "model": found.model})


def with_sidebar(found: ServerFiles, used: Mapping[str, Any]) -> ServerFiles:
    """Add the values that the sidebar supplies for settings that are in no file."""

    def complete(setting: ServerSetting) -> ServerSetting:
        value = used.get(FROM_SIDEBAR.get(setting.name, setting.name)) if setting.path == MISSING else None
        return setting if value is None else replace(setting, value=str(value), path="the sidebar")

    return replace(found, settings=tuple(map(complete, found.settings)))


def draw_runs(comparison: Comparison) -> None:
    """Draw the metrics and likely causes of each run."""
    st.subheader("Runs and predictions")
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


def draw_calibration(
    found: ServerFiles, files: Sequence[str], options: dict[str, Any], said: dict[str, Any]
) -> None:
    """Draw the inputs of a calibration and, when it is done, the calibrated profile with its download and errors."""
    st.subheader("Calibrate")
    with widget_row():
        name = st.text_input("Name of the variant", "mine", max_chars=32, **bind_to_url("cmp_name", "mine"))
    more = {} if name == "mine" else {"name": name}
    arguments = {"results": found.readable, **options, **more}
    task = Task(function="capacity_validate:calibrate", arguments=arguments, profiles=profiles)
    arguments |= {"out": str(session_variants().root / task.key[:16]), "overwrite": True}
    answer = parts.run_in_background(
        "calibrate", replace(task, arguments=arguments), doing="Calibrating", button="Calibrate", keeps=True
    ).current
    parts.draw_code_snippets("calibrate", names, {**said, **more}, None, package="capacity_validate")
    if answer is None:
        raise NotReady
    path = Path(answer.path)
    session_variants().add(
        answer.profile, Variant(folder=path.parent, gpu=answer.base, profiles=profiles, files=tuple(files))
    )
    keep_after_reload()
    if inputs.pool["gpu"] == answer.profile:
        text = f"{answer.profile} is selected on every page in this browser."
        st.success(escape_markdown(text), icon=":material/check_circle:")
    else:
        st.button(
            f"Use {answer.profile} on every page",
            key="cmp_use",
            type="primary",
            icon=":material/memory:",
            on_click=use_variant,
            args=(found, answer.profile),
            help="Selects this GPU, and the model and settings in the files, in the sidebar.",
        )
    parts.draw_download("Profile as TOML", path.name, path.read_text, mime="application/toml")
    st.caption(
        "Only this browser has this calibrated profile, for a day. To keep it, download the profile, and give its path "
        "as `--gpu`."
    )
    views.draw_view(calibration_view(uploads.hide_folders_in(replace(answer, path=path.name))), None)


st.caption(
    "Upload results of `vllm bench serve --save-result --save-detailed`, SGLang, AIPerf, guidellm and others, the "
    "server's start-up log, and scrapes of /metrics. Set its GPU in the sidebar, and what the files do not contain."
)
place = st.container()  # above the widgets, which are drawn first because a link may set them
with widget_row():
    arrivals = state.segments(
        "Arrivals",
        "cmp_arrivals",
        (AS_FILE, AT_RATE, AT_CONCURRENCY),
        AS_FILE,
        help="For files that do not record how requests were sent, use the sidebar's requests/s or concurrency.",
    )
    lengths = page_switch("cmp_lengths")
    overheads = page_switch("cmp_overheads")
with place:
    paths = read_files(
        "Benchmark results, start-up logs and scrapes of /metrics of one server",
        "cmp_results",
        example_files.SERVER,
        dropped=dropped_files.SERVER,
        several=True,
    )
shown = "_example" * (not st.session_state.get("cmp_results"))  # its answers are not kept for uploaded files
load: dict[str, dict[str, Any]] = {
    AT_RATE: {"request_rate": inputs.request_rate},
    AT_CONCURRENCY: {"concurrency": inputs.concurrency},
}
arguments = {"paths": paths}
task = Task(function="capacity_validate.server_files:read_server_files", arguments=arguments, profiles=())
read: ServerFiles = parts.run_in_background(
    f"server_files{shown}", task, doing="Reading the files", keeps=True
).ready_value
files = sorted(read.readable)
names = [Path(path).name for path in read.readable]
gpu, profiles = session_variants().source_of(inputs.pool["gpu"], tuple(files))
asked = {**omit(inputs.pool, *read.fields), "gpu": gpu, **load.get(arrivals, {})}
if lengths:
    asked |= {**inputs.lengths, **inputs.spread}
said = dict(asked)
if read.model is None or inputs.model_name == OWN_MODEL:
    said, asked = {"model": inputs.model_name, **asked}, {"model": inputs.model, **asked}
views.draw_view(server_files_view(uploads.hide_folders_in(with_sidebar(read, said))), None)
comparison: Comparison | None = None
with show_errors():
    if read.runs and not read.kernels:
        more = {"fit_overheads": True} if overheads else {}
        command, python = parts.draw_code_snippets(
            "compare", names, {**said, **more}, None, package="capacity_validate"
        )
        task = Task(
            function="capacity_validate:compare",
            arguments={"results": read.readable, **asked, **more},
            profiles=profiles,
        )
        found = parts.run_in_background(f"compare{shown}", task, doing="Replaying the benchmark", keeps=True)
        comparison = uploads.hide_folders_in(found.ready_value)
        page = partial(render, comparison, "html", command=command, python=python)
        parts.record_downloads("comparison", comparison, page)
        st.info(escape_markdown(comparison.verdict), icon=":material/balance:")
        basis = basis_text(comparison.basis, comparison.gpu)
        where = f"{comparison.model} on {comparison.gpu}, {comparison.engine}. Basis: {basis}."
        views.draw_view(View("", [where, *server_blocks(comparison)]), comparison)
    elif files:
        st.caption("No file contains requests to compare: add a benchmark result or a scrape of /metrics.")
if files:
    with show_errors():
        draw_calibration(read, files, {} if read.kernels else asked, {} if read.kernels else said)
if comparison is not None:
    draw_runs(comparison)
