"""The job runner of this dashboard, and the browser sessions whose jobs it runs."""

from functools import cache

from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from capacity.service.jobs import Runner


@cache
def runner() -> Runner:
    """Return the job runner, which all sessions of this server share."""
    return Runner(alive=_is_connected)


def current_session() -> str:
    """Return the id of the session whose page is being drawn, or an empty string."""
    context = get_script_run_ctx(suppress_warning=True)
    return "" if context is None else context.session_id


def _is_connected(session: str) -> bool:
    """Return whether the session has a connected browser tab; True if no server runs."""
    return not (session and runtime.exists()) or bool(runtime.get_instance().is_active_session(session))
