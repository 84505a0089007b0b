"""The field More settings: a text with engine flags that have no widget in the sidebar. The link contains the text."""

from collections.abc import Callable, Mapping, Set
from typing import Any

import streamlit as st

from capacity.answers.parsed_question import parse_question
from capacity.base.command_text import flag_texts
from capacity.base.mappings import omit, select
from capacity.deployment import Pool, Traffic, build
from capacity.deployment.used_fields import unused_fields
from capacity.planning.space import Search
from capacity_app.error_display import escape_markdown
from capacity_app.widgets import bind_to_url

KEY = "more"
HELP = (
    "Any other setting, as flags with vLLM's names, such as `--max-num-seqs 256 --enable-prefix-caching "
    "--gpu-memory-utilization 0.85`. They apply on every page, and the link contains them."
)
AXES = {  # fields of a pool that a search varies under another name
    "enable_prefix_caching": "prefix_caching",
    "enable_chunked_prefill": "chunked_prefill",
    "data_parallel_size": "data_parallel_sizes",
    "speculator": "speculators",
}
SEARCHES = ("plan", "fleet")


REFUSED = {"cascade": ("enable_prefix_caching",)} | dict.fromkeys(  # settings that a verb rejects
    ("quantize", "speculate", "beam-search", "scale"), ("data_parallel_size",)
)


def read_settings(verb: str, settings: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that change the answer of the command `verb` with the other given options."""
    if verb in SEARCHES:
        return {
            name: value for name, value in settings.items() if AXES.get(name, name) in Search.model_fields
        }
    settings = omit(settings, *REFUSED.get(verb, ()))
    every = {**options, **settings}
    specs = (
        build(Pool, select(every, Pool.model_fields)),
        build(Traffic, select(every, Traffic.model_fields)),
    )
    return omit(settings, *unused_fields(verb, specs, settings))


def search_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as keyword arguments of a search."""
    return {AXES.get(name, name): value for name, value in settings.items()}


def draw_more_settings(
    verb: str, reads: Set[str], pool: Mapping[str, Any], on_change: Callable[[], None]
) -> dict[str, Any]:
    """Draw the text field, and return the `Pool` fields in it that the page's answer depends on.

    `reads`: keys of the sidebar's widgets that the page uses; `pool`: the sidebar's other settings.
    """
    options = bind_to_url(KEY, "", on_change=on_change, placeholder="--max-num-seqs 256", help=HELP)
    parsed = parse_question(str(st.text_input("More settings", "", max_chars=2000, **options)))
    settings = select(parsed.fields, Pool.model_fields)
    if str(settings.get("engine", "")).partition("@")[0] != pool.get("engine", "vllm"):
        settings.pop("engine", None)  # a release of another engine than the chosen one
    if ignored := (*parsed.not_read, *parsed.notes):
        st.caption(f"Not used: {escape_markdown('; '.join(ignored))}")
    if KEY not in reads:
        return {}
    loads = {"rate": ("request_rate", 1.0), "concurrency": ("concurrency", 1)}
    load = dict(loads[key] for key in loads.keys() & reads)
    used = read_settings(verb, settings, {**pool, **load})
    if idle := omit(settings, *used):
        st.caption(f"Without effect on this page: {escape_markdown(' '.join(flag_texts(idle)))}")
    return used


def settings_of_text() -> dict[str, Any]:
    """Return the fields in the text field's current value."""
    return dict(parse_question(str(st.session_state.get(KEY) or "")).fields)
