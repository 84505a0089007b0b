"""HTML of text: whatever a cell, a heading or an item says, it stands there as text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from capacity.base.html import STYLE, list_html, page_html, records_html, table_html

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
        if tag in ("td", "th", "li", "title", "style"):
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
    page = Reader(page_html(items[0], list_html(items), style="p { color: red }").rstrip())
    assert page.texts == [items[0], f"{STYLE}p {{ color: red }}", *items]


@given(heads=TEXTS, cells=TEXTS)
def test_records_show_their_names_and_values(heads: list[str], cells: list[str]) -> None:
    records = [dict(zip(heads, cells, strict=False)), {"more": 1.23456789}, {"more": None}]
    names = list(dict.fromkeys([*records[0], "more"]))
    shown = [str(record.get(name) or "") for record in records for name in names]
    read = Reader(records_html(records))
    assert read.texts == [*names, *("1.23457" if text == "1.23456789" else text for text in shown)]
    assert records_html([]) == ""


def test_a_page_is_for_paper_too_and_asks_for_nothing() -> None:
    page = page_html("t", "")
    assert "@media print" in page
    assert "@page" in page
    assert "http" not in page
    assert 'name="viewport"' in page
