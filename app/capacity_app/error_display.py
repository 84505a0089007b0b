"""Error handling of pages: library errors are shown in one line, all other errors go to the log."""

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html import escape

import streamlit as st

from capacity.base.errors import CapacityError, DoesNotFit
from capacity.base.money import convert_amounts
from capacity_app.uploads import hide_folders

FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
# labels of flags on pages; the sidebar adds its own
NAMES_OF_FLAGS = {
    "max-concurrency": "Concurrency",
    "method": "Drafting method",
    "fit-overheads": "Fit overheads",
}
INTERNAL_ERROR = "Internal error of the dashboard. See the server's log for details."
_LOG = logging.getLogger("capacity_app")


class NotReady(Exception):
    """Ends a section of a page whose answer does not exist yet."""


@contextmanager
def show_errors() -> Iterator[None]:
    """Draw a section of a page, which ends at NotReady. Show a CapacityError in one line; log every other error and
    show a generic message."""
    try:
        yield
    except NotReady:
        pass
    except CapacityError as error:
        show_refusal(error)
    except Exception:
        _LOG.exception("a page of the dashboard failed")
        st.error(INTERNAL_ERROR, icon=":material/report:")


def show_refusal(error: CapacityError) -> None:
    """Show the library's error message: as a warning if the model does not fit, otherwise as an error."""
    show = st.warning if isinstance(error, DoesNotFit) else st.error
    show(escape_except_code(page_message(error)), icon=":material/block:")
    if not isinstance(error, DoesNotFit):  # `fitting` draws the changes that help
        draw_advice([str(error)])


def draw_advice(texts: Iterable[str]) -> None:
    """Draw a button for each flag with a value in the library's texts, which applies it to the inputs."""
    from capacity_app.advice_buttons import draw_apply_buttons

    draw_apply_buttons(texts)


def page_message(error: CapacityError) -> str:
    """Return an error's message with labels of widgets in place of flags and file names in place of paths."""
    return replace_flags(hide_folders(str(error)))


def replace_flags(text: str) -> str:
    """Replace flags in the library's text with the labels of widgets."""
    return FLAG.sub(lambda found: NAMES_OF_FLAGS.get(found[1], found[1].replace("-", " ")), text)


def link_html(address: str, words: str) -> str:
    """Return a link as HTML; streamlit's own links do not set widgets that are bound to the URL."""
    return f'<a style="color: inherit" href="{escape(address)}">{escape(words)}</a>'


def escape_markdown(text: str) -> str:
    """Escape external text as one line without markdown, links or images, with amounts in the display currency."""
    return _escape_markdown(" ".join(text.split()))


def escape_except_code(text: str) -> str:
    """Escape text like `escape_markdown`, but show text between backticks as code."""
    pieces = CODE.split(" ".join(text.split()))
    return "".join(
        f"`{piece}`" if place % 2 else _escape_markdown(piece) for place, piece in enumerate(pieces)
    )


def _escape_markdown(one_line: str) -> str:
    shown = convert_amounts(one_line)
    return "".join("\\" + c if c in "\\`*_{}[]()<>#+-!|$~:^" else c for c in shown)
