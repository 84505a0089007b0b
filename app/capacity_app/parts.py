"""Components of pages: key metrics, charts and tables with exports, code snippets, and background jobs."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import streamlit as st

from capacity.answers.records import Quantity
from capacity.base.command_text import command_line, python_call
from capacity.base.money import convert_amounts, display_currency, set_display_currency
from capacity.base.rows import to_csv
from capacity.report.display import VERDICT_COLOURS, phrase
from capacity.report.figures import Chart
from capacity.report.views.units import value_at
from capacity.service.jobs import Job, Task
from capacity_app.error_display import (
    NotReady,
    draw_advice,
    escape_except_code,
    escape_markdown,
    replace_flags,
    show_errors,
)
from capacity_app.merits import meaning
from capacity_app.sessions import current_session, runner
from capacity_app.variants import keep_session_folders

REFRESH_S = 0.25
MISSING = "-"  # a cell without a value
WHOLE_ROWS = 20  # rows of a table that is shown without scrolling


@dataclass(frozen=True)
class Kpi:
    """A key metric: its value as text, an interval or reason below it, and help behind a `?`.

    `number` is the value for comparisons, with its interval if it has one. `help` is needed only for metrics that
    `merits.MEANINGS` does not explain.
    """

    label: str
    value: str
    below: str = ""
    number: Quantity | None = None
    help: str | None = None

    @property
    def value_with_interval(self) -> str:
        """Return the value; if it has an interval, with the text below it."""
        return self.value + phrase(" ({})", self.below * (value_at(self.number, "low") is not None))


def draw_kpis(row: Sequence[Kpi], *, place: str = "main") -> None:
    """Draw key metrics in a grid; `place` is the grid's unique name on the page."""
    with st.container(key=f"kpis-{place}"):
        for kpi in row:
            st.metric(
                convert_amounts(kpi.label),
                kpi.value,
                convert_amounts(kpi.below) or None,
                delta_color="off",
                delta_arrow="off",
                border=True,
                height="stretch",
                help=convert_amounts(kpi.help or meaning(kpi.label) or "") or None,
            )


_SHOWN = {  # by verdict colour
    "green": (st.success, ":material/check_circle:"),
    "yellow": (st.warning, ":material/warning:"),
    "red": (st.error, ":material/error:"),
}


def draw_verdict(judgement: str | None, text: str) -> None:
    """Draw `text` in a box with the colour and icon of a steady-state verdict `judgement`, such as `stable`; draw
    nothing without a verdict."""
    if judgement is None:
        return
    show, icon = _SHOWN[VERDICT_COLOURS[judgement]]
    show(escape_except_code(replace_flags(text)), icon=icon)
    draw_advice([text])


def draw_replicas(task: Task) -> None:
    """Draw the number of replicas that a load needs; `task` (`tasks.replicas`) computes it in the background."""
    from capacity.report.replicas import replicas_text

    needed = run_in_background("replicas", task, doing="Computing replicas").current
    if needed is not None:
        st.info(escape_except_code(replace_flags(replicas_text(needed))), icon=":material/dns:")


def draw_notes(warnings: Iterable[str]) -> None:
    """Draw the notes that are not empty."""
    shown = list(filter(None, warnings))
    for warning in shown:
        st.caption(f":material/info: {escape_except_code(replace_flags(warning))}")
    draw_advice(shown)


def draw_chart(drawn: Chart, *, clickable: bool = False) -> tuple[Any, ...]:
    """Draw a chart with its data and downloads; if `clickable`, return the `customdata` of the last clicked point."""
    with st.container(border=True):
        st.markdown(f"**{escape_markdown(drawn.title)}**")
        event: Any = st.plotly_chart(
            drawn.figure,
            key=f"chart_{drawn.name}",
            alt=drawn.alt,
            on_select="rerun" if clickable else "ignore",
            selection_mode="points",
            config={
                "displaylogo": False,
                "displayModeBar": True,
                "modeBarButtonsToRemove": ["toImage"],  # that image would lack the subject
            },
        )
        with st.popover(
            "Data and files", icon=":material/download:", key=f"files_{drawn.name}", on_change="rerun"
        ) as files:
            if files.open:
                _chart_files(drawn)
    clicked = value_at(event, "selection.points.0") if clickable else None
    return tuple(value_at(clicked, "customdata") or ())


def _chart_files(drawn: Chart) -> None:
    """Draw the chart's description, data and downloads; image files include title, subject and date."""
    st.caption(escape_markdown(drawn.alt))
    alt = f"Data of the chart: {drawn.title}"
    st.dataframe(list(drawn.rows), hide_index=True, alt=alt, placeholder=MISSING)
    with st.container(horizontal=True):
        draw_download("CSV", f"{drawn.name}.csv", partial(to_csv, drawn.rows), mime="text/csv", place="chart")
        draw_download("SVG", f"{drawn.name}.svg", drawn.svg, mime="image/svg+xml", place="chart")
        draw_download("HTML", f"{drawn.name}.html", drawn.html, mime="text/html", place="chart")
        draw_download("PNG", f"{drawn.name}.png", drawn.png, mime="image/png", place="chart")
    st.caption("Image files have a white background, and include title, subject and date.")


def draw_download(
    label: str, file_name: str, content: Callable[[], str | bytes], *, mime: str, place: str = "download"
) -> None:
    """Draw a download button that creates its file on click. `place` and file name must be unique on a page."""
    key, icon = f"{place}_{file_name}", ":material/download:"
    content = keep_session_folders(content)
    st.download_button(label, content, file_name, mime, key=key, on_click="ignore", icon=icon)


def draw_table(name: str, rows: Sequence[Mapping[str, Any]], *, alt: str, **options: Any) -> None:
    """Draw a table that can be searched and sorted, with its downloads; a long one can be scrolled."""
    options = {"height": "content" if len(rows) <= WHOLE_ROWS else "auto", **options}
    st.dataframe(list(rows), hide_index=True, alt=alt, key=f"table_{name}", placeholder=MISSING, **options)
    with st.container(horizontal=True):
        draw_download("Table as CSV", f"{name}_table.csv", partial(to_csv, rows), mime="text/csv")
        as_json = partial(json.dumps, list(rows), indent=2)
        draw_download("Table as JSON", f"{name}_table.json", as_json, mime="application/json")


def draw_code_snippets(
    verb: str | None,
    model: str | Sequence[str],
    options: Mapping[str, Any],
    answer: Any,
    *,
    function: str | None = None,
    typed: Mapping[str, Any] | None = None,
    package: str = "capacity",
) -> tuple[str, str]:
    """Draw the command and the Python code of an answer, and its downloads; return the command and the code.

    The command is empty if `verb` is None. `function`: name of the function in `package`, if it differs from `verb`.
    `typed`: options of the command, if they differ from the keyword arguments. `model` may be several file names.
    """
    from capacity.report.tables import render

    name = function or verb or ""
    command = "" if verb is None else command_line(verb, model, options if typed is None else typed)
    python = python_call(name, model, options, package=package)
    with st.container(horizontal=True):
        if command:
            with st.popover("Copy as CLI", icon=":material/terminal:", width="content"):
                st.code(command, language="shell")
        with st.popover("Copy as Python", icon=":material/code:", width="content"):
            st.code(python, language="python")
        if answer is not None:
            _record_files(
                name, answer, partial(render, answer, "html", command=command or None, python=python)
            )
    return command, python


def record_downloads(name: str, answer: Any, page: Callable[[], str]) -> None:
    """Draw the downloads of an answer for which there is no command; `page` returns its HTML page."""
    with st.container(horizontal=True):
        _record_files(name, answer, page)


def _record_files(name: str, answer: Any, page: Callable[[], str]) -> None:
    from capacity.base.rows import flatten
    from capacity.report.tables import null_infinities

    record: Any = null_infinities(answer.to_dict())
    as_json = partial(json.dumps, record, indent=2, allow_nan=False)
    draw_download("JSON", f"{name}.json", as_json, mime="application/json")
    draw_download("CSV", f"{name}.csv", partial(to_csv, [flatten(record)]), mime="text/csv")
    draw_download("Printable page", f"{name}_page.html", page, mime="text/html")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Result of a background task. `value` was computed from `arguments`. `stale`: the inputs have changed since then.

    `partial` is the latest progress report of the running task.
    """

    value: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    stale: bool = False
    partial: tuple[Any, ...] | None = None

    @property
    def ready_value(self) -> Any:
        """Return the value. Raises NotReady without one, which ends this section of the page."""
        if self.value is None:
            raise NotReady
        return self.value

    @property
    def current(self) -> Any:
        """Return the value if it belongs to the current inputs, else None."""
        return None if self.stale else self.value


def start_when_shown(place: str) -> None:
    """Start the next task of this place without a click on its button."""
    st.session_state.setdefault(f"_work_{place}", {})["start"] = True


ReadProgress = Callable[..., tuple[float, str]]
"""Function that converts a task's progress report to a fraction from 0 to 1 and a text."""


def progress_fraction(done: int, total: int) -> tuple[float, str]:
    """Return the fraction `done / total` (at most 1) and the text `3 of 10`."""
    return min(done / max(total, 1), 1.0), f"{done:,} of {total:,}"


def run_in_background(
    place: str,
    task: Task,
    *,
    doing: str,
    button: str | None = None,
    reading: ReadProgress = progress_fraction,
    keeps: bool = False,
) -> Answer:
    """Run a task in the background, and draw its progress, a cancel button and a mark for stale answers.

    The task starts immediately, or when a button with the label `button` is clicked, or shown after `start_when_shown`.
    A new task in the same `place` replaces the previous one. `reading` converts a progress report to a fraction and a
    text. Raises the task's CapacityError; if `keeps` is true, draw the error instead, and return the previous answer as
    stale.
    """
    kept: dict[str, Any] = st.session_state.setdefault(f"_work_{place}", {})
    clicked = button is not None and st.button(
        button, type="primary", key=f"run_{place}", icon=":material/play_arrow:"
    )
    if clicked := kept.pop("start", clicked):
        kept.pop("stopped", None)
    job = _job(kept, task, wanted=clicked or button is None)
    if job is not None and not job.finished:
        _draw_progress(place, job, kept, doing, reading)
    elif job is not None and (job.status == "done" or job.key == task.key):
        with show_errors() if keeps else nullcontext():
            kept["shown"] = job.task, job.result()
    elif job is None and "stopped" in kept:
        st.info("Cancelled.", icon=":material/stop:")
        if button is None and st.button("Run again", key=f"again_{place}"):
            kept.pop("stopped")
            st.rerun()
    of, shown = kept.get("shown", (task, None))
    stale = of.key != task.key
    if stale:
        st.badge("Stale: from earlier inputs", icon=":material/history:", color="orange")
    partial = None if job is None or job.finished else job.progress
    return Answer(value=shown, arguments=of.arguments, stale=stale, partial=partial)


def _job(kept: dict[str, Any], task: Task, *, wanted: bool) -> Job | None:
    """Return the job of a place on the page: that of `task` if it is cached or `wanted`, else the previous job."""
    job: Job | None = kept.get("job")
    if job is not None and job.status == "cancelled":
        job = kept["job"] = None
    if (job is not None and job.key == task.key) or kept.get("stopped") == task.key:
        return job
    job_of_task = runner().finished_job(task)
    if job_of_task is None and not wanted:
        return job
    _stop_following(job)
    kept.pop("stopped", None)
    if job_of_task is None:
        job_of_task = runner().submit(task, current_session())
    kept["job"] = job_of_task
    return job_of_task


def _stop_following(job: Job | None) -> None:
    """Stop following a job; the runner cancels a job that no session follows."""
    if job is not None and not job.finished:
        runner().leave(job, current_session())


def _draw_progress(place: str, job: Job, kept: dict[str, Any], doing: str, reading: ReadProgress) -> None:
    """Draw the progress of a job and redraw it every `REFRESH_S` seconds.

    The progress bar has its own container. Streamlit drops elements that it has not sent when the next run of the
    fragment begins, and without these a browser cannot draw the later elements of the page.
    """

    currency = display_currency()  # a fragment runs in another thread

    @st.fragment(run_every=REFRESH_S)
    def progress() -> None:
        set_display_currency(currency)
        with show_errors():
            if job.finished:
                st.rerun()
            with st.container(horizontal=True, vertical_alignment="center"):
                state = "queued" if job.status == "waiting" else "running"
                share, text = reading(*job.progress) if job.progress else (0.0, state)
                st.progress(share, text=escape_markdown(f"{doing}: {text}"))
                if st.button("Cancel", key=f"cancel_{place}", icon=":material/stop:"):
                    _stop_following(job)
                    kept.update(job=None, stopped=job.key)
                    st.rerun()

    with st.container():
        progress()
