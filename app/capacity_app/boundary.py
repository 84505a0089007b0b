"""One place where errors end: what the library refuses is a line on the page, anything else stays in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from capacity.base.errors import CapacityError, DoesNotFit
from capacity_app.uploads import without_folders

FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
# what pages call a flag; the sidebar adds its own
NAMES_OF_FLAGS = {
    "max-concurrency": "Concurrency",
    "method": "Way to draft",
    "fit-overheads": "Fit overheads",
}
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
    show(with_code(page_message(error)), icon=":material/block:")


def page_message(error: CapacityError) -> str:
    """The message as a page says it: flags by the names of inputs, uploads by theirs, no name of a class before it."""
    return in_words(without_folders(str(error)))


def in_words(text: str) -> str:
    """Text of the library with its flags as the page calls them."""
    return FLAG.sub(lambda found: NAMES_OF_FLAGS.get(found[1], found[1].replace("-", " ")), text)


def plain(text: str) -> str:
    """Text from outside as it is, in one line: no markdown, no links, no images."""
    return _escape_markdown(" ".join(text.split()))


def with_code(text: str) -> str:
    """The same, but that words between backticks are code, in which no markdown is anything."""
    pieces = CODE.split(" ".join(text.split()))
    return "".join(
        f"`{piece}`" if place % 2 else _escape_markdown(piece) for place, piece in enumerate(pieces)
    )


def _escape_markdown(one_line: str) -> str:
    return "".join("\\" + c if c in "\\`*_{}[]()<>#+-!|$~:^" else c for c in one_line)
