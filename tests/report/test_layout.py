"""Tables in a width: what must wrap wraps between words, and nothing is lost."""

from __future__ import annotations

import pytest

from capacity.report.layout import empty_table, render_text

HEADS = ("change", "TTFT, ms", "busiest GPU x", "efficiency", "$/1M tokens", "experts read", "tokens/s /GPU")
ROWS = (
    ("twice the tensor parallelism --tensor-parallel-size 2", *["-5,600.8 (-93%)"] * 6),
    ("keep evicted KV in 64 GiB of host memory --kv-offloading-size 64.0", *["[green]met[/green]"] * 6),
)


def test_a_table_that_must_wrap_breaks_no_word() -> None:
    table = empty_table("Changes", *((head, "left") for head in HEADS))
    for row in ROWS:
        table.add_row(*row)
    text = render_text([table])
    assert max(len(line) for line in text.splitlines()) <= 110
    words = {word for texts in (HEADS, *ROWS) for text in texts for word in text.split()}
    assert {word for word in words if "[" not in word} <= set(text.split())


@pytest.mark.parametrize("length", [30, 200])
def test_words_that_have_no_room_are_folded_and_not_lost(length: int) -> None:
    table = empty_table("Paths", ("", "left"), *(("column", "left") for _ in range(8)))
    table.add_row("a" * length, *(["b" * 20] * 8))
    text = render_text([table])
    assert text.count("a") == length + 1  # and one of the title
    assert text.count("b") == 8 * 20
