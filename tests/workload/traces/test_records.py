"""Records of JSON under many names: dotted names, attributes as OpenTelemetry writes them, clocks by their size."""

from __future__ import annotations

import io
from typing import Any

import pytest

from capacity.base.errors import MalformedFile
from capacity.workload.traces.lines import TraceLines
from capacity.workload.traces.records import Requests, first_name_in, flatten_record

AT_S = 1_763_000_000


def rows() -> Requests:
    return Requests(TraceLines("log", io.StringIO("")))


def test_nested_objects_get_dotted_names_and_attributes_keep_theirs() -> None:
    attributes = [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "12"}},
        {"key": "model", "value": {"stringValue": "12"}},
        {"key": "odd"},
        "odd",
    ]
    record = {"usage": {"prompt": {"tokens": 3}}, "attributes": attributes}
    assert flatten_record(record) == {
        "usage.prompt.tokens": 3,
        "gen_ai.usage.input_tokens": 12,
        "model": "12",
    }
    assert flatten_record({"attributes": {"a.b": 1}}) == {"a.b": 1}
    assert first_name_in({"b": 0, "a": None}, ("a", "b", "c")) == "b"


@pytest.mark.parametrize(
    "written", [AT_S, AT_S * 10**3, AT_S * 10**6, AT_S * 10**9, str(AT_S * 10**9), "2025-11-13T02:13:20Z"]
)
def test_a_clock_is_told_by_its_size(written: object) -> None:
    read = rows()
    read.add({"t": written, "p": 5, "o": 2}, "t", "p", "o")
    assert read.sent_ns[0] == AT_S * 10**9


@pytest.mark.parametrize("written", [-1, True, float("nan"), 1e30, None, "noon", [1]])
def test_what_is_no_time_is_refused(written: Any) -> None:
    with pytest.raises(MalformedFile):
        rows().add({"t": written, "p": 5, "o": 2}, "t", "p", "o")


def test_requests_are_in_order_and_count_from_the_first() -> None:
    read = rows()
    for at in (7, 5, 5.5):
        read.add({"t": at, "p": 5, "o": 2}, "t", "p", "o")
    read.add({"t": 9, "p": 5, "o": 0}, "t", "p", "o")
    workload = read.workload("log")
    assert workload.arrival_s.tolist() == [0.0, 0.5, 2.0]
    assert workload.session is None
    assert workload.notices == ("1 requests without an answer (0 tokens) skipped",)
    with pytest.raises(MalformedFile, match="has no request"):
        rows().workload("log")
