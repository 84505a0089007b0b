"""Logs of requests, one JSON object a line: OpenTelemetry's spans and logs, AIPerf's records, an engine's own."""

from collections.abc import Iterator, Mapping

from capacity.workload.traces.format import FirstLine, JsonLines, TraceFormat, TraceOptions
from capacity.workload.traces.lines import TraceLines
from capacity.workload.traces.records import Record, Requests, flat, json_records, one_of
from capacity.workload.workload import Workload

TIMES = (
    "startTimeUnixNano",
    "start_time_unix_nano",
    "timeUnixNano",
    "observedTimeUnixNano",
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
NESTED = {  # OTLP as JSON: many spans or log records an object
    "resourceSpans": ("scopeSpans", "spans"),
    "resourceLogs": ("scopeLogs", "logRecords"),
}
JAEGER = "data"  # an export of Jaeger's: traces, each a list of spans with tags


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
    """A record, or the spans or log records in it, with dotted names."""
    outer = next((key for key in NESTED if key in record), None)
    if outer is not None:
        scopes, records = NESTED[outer]
        for resource in _listed(record[outer]):
            for scope in _listed(resource.get(scopes)):
                yield from (flat(each) for each in _listed(scope.get(records)))
    elif _of_jaeger(record):
        for trace in _listed(record[JAEGER]):
            yield from (_tagged(span) for span in _listed(trace.get("spans")))
    else:
        yield flat(record)


def _of_jaeger(record: Record) -> bool:
    return any("spans" in trace for trace in _listed(record.get(JAEGER)))


def _tagged(span: Mapping[str, object]) -> Record:
    """A span of Jaeger's with its tags by name; `startTime` is in microseconds."""
    tags = {str(tag.get("key")): tag.get("value") for tag in _listed(span.get("tags"))}
    return flat({"startTime": span.get("startTime"), **tags})


def _listed(value: object) -> list[Mapping[str, object]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _recognises(first: FirstLine) -> bool:
    return isinstance(first, JsonLines) and (
        any(key in first.record for key in NESTED)
        or _of_jaeger(first.record)
        or _named(flat(first.record)) is not None
    )


FORMAT = TraceFormat(
    name="engine_log",
    title="OpenTelemetry spans and request logs",
    recognises=_recognises,
    read=_read,
    needed=("timestamp", "prompt_tokens", "completion_tokens"),
    arrays=True,
)
