"""Logs of requests: the same requests whatever their fields are called and however their clock counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_texts import read

from capacity.base.errors import MalformedFile
from capacity.workload import Workload

BEGIN_S = 1_763_000_000


def otlp(start_s: float, prompt: int, output: int) -> dict[str, object]:
    """A span as OTLP writes it in JSON."""
    attributes = [
        {"key": "gen_ai.request.model", "value": {"stringValue": "m"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(prompt)}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(output)}},
    ]
    return {"name": "chat m", "startTimeUnixNano": str(round(start_s * 1e9)), "attributes": attributes}


def log_record(at_s: float, prompt: int, output: int) -> dict[str, object]:
    """A log record as OTLP writes it in JSON."""
    span = otlp(at_s, prompt, output)
    return {"timeUnixNano": span["startTimeUnixNano"], "attributes": span["attributes"]}


def jaeger(start_s: float, prompt: int, output: int) -> dict[str, object]:
    """A span as Jaeger's UI and API export it."""
    tags = [
        {"key": "gen_ai.usage.prompt_tokens", "type": "int64", "value": prompt},
        {"key": "gen_ai.usage.completion_tokens", "type": "int64", "value": output},
    ]
    return {"operationName": "llm_request", "startTime": round(1e6 * start_s), "tags": tags}


def spans(*found: dict[str, object]) -> str:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(found)}]}]}) + "\n"


REQUESTS = ((0.0, 100, 10), (1.5, 200, 20), (2.0, 300, 30))
WRITTEN = {
    "OTLP": "".join(spans({"name": "GET /"}, otlp(BEGIN_S + at, p, o)) for at, p, o in REQUESTS),
    "OTLP logs": "".join(
        json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [log_record(BEGIN_S + at, p, o)]}]}]})
        + "\n"
        for at, p, o in REQUESTS
    ),
    "Jaeger": json.dumps(
        {"data": [{"traceID": "a", "spans": [jaeger(BEGIN_S + at, p, o)]} for at, p, o in REQUESTS]}
    ),
    "flat spans": "".join(
        json.dumps(
            {
                "start_time": f"2025-11-13T02:13:2{0 + int(at)}.{5 if at % 1 else 0}00000Z",
                "attributes": {"gen_ai.usage.input_tokens": p, "gen_ai.usage.output_tokens": o},
            }
        )
        + "\n"
        for at, p, o in REQUESTS
    ),
    "answers of an API": "".join(
        json.dumps({"created": BEGIN_S + at, "usage": {"prompt_tokens": p, "completion_tokens": o}}) + "\n"
        for at, p, o in REQUESTS
    ),
    "milliseconds": "".join(
        json.dumps({"timestamp": round(1e3 * (BEGIN_S + at)), "prompt_tokens": p, "completion_tokens": o})
        + "\n"
        for at, p, o in REQUESTS
    ),
    "AIPerf": "".join(
        json.dumps(
            {
                "metadata": {"request_start_ns": round(1e9 * (BEGIN_S + at))},
                "metrics": {
                    "input_sequence_length": {"value": p, "unit": "tokens"},
                    "output_sequence_length": {"value": o, "unit": "tokens"},
                },
            }
        )
        + "\n"
        for at, p, o in REQUESTS
    ),
    "an array": json.dumps(
        [{"ts": BEGIN_S + at, "input_tokens": p, "output_tokens": o} for at, p, o in REQUESTS], indent=1
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_requests_under_every_name(tmp_path: Path, name: str) -> None:
    assert columns(read(tmp_path, WRITTEN[name])) == [list(column) for column in zip(*REQUESTS, strict=True)]


def columns(workload: Workload) -> list[list[float]]:
    arrival_s = [round(at, 6) for at in workload.arrival_s.tolist()]
    return [arrival_s, workload.prompt_tokens.tolist(), workload.output_tokens.tolist()]


def test_what_is_no_request_or_has_no_answer_is_counted(tmp_path: Path) -> None:
    text = WRITTEN["milliseconds"] + json.dumps({"level": "info"}) + "\n"
    text += json.dumps({"timestamp": 1e12, "prompt_tokens": 5, "completion_tokens": 0}) + "\n"
    workload = read(tmp_path, text)
    assert len(workload) == 3
    assert "1 records skipped that lack a time or token counts" in workload.notices
    assert "1 requests without an answer (0 tokens) skipped" in workload.notices


def test_order_of_the_log_is_not_that_of_the_requests_and_sessions_are_kept(tmp_path: Path) -> None:
    rows = [
        {"timestamp": BEGIN_S + at, "prompt_tokens": 7, "completion_tokens": 1, "session_id": whose}
        for at, whose in ((3, "a"), (1, "b"), (2, "a"))
    ]
    workload = read(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    assert workload.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert workload.session is not None
    assert workload.session.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"timestamp": "yesterday"},
        {"timestamp": -1},
        {"timestamp": True},
        {"timestamp": 1e30},
        {"prompt_tokens": -3},
        {"prompt_tokens": "many"},
        {"completion_tokens": 1.5},
    ],
)
def test_what_cannot_be_is_refused_by_its_line(tmp_path: Path, changes: dict[str, object]) -> None:
    row = {"timestamp": BEGIN_S, "prompt_tokens": 5, "completion_tokens": 1, **changes}
    with pytest.raises(MalformedFile, match="line 1"):
        read(tmp_path, json.dumps(row) + "\n")
