"""Who asks: the session of a browser's tab, and whether its tab is still there."""

from __future__ import annotations


def current() -> str:
    """The session whose page is being drawn; empty where none is."""
    from streamlit.runtime.scriptrunner import get_script_run_ctx

    context = get_script_run_ctx(suppress_warning=True)
    return "" if context is None else context.session_id


def connected(session: str) -> bool:
    """Whether a tab holds its line; as far as is known, where there is no server to ask."""
    from streamlit import runtime

    return not (session and runtime.exists()) or bool(runtime.get_instance().is_active_session(session))
