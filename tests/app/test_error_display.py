"""Text of others on a page: never markdown, but for what stands between backticks, which is code."""

from __future__ import annotations

import pytest
from capacity_app.error_display import escape_except_code, escape_markdown, replace_flags


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("step costs: `capacity validate` on it", "step costs\\: `capacity validate` on it"),
        ("`a *b* $c$` and *d*", "`a *b* $c$` and \\*d\\*"),
        ("`one` of `two`", "`one` of `two`"),
        ("a lone ` and [a](b)", "a lone \\` and \\[a\\]\\(b\\)"),
        ("``![x](y)`` and `` ` ``", None),
        ("`a``b`", None),
        ("`over\n\n# a line`", "`over # a line`"),
    ],
)
def test_only_words_between_two_lone_backticks_are_code(text: str, shown: str | None) -> None:
    assert escape_except_code(text) == (escape_markdown(text) if shown is None else shown)


def test_a_flag_that_is_code_is_called_as_the_page_calls_it() -> None:
    assert escape_except_code(replace_flags("`--fit-overheads` measures it")) == "`Fit overheads` measures it"
