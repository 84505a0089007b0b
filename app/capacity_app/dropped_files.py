"""Files dropped on the Start page, sorted by the page that reads them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import streamlit as st

from capacity.base.errors import CapacityError
from capacity.workload.traces import read_trace

SERVER, TRACE, TEXT = "server", "trace", "text"
MAX_TEXT_BYTES = 131_072  # of a launch file or config.json
_DROPPED = "_dropped_files"


def sort_files(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the paths by kind: request traces, files of a server, and texts that describe a deployment."""
    kinds: dict[str, tuple[str, ...]] = {}
    for path in paths:
        kind = _kind_of(path)
        kinds[kind] = (*kinds.get(kind, ()), path)
    return kinds


def _kind_of(path: str) -> str:
    from capacity_validate.evidence import read_evidence

    try:
        read_trace(path, limit=1)
    except CapacityError:
        rejected: dict[str, str] = {}
        read_evidence((path,), rejected=rejected)  # only for its reasons
        return TEXT if path in rejected and Path(path).stat().st_size <= MAX_TEXT_BYTES else SERVER
    return TRACE


def set_dropped(kinds: Mapping[str, tuple[str, ...]]) -> None:
    """Keep the sorted files for the pages of this session."""
    st.session_state[_DROPPED] = kinds


def dropped_paths(kind: str) -> tuple[str, ...]:
    """Return the paths of this session's dropped files of this kind."""
    kinds: Mapping[str, tuple[str, ...]] = st.session_state.get(_DROPPED, {})
    return kinds.get(kind, ())
