"""Words and flags of a launch line, whatever its engine."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment.launched import Flags, backwards, is_flag, words_of


def test_words_are_a_shells() -> None:
    assert words_of("# a comment\na 'b c' \\\n  d=1\n") == ["a", "b c", "d=1"]
    with pytest.raises(InvalidInput, match="cannot be split into words"):
        words_of("a 'b")


def test_a_negative_number_is_a_value() -> None:
    assert [is_flag(word) for word in ("--x", "-x", "-1", "x", "-")] == [True, True, False, False, False]
    assert Flags(["--chunk", "-1"], ()).count("chunk") == -1


def test_flags_are_taken_out_once_and_the_rest_is_left() -> None:
    flags = Flags(["m", "--a-b=1", "--on", "x", "--off", "false", "--c"], switches=("on",))
    assert flags.words == ["m", "x"]
    assert (flags.take("a_b"), flags.take("a_b")) == ("1", None)
    assert (flags.on("on"), flags.on("on"), flags.on("off")) == (True, False, False)
    assert list(flags.left()) == [("c", "--c")]
    with pytest.raises(InvalidInput, match="--n-m is two: must be a whole number"):
        Flags(["--n-m", "two"], ()).count("n_m")


def test_tables_are_read_backwards() -> None:
    table = {"a": "1", "b": "1", "c": "2"}
    assert [backwards(table, word) for word in ("1", "2", "3", None)] == ["a", "c", "3", None]
