"""Logs of requests, one JSON object a line: OpenTelemetry's gen_ai spans, AIPerf's records, an engine's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from capacity.workload.traces.format import FirstLine, JsonLines, TraceFormat, TraceOptions
from capacity.workload.traces.lines import TraceLines
from capacity.workload.traces.records import Record, Requests, flat, json_records, one_of
from capacity.workload.workload import Workload

TIMES = (
    "startTimeUnixNano",
    "start_time_unix_nano",
    "metadata.request_start_ns",
    "request_start_ns",
    "start_time",
    "startTime",
    "arrival_time",
    "@timestamp",
    "timestamp",
    "time",
    "ts",
    "created",
)
PROMPTS = (
    "gen_ai.usage.input_tokens",  # opentelemetry.io/docs/specs/semconv/gen-ai, 1.37
    "gen_ai.usage.prompt_tokens",  # the same before 1.27
    "usage.prompt_tokens",  # an OpenAI answer
    "usage.input_tokens",
    "prompt_tokens",
    "input_tokens",
    "num_prompt_tokens",
    "metrics.input_sequence_length.value",  # AIPerf's profile_export.jsonl
)
OUTPUTS = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "usage.completion_tokens",
    "usage.output_tokens",
    "completion_tokens",
    "output_tokens",
    "num_generation_tokens",
    "metrics.output_sequence_length.value",
)
SESSIONS = ("gen_ai.conversation.id", "session_id", "conversation_id", "session.id")
SPANS = "resourceSpans"  # OTLP as JSON: many spans an object


def _read(lines: TraceLines, first: FirstLine, options: TraceOptions) -> Workload:
    """Requests by their times and token counts, under the names that are used for them; other records are left out.

    Times are dates, or seconds, ms, us or ns since 1970. Raises MalformedFile.
    """
    assert isinstance(first, JsonLines)
    rows, others = Requests(lines), 0
    for record in json_records(lines, first):
        for request in _requests(record):
            named = _named(request)
            if named is None:
                others += 1
                continue
            rows.add(request, *named, session=one_of(request, SESSIONS))
            if options.limit is not None and len(rows) >= options.limit:
                return rows.workload(options.name)
    notices = (f"{others:,} records without a time and token counts left out",) if others else ()
    return rows.workload(options.name, notices)


def _named(request: Record) -> tuple[str, str, str] | None:
    """Under which names a record has its time, its prompt's and its output's tokens."""
    time, prompt, output = one_of(request, TIMES), one_of(request, PROMPTS), one_of(request, OUTPUTS)
    return None if time is None or prompt is None or output is None else (time, prompt, output)


def _requests(record: Record) -> Iterator[Record]:
    """A record, or the spans in it, with dotted names."""
    if SPANS not in record:
        yield flat(record)
        return
    for resource in _listed(record[SPANS]):
        for scope in _listed(resource.get("scopeSpans")):
            yield from (flat(span) for span in _listed(scope.get("spans")))


def _listed(value: object) -> list[Mapping[str, object]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _recognises(first: FirstLine) -> bool:
    return isinstance(first, JsonLines) and (SPANS in first.record or _named(flat(first.record)) is not None)


FORMAT = TraceFormat(
    name="engine_log",
    title="OpenTelemetry spans and request logs",
    recognises=_recognises,
    read=_read,
    needed=("timestamp", "prompt_tokens", "completion_tokens"),
    arrays=True,
)
