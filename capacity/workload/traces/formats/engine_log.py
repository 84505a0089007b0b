"""Request logs with one JSON object per line: OpenTelemetry spans and logs, AIPerf records, or an engine's own log."""

from collections.abc import Iterator, Mapping

from capacity.workload.traces.format import FirstLine, JsonLines, TraceFormat, TraceOptions
from capacity.workload.traces.lines import TraceLines
from capacity.workload.traces.records import (
    Record,
    Requests,
    first_name_in,
    flatten_record,
    json_records,
    record_names,
)
from capacity.workload.workload import Workload

NAMES = record_names()["engine_log"]
NESTED = {  # OTLP as JSON: several spans or log records per object
    "resourceSpans": ("scopeSpans", "spans"),
    "resourceLogs": ("scopeLogs", "logRecords"),
}
JAEGER = "data"  # an export of Jaeger's: traces, each a list of spans with tags


def _read(lines: TraceLines, first: FirstLine, options: TraceOptions) -> Workload:
    """Read requests from records whose times and token counts have a known field name; other records are skipped.

    Times are dates, or seconds, ms, us or ns since 1970. Raises MalformedFile.
    """
    assert isinstance(first, JsonLines)
    rows, others = Requests(lines), 0
    for record in json_records(lines, first):
        for request in _requests(record):
            named = NAMES.names_of(request)
            if named is None:
                others += 1
                continue
            rows.add(request, *named, session=first_name_in(request, NAMES.sessions))
            if options.limit is not None and len(rows) >= options.limit:
                return rows.workload(options.name)
    notices = (f"{others:,} records skipped that lack a time or token counts",) if others else ()
    return rows.workload(options.name, notices)


def _requests(record: Record) -> Iterator[Record]:
    """Yield the record, or the spans or log records in it, with dotted names for nested fields."""
    outer = next((key for key in NESTED if key in record), None)
    if outer is not None:
        scopes, records = NESTED[outer]
        for resource in _list_of_mappings(record[outer]):
            for scope in _list_of_mappings(resource.get(scopes)):
                yield from (flatten_record(each) for each in _list_of_mappings(scope.get(records)))
    elif _is_jaeger(record):
        for trace in _list_of_mappings(record[JAEGER]):
            for span in _list_of_mappings(
                trace.get("spans")
            ):  # tags become fields; `startTime` is in microseconds
                tags = {str(tag.get("key")): tag.get("value") for tag in _list_of_mappings(span.get("tags"))}
                yield flatten_record({"startTime": span.get("startTime"), **tags})
    else:
        yield flatten_record(record)


def _is_jaeger(record: Record) -> bool:
    return any("spans" in trace for trace in _list_of_mappings(record.get(JAEGER)))


def _list_of_mappings(value: object) -> list[Mapping[str, object]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _recognises(first: FirstLine) -> bool:
    return isinstance(first, JsonLines) and (
        any(key in first.record for key in NESTED)
        or _is_jaeger(first.record)
        or NAMES.names_of(flatten_record(first.record)) is not None
    )


FORMAT = TraceFormat(
    name="engine_log",
    title="OpenTelemetry spans and request logs",
    recognises=_recognises,
    read=_read,
    needed=("timestamp", "prompt_tokens", "completion_tokens"),
    arrays=True,
)
