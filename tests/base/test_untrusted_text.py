"""Text from outside is shown as it is, but for what would move a cursor, turn text around or end a line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import parse_json, parse_toml
from capacity.base.untrusted_text import one_line, printable, printable_values, shorten_text


def test_what_is_shown_of_what_is_not() -> None:
    assert printable("Qwen3-8B ü 模型\n\t") == "Qwen3-8B ü 模型\n\t"
    assert printable("x\x1b]0;pwn\x07\u202e\ud800") == "x\\x1b]0;pwn\\x07\\u202e\\ud800"
    assert printable("\x1b[31mred\x1b[0m\x1b]0;t", colours=True) == "\x1b[31mred\x1b[0m\\x1b]0;t"
    assert (
        printable("a\U000a38e3b\ue000\xa0c") == "a\\U000a38e3b\\ue000\xa0c"
    )  # no characters that anybody knows
    assert shorten_text("x" * 5000) == f"{'x' * 675} ... {'x' * 180}"
    assert one_line("a\nb\x1b") == "a b\\x1b"


@given(st.text(alphabet=st.characters(), max_size=30))
def test_nothing_else_is_left(text: str) -> None:
    line = one_line(text)
    assert printable(line) == line
    assert not {"\x1b", "\n", "\r", "\x9b", "\u202e"} & set(line)
    line.encode()


def test_parsed_texts_and_errors_are_printable() -> None:
    assert parse_json('{"a\\u001b": ["\\u001b[31m", 3, {"b": "\\ud800"}]}', "x") == {
        "a\\x1b": ["\\x1b[31m", 3, {"b": "\\ud800"}]
    }
    assert parse_toml('a = "\\u001b"', "x") == {"a": "\\x1b"}
    assert str(InvalidInput("no \x1b[31m\n")) == "no \\x1b[31m"
    assert str(MalformedFile("a\x1bb", "is none")) == "a\\x1bb: is none"
    nested: list[object] = []
    for _ in range(5000):
        nested = [nested]
    assert printable_values(nested) is not None
