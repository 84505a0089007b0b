"""Words and flags of a launch line, whatever its engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment.command_words import (
    Flags,
    find_key,
    is_flag,
    read_options_file,
    split_command,
    words_before_operator,
)


def test_words_are_a_shells() -> None:
    assert split_command("# a comment\na 'b c' \\\n  d=1\n") == ["a", "b c", "d=1"]
    assert split_command("a; b 'c;d' | e&&f 2>&1 # g") == [
        "a",
        ";",
        "b",
        "c;d",
        "|",
        "e",
        "&&",
        "f",
        "2>",
        "&",
        "1",
        "#",
        "g",
    ]
    assert words_before_operator(split_command("a --b 2>&1")) == ["a", "--b"]
    with pytest.raises(InvalidInput, match="cannot be split into words"):
        split_command("a 'b")


def test_a_negative_number_is_a_value() -> None:
    assert [is_flag(word) for word in ("--x", "-x", "-1", "x", "-")] == [True, True, False, False, False]
    assert Flags(["--chunk", "-1"], ()).take("chunk") == "-1"


def test_flags_are_taken_out_once_and_the_rest_is_left() -> None:
    words = [
        "m",
        "--a-b=1",
        "--on",
        "x",
        "--off",
        "false",
        "--no-on-too",
        "--c",
        "--many",
        "1",
        "2",
        "-s",
        "3",
    ]
    flags = Flags(words, switches=("on", "off", "on_too"), several=("many",), aliases={"s": "short"})
    assert flags.words == ["m", "x"]
    assert (flags.take("a_b"), flags.take("a_b")) == ("1", None)
    assert [flags.take(name) for name in ("on", "off", "on_too")] == ["true", "false", "false"]
    assert (flags.take("many"), flags.take("short")) == ("1 2", "3")
    assert (flags.take("c", known=("1",)), list(flags.remaining_flags())) == (None, [("c", "--c")])


def test_tables_are_read_backwards() -> None:
    table = {"a": "1", "b": "1", "c": "2"}
    assert [find_key(table, word) for word in ("1", "2", "3", None)] == ["a", "c", "3", None]


def test_a_file_of_options_is_flat_whatever_its_depth(tmp_path: Path) -> None:
    text = "a: 1  # one\nb:\n  c: {d: true}\n  e: [1, 2]\nf:\n'g h': x\n"
    (tmp_path / "o.yaml").write_text(text, encoding="utf-8")
    found = read_options_file("o.yaml", tmp_path, "--config of x")
    assert found == {"a": "1", "b.c.d": "true", "b.e": "[1, 2]", "g h": "x"}
    (tmp_path / "o.yaml").write_text("a: [\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"--config of x o\.yaml, line 2: not YAML"):
        read_options_file("o.yaml", tmp_path, "--config of x")
