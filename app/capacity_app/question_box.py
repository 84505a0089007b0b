"""The box of the Start page: a question in any form, or files; what was understood, and the pages that answer it."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from capacity.answers.parsed_question import ParsedQuestion
from capacity.base.errors import CapacityError
from capacity.base.external_files import read_text
from capacity.base.mappings import omit, select
from capacity.deployment.use_cases import USE_CASES, find_use_case
from capacity.workload import parse_slos
from capacity_app import parts, uploads
from capacity_app.dropped_files import SERVER, TEXT, TRACE, dropped_paths, set_dropped, sort_files
from capacity_app.error_display import page_message
from capacity_app.pages import LOOP, PAGE_BY_NAME, RATE
from capacity_app.state import OWN_MODEL, set_own_model
from capacity_app.traffic import TRACE as A_TRACE
from capacity_app.what_if import (
    apply_fields,
    draw_not_read,
    field_text,
    implied_page_state,
    parse_changes,
    reset_fields,
)

BOX, FILES, PILLS, CASE = "question", "question_files", "question_pills", "question_case"
CONFIG = "config"  # a pill like those of fields
WITHOUT_INPUT = (
    CONFIG,
    "think_time_s",
    "response_s",
)  # they are in no widget; the rate of users contains the times
LOAD = frozenset(
    ("users", "request_rate", "use_case")
)  # with one of them but without a GPU, the question asks for a plan
_UNDERSTOOD, _NOT_READ = "_question_fields", "_question_not_read"


def draw_question_box() -> dict[str, Any]:
    """Draw the box, what was understood, and a link to each page that can answer; return the selected fields."""
    text, files = st.columns((3, 2))
    with text:
        st.text_area(
            "Describe or paste your deployment",
            key=BOX,
            persist_state="session",
            placeholder="70B chat on 8 H100, 1000 users\nvllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 ...",
            on_change=_read_text,
            height=110,
            help="A launch command of vLLM, SGLang, TensorRT-LLM or TGI, a compose or Kubernetes file, a Hugging Face "
            "id, a config.json, or plain words such as `8xH100 70b fp8, isl 2048 osl 256, 20/s`.",
        )
    with files:
        st.file_uploader(
            "Or drop files",
            key=FILES,
            accept_multiple_files=True,
            on_change=_read_files,
            help="Benchmark results, server logs, scrapes of /metrics, request traces, a config.json or a launch file.",
        )
    st.pills("Or start from a use case", USE_CASES, key=CASE, on_change=_read_use_case)
    fields = _draw_pills()
    draw_not_read("question", *st.session_state.get(_NOT_READ, ((), ())))
    _draw_links(fields)
    return fields


def _read_use_case() -> None:
    """Replace the text by the chosen use case and 100 users, plus a response time if it has no think time."""
    if name := st.session_state.get(CASE):
        waits = "" if find_use_case(name).think_time_s.mean else " --response-s 1"
        st.session_state.update({BOX: f"{name}, 100 users{waits}", CASE: None})
        _read_text()


def _read_text() -> None:
    _apply([parse_changes(str(st.session_state.get(BOX) or ""))])


def _read_files() -> None:
    """Sort the dropped files by kind; a config.json or launch file among them is parsed like text in the box."""
    paths = [str(uploads.store_upload(file)) for file in st.session_state[FILES][: uploads.MAX_FILES]]
    kinds = sort_files(dict.fromkeys(paths))
    set_dropped(kinds)
    questions = [parse_changes(str(st.session_state.get(BOX) or ""))]
    for path in kinds.get(TEXT, ()):
        try:
            questions.append(parse_changes(read_text(path, "a launch file")))
        except CapacityError as error:
            questions.append(ParsedQuestion(fields={}, notes=(page_message(error),)))
    _apply(questions)


def _apply(questions: Sequence[ParsedQuestion]) -> None:
    """Set the inputs to the values in the questions, and reset other inputs that an earlier question set."""
    understood = {name: value for parsed in questions for name, value in parsed.fields.items()}
    not_read = [word for parsed in questions for word in parsed.not_read]
    notes = [note for parsed in questions for note in parsed.notes]
    for config in filter(None, (parsed.config for parsed in questions)):
        set_own_model(config)
        understood[CONFIG] = OWN_MODEL
    reset_fields(st.session_state.get(_UNDERSTOOD, {}).keys() - understood.keys())
    left = apply_fields("start", omit(understood, *WITHOUT_INPUT))
    st.session_state.update(
        {_UNDERSTOOD: understood, PILLS: list(understood), _NOT_READ: (not_read, (*notes, *left))}
    )
    _fill_pages(understood)


def _draw_pills() -> dict[str, Any]:
    """Draw a pill for each field that was understood, and return the fields whose pill is selected."""
    understood: dict[str, Any] = st.session_state.get(_UNDERSTOOD, {})
    if not understood:
        return {}
    texts = {
        name: "config.json" if name == CONFIG else field_text(name, understood[name]) for name in understood
    }
    kept = st.pills(
        "Understood",
        list(understood),
        selection_mode="multi",
        format_func=texts.__getitem__,
        key=PILLS,
        persist_state="session",
        on_change=_keep_selected,
        help="Click a pill to leave it out. To change a value, edit the text, or use the input in the sidebar.",
    )
    return {name: understood[name] for name in kept}


def _keep_selected() -> None:
    understood: dict[str, Any] = st.session_state[_UNDERSTOOD]
    kept = set(st.session_state.get(PILLS) or ())
    reset_fields(understood.keys() - kept)
    apply_fields("start", omit(select(understood, kept), *WITHOUT_INPUT))


def _draw_links(fields: Mapping[str, Any]) -> None:
    """Draw a link to each page that answers the question; `_fill_pages` has set the inputs of these pages."""
    estimate, plan = {"estimate": "Estimate"}, {"plan": "Plan"}
    first = {**plan, **estimate} if LOAD & fields.keys() and "gpu" not in fields else {**estimate, **plan}
    offers = (  # what the question contains, and links to the pages that read it
        (dropped_paths(SERVER), {"compare": "Compare your server with the prediction"}),
        (dropped_paths(TRACE), {"simulate": "Simulate the trace", "cache": "Prefix cache of the trace"}),
        (fields, {**first, "fit": "Does it fit?"}),
    )
    links = [link for content, pages in offers if content for link in pages.items()]
    with st.container(horizontal=True, key="question_links"):
        for page, label in links:
            entry = PAGE_BY_NAME[page]
            st.page_link(
                entry.menu_entry, label=f"**{label}**", icon=f":material/{entry.icon}:", help=entry.help
            )


def _fill_pages(fields: Mapping[str, Any]) -> None:
    """Set the inputs of the linked pages that the sidebar does not have; with a load, start the search of a plan."""
    load = LOOP if "concurrency" in fields and "request_rate" not in fields else RATE
    traces = {"sim_arrivals": A_TRACE} if dropped_paths(TRACE) else {}
    limits: dict[str, Any] = {"plan_e2e": None}
    if "use_case" in fields and "ttft_ms" not in fields:
        (level,) = parse_slos(find_use_case(fields["use_case"]).slo.limits)  # of the whole answer
        at = f"p{level.percentile:g}"
        limits = {"plan_e2e": level.limit_s, "plan_at": at, "plan_ttft": 600_000.0, "plan_tpot": 60_000.0}
    if LOAD & fields.keys():
        parts.start_when_shown("plan")
    st.session_state.update({"load": load, **implied_page_state("plan", fields), **traces, **limits})
