"""One place where errors end: what the library refuses is a line on the page, anything else stays in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from capacity.base.errors import CapacityError, DoesNotFit
from capacity_app.uploads import without_folders

LEAK_NOTHING = "Something went wrong inside the dashboard. The details are in the log of its server."
_LOG = logging.getLogger("capacity_app")


@contextmanager
def boundary() -> Iterator[None]:
    """Show a CapacityError as one line; log every other error, and show that there was one."""
    try:
        yield
    except CapacityError as error:
        show_refusal(error)
    except Exception:
        _LOG.exception("a page of the dashboard failed")
        st.error(LEAK_NOTHING, icon=":material/report:")


def show_refusal(error: CapacityError) -> None:
    """The line that the command line would print: a warning where it does not fit, an error for bad input."""
    show = st.warning if isinstance(error, DoesNotFit) else st.error
    show(plain(without_folders(f"{type(error).__name__}: {error}")), icon=":material/block:")


def plain(text: str) -> str:
    """Text from outside as it is, in one line: no markdown, no links, no images."""
    one_line = " ".join(text.split())
    return "".join("\\" + c if c in "\\`*_{}[]()<>#+-!|$~:^" else c for c in one_line)
