"""HTML of text: whatever a cell, a heading or an item says, it stands there as text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from capacity.base.html import list_html, page_html, table_html

TEXTS = st.lists(st.text("a<>&\"'/ ", max_size=8), min_size=1, max_size=3)


class Reader(HTMLParser):
    """Tags, and the text in each cell, heading, item and title."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.tags.append(tag)
        if tag in ("td", "th", "li", "title"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        self.texts[-1] += data


@given(heads=TEXTS, cells=TEXTS)
def test_a_table_shows_its_text(heads: list[str], cells: list[str]) -> None:
    read = Reader(table_html(heads, [cells, cells]))
    assert read.texts == heads + cells + cells
    assert read.tags.count("tr") == 3
    assert Reader(table_html(None, [cells])).tags == ["table", "tr", *["td"] * len(cells)]


@given(TEXTS)
def test_a_list_and_a_title_show_their_text(items: list[str]) -> None:
    assert Reader(list_html(items)).texts == items
    page = Reader(page_html(items[0], list_html(items), style="").rstrip())
    assert page.texts == [items[0], *items]
