"""A GuideLLM report: the requests that it has sent, as a workload."""

from collections.abc import Mapping

from capacity.workload.traces.format import FirstLine, JsonLines, TraceFormat, TraceOptions
from capacity.workload.traces.lines import TraceLines
from capacity.workload.traces.records import Requests, flat, one_of
from capacity.workload.workload import Workload

TIMES = ("request_start_time", "info.timings.request_start", "start_time")
PROMPTS = ("prompt_tokens", "input_metrics.text_tokens")
OUTPUTS = ("output_tokens", "output_metrics.text_tokens")


def _read(lines: TraceLines, first: FirstLine, options: TraceOptions) -> Workload:
    """The successful requests of the report's benchmark with most of them. Raises MalformedFile."""
    assert isinstance(first, JsonLines)
    benchmarks = first.record["benchmarks"]
    runs = [_successful(each) for each in benchmarks] if isinstance(benchmarks, list) else []
    largest = max(runs, key=len, default=[])
    rows = Requests(lines)
    for entry in largest[: options.limit]:
        request = flat(entry)
        time, prompt, output = one_of(request, TIMES), one_of(request, PROMPTS), one_of(request, OUTPUTS)
        if time is None or prompt is None or output is None:
            lines.refuse("a request of the report has no start time, prompt tokens or output tokens")
        rows.add(request, time, prompt, output)
    taken = runs.index(largest) + 1 if largest else 0
    return rows.workload(
        options.name,
        (f"benchmark {taken} of {len(runs)}, which has most requests",) if len(runs) > 1 else (),
    )


def _successful(benchmark: object) -> list[Mapping[str, object]]:
    requests = benchmark.get("requests") if isinstance(benchmark, Mapping) else None
    found = requests.get("successful") if isinstance(requests, Mapping) else None
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


FORMAT = TraceFormat(
    name="guidellm",
    title="GuideLLM reports",
    recognises=lambda first: isinstance(first, JsonLines) and "benchmarks" in first.record,
    read=_read,
)
