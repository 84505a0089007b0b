"""Frame of every page: menu, sidebar, link, examples and error handling.

Slow imports that every page needs are here, so that they are complete before any session draws. Otherwise plotly fails
if pandas is loaded but another thread is still importing it.
"""

from functools import partial
from pathlib import Path

import pandas  # noqa: F401
import plotly.graph_objects  # noqa: F401
import pyarrow  # type: ignore[import-untyped]  # noqa: F401
import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from capacity.base.mappings import omit
from capacity.hardware.profile_search import replace_alias
from capacity_app import what_if
from capacity_app.error_display import escape_markdown, link_html, show_errors
from capacity_app.fitting import show_ways_to_fit
from capacity_app.more_settings import draw_more_settings
from capacity_app.pages import PAGES, PRESETS
from capacity_app.state import (
    INPUTS,
    REMOVED,
    RENAMED,
    begin_page,
    draw_sidebar,
    invalid_link_parts,
    link_query,
    link_to,
)
from capacity_app.state import current_inputs as current_inputs

ICON, STYLE = (Path(__file__).with_name(name) for name in ("icon.svg", "style.css"))
WITH_EVIDENCE = ("estimate", "simulate", "plan", "cost")  # pages that link to measured runs
_LINK, _NOTICE = "_link_given", "_link_notice"


def run() -> None:
    """Draw the selected page. Streamlit runs this function again at every change of an input."""
    st.set_page_config(page_title="capacity", page_icon=ICON, layout="wide")
    if _LINK not in st.session_state:
        _correct_link()
    link = st.session_state.setdefault(_LINK, _link())
    _keep_requested_page()
    page = st.navigation(_menu(), position="top")
    entry = next(entry for entry in PAGES if entry.title == page.title)
    begin_page(entry.name, entry.read_keys())
    st.html(STYLE)
    st.title(page.title)
    st.caption(entry.help)
    notice = st.container()
    with st.sidebar:
        what_if.draw_box(entry.name)
    _draw_examples()
    with show_errors():
        draw_settings = partial(
            draw_more_settings,
            entry.verb or entry.name,
            entry.read_keys(),
            on_change=partial(what_if.move_settings_to_widgets, entry.name),
        )
        st.session_state[INPUTS] = inputs = draw_sidebar(draw_settings)
        with show_ways_to_fit(inputs):
            page.run()
    with st.sidebar:
        _draw_link()
    if entry.name in WITH_EVIDENCE:
        notice.html(link_html(link_to("evidence"), "Measured runs like this"))
    with notice:
        _draw_link_problems(entry.name, link)
    st.session_state[_LINK] = {}


def _draw_link_problems(page: str, link: dict[str, list[str]]) -> None:
    """Show the values in the opened link that the page does not accept, and the link's inputs that no longer exist.

    The messages disappear when an input changes. `link`: the values in the link; empty after the first run of the page.
    """
    inputs = (page, st.session_state.get(INPUTS))
    if link:
        dropped = [key for key in link if key in REMOVED]
        st.session_state[_NOTICE] = (inputs, invalid_link_parts(link), dropped)
    inputs_of_link, wrong, dropped = st.session_state.get(_NOTICE, (None, [], []))
    if inputs != inputs_of_link:  # streamlit runs a page with a link twice
        return
    if wrong:
        text = f"This page does not accept these values of the link: {'; '.join(wrong)}"
        st.warning(escape_markdown(text), icon=":material/link_off:")
    if dropped:
        st.info(f"This link is from an older version. Removed inputs are ignored: {', '.join(dropped)}.")


def _menu() -> dict[str, list[st.Page]]:
    """Return the pages by section; those without a section come first."""
    menu: dict[str, list[st.Page]] = {}
    for entry in PAGES:
        menu.setdefault(entry.section, []).append(entry.menu_entry)
    return menu


def _keep_requested_page() -> None:
    """Set the requested page again, which a run of an earlier page may have replaced before it was stopped."""
    run = get_script_run_ctx()
    if run is not None and run.page_script_hash != run.pages_manager.main_script_hash:
        run.pages_manager.set_script_intent(run.page_script_hash, "")


def _correct_link() -> None:
    """Replace outdated keys and GPU aliases in the URL and rerun the page: widgets read the URL when a run begins."""
    link = _link()
    correct = {RENAMED[key]: values for key, values in link.items() if key in RENAMED} | omit(link, *RENAMED)
    for key in correct:
        if key == "gpu" or key.endswith("_gpus"):
            correct[key] = [replace_alias(name) for name in correct[key]]
    if correct != link:
        st.query_params.from_dict(correct)
        st.rerun()


def _link() -> dict[str, list[str]]:
    return {key: st.query_params.get_all(key) for key in st.query_params}


def _draw_examples() -> None:
    """Draw links to the page's examples."""
    links = (f"<p>{link_html(link, title)}</p>" for title, link in PRESETS.items())
    with st.sidebar.popover("Examples", icon=":material/lightbulb:", width="stretch"):
        st.html("".join(links))


def _draw_link() -> None:
    with st.popover("Copy link", icon=":material/link:", width="stretch"):
        base = (st.context.url or "").split("?")[0]
        query = link_query()
        st.code(f"{base}?{query}" if query else base, language=None, wrap_lines=True)
