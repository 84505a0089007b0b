"""A terminal's tables as HTML: the same cells, our marks as classes, everything else as text."""

from __future__ import annotations

import re
from html import unescape

from hypothesis import given
from hypothesis import strategies as st

from capacity.report.layout import empty_table, note_lines
from capacity.report.tables_html import markup_html, parts_html, split_notes

TEXT = st.text("ab<>&\"'[]/ ", max_size=12)


def read(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html))


@given(TEXT)
def test_words_stand_as_they_are(text: str) -> None:
    html = markup_html(f"x{text}x")
    assert read(html) == f"x{text}x"
    assert not re.search(r"<(?!/?(strong|span)\b)", html)


def test_our_own_marks_are_classes() -> None:
    html = markup_html("[bold]8b[/bold] on <it>: [red]does not fit[/red], [foo]")
    assert html == '<strong>8b</strong> on &lt;it&gt;: <span class="bad">does not fit</span>, [foo]'


def test_a_table_keeps_its_cells_and_sides() -> None:
    table = empty_table("A <title>", ("name", "left"), ("ms", "right"))
    table.add_row("one & two", "1.0")
    html = parts_html([table, "a line\nand another"])
    assert "<caption>A &lt;title&gt;</caption>" in html
    assert '<th scope="col">name</th><th scope="col" class="n">ms</th>' in html
    assert '<td>one &amp; two</td><td class="n">1.0</td>' in html
    assert html.endswith("<p>a line</p><p>and another</p>")


def test_remarks_are_apart() -> None:
    shown, remarks = split_notes(["first", *note_lines(["mind <this>", "and that"]), "last"])
    assert shown == ["first", "last"]
    assert remarks == ["mind <this>", "and that"]
