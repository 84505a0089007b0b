"""Read the requests of a GuideLLM report as a workload."""

from collections.abc import Mapping

from capacity.workload.traces.format import FirstLine, JsonLines, TraceFormat, TraceOptions
from capacity.workload.traces.lines import TraceLines
from capacity.workload.traces.records import Requests, flatten_record, record_names
from capacity.workload.workload import Workload

NAMES = record_names()["guidellm"]


def _read(lines: TraceLines, first: FirstLine, options: TraceOptions) -> Workload:
    """Return the successful requests of the benchmark that has the most successful requests. Raises MalformedFile."""
    assert isinstance(first, JsonLines)
    benchmarks = first.record["benchmarks"]
    runs = [_successful_requests(each) for each in benchmarks] if isinstance(benchmarks, list) else []
    largest = max(runs, key=len, default=[])
    rows = Requests(lines)
    for entry in largest[: options.limit]:
        request = flatten_record(entry)
        named = NAMES.names_of(request)
        if named is None:
            lines.reject("a request of the report has no start time, prompt tokens or output tokens")
        rows.add(request, *named)
    taken = runs.index(largest) + 1 if largest else 0
    return rows.workload(
        options.name,
        (f"benchmark {taken} of {len(runs)} is used, because it has the most requests",)
        if len(runs) > 1
        else (),
    )


def _successful_requests(benchmark: object) -> list[Mapping[str, object]]:
    requests = benchmark.get("requests") if isinstance(benchmark, Mapping) else None
    found = requests.get("successful") if isinstance(requests, Mapping) else None
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


FORMAT = TraceFormat(
    name="guidellm",
    title="GuideLLM reports",
    recognises=lambda first: isinstance(first, JsonLines) and "benchmarks" in first.record,
    read=_read,
)
