"""The frame around every page: menu, sidebar, link, presets, and the one boundary where errors end."""

from __future__ import annotations

import streamlit as st

from capacity_app.boundary import boundary, plain
from capacity_app.pages import PAGES, PageEntry
from capacity_app.presets import PRESETS
from capacity_app.state import Inputs, link_query, sidebar, wrong_parts

_INPUTS, _LINK = "_inputs", "_link_given"


def run() -> None:
    """Draw the chosen page. Everything that happens while streamlit runs a page happens in here."""
    st.set_page_config(page_title="capacity", page_icon=":material/speed:", layout="wide")
    given = st.session_state.setdefault(_LINK, _link_as_given())
    pages = {entry.name: _page(entry) for entry in PAGES}
    page = st.navigation(list(pages.values()), position="top")
    st.title(page.title)
    notice = st.container()
    _presets(pages)
    with boundary():
        st.session_state[_INPUTS] = sidebar()
        page.run()
    with st.sidebar:
        _share()
    if given and (wrong := wrong_parts(given)):
        notice.warning(
            plain(f"The link says what is not there: {'; '.join(wrong)}"), icon=":material/link_off:"
        )
    st.session_state[_LINK] = {}


def current_inputs() -> Inputs:
    """The sidebar's answers, for a page."""
    inputs: Inputs = st.session_state[_INPUTS]
    return inputs


def _page(entry: PageEntry) -> st.Page:
    return st.Page(
        entry.path,
        title=entry.title,
        icon=entry.icon,
        url_path=entry.name,
        help=entry.help,
        default=entry is PAGES[0],
    )


def _link_as_given() -> dict[str, list[str]]:
    return {key: st.query_params.get_all(key) for key in st.query_params}


def _presets(pages: dict[str, st.Page]) -> None:
    """Examples to begin with: each is a link, since a link is the one way to set widgets and URL alike."""
    with st.sidebar:
        chosen = st.menu_button("Examples", [preset.title for preset in PRESETS], icon=":material/lightbulb:")
    for preset in PRESETS:
        if chosen == preset.title:
            st.switch_page(pages[preset.page], query_params=preset.query)


def _share() -> None:
    """A link that reproduces the view, to copy."""
    with st.popover("Copy link", icon=":material/link:", width="stretch"):
        base = (st.context.url or "").split("?")[0]
        query = link_query()
        st.code(f"{base}?{query}" if query else base, language=None, wrap_lines=True)
