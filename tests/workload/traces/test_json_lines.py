"""Fields of JSON lines: numbers are finite and not negative, or the line is named."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import MalformedFile
from capacity.workload.traces.json_lines import json_number, json_record, json_tokens
from capacity.workload.traces.lines import MAX_CLOCK_S, TraceLines

NUMBERS = st.integers() | st.floats()
OTHERS = st.none() | st.booleans() | st.text(max_size=3) | st.lists(st.none(), max_size=2)


@given(NUMBERS | OTHERS)
def test_a_number_comes_back_or_its_line_is_named(value: object) -> None:
    lines = TraceLines("trace.jsonl", io.StringIO())
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and 0 <= float(str(value)) <= 1000 * MAX_CLOCK_S:
        assert json_number(lines, "t", value) == value
        return
    with pytest.raises(MalformedFile, match=r"^trace\.jsonl, line 1: t "):
        json_number(lines, "t", value)


@given(st.integers(0, 2**24))
def test_tokens_may_be_written_as_whole_floats(tokens: int) -> None:
    lines = TraceLines("trace.jsonl", io.StringIO())
    assert json_tokens(lines, "in", tokens) == json_tokens(lines, "in", float(tokens)) == tokens


@given(st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=3), max_size=3))
def test_a_line_is_one_object(record: dict[str, object]) -> None:
    assert json_record(TraceLines("trace.jsonl", io.StringIO()), json.dumps(record) + "\n") == record
