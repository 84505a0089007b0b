"""Read workloads from trace files; the format is recognised by a file's content, not by its name."""

import os
from collections.abc import Iterator
from pathlib import PurePath
from typing import NoReturn

from capacity.base.errors import InvalidInput
from capacity.base.plugins import load_plugin, plugin_names
from capacity.workload.traces.format import FirstLine, JsonLines, Table, TraceFormat, TraceOptions
from capacity.workload.traces.formats import trace_formats
from capacity.workload.traces.json_lines import json_document, json_record
from capacity.workload.traces.lines import TraceLines, open_trace, short_repr
from capacity.workload.traces.table import parse_header, reject_table
from capacity.workload.workload import Workload


def read_trace(
    path: str | os.PathLike[str],
    *,
    limit: int | None = None,
    block_tokens: int | None = None,
    seconds_per_unit: float | None = None,
    spread_ticks: bool = False,
    concurrent_sessions: int | None = None,
) -> Workload:
    """Return the requests of a trace file (plain or gzipped; `-`: standard input), or its first `limit` requests.

    Supports tables and JSON lines in the formats of `formats/` and of plug-ins. `block_tokens` and `seconds_per_unit`
    override the values inferred from block hashes and timestamps. `spread_ticks`: whether to spread requests with the
    same timestamp of a coarse clock. `concurrent_sessions`: number of users who replay recorded sessions. Limits: 10
    million requests, 4 Gi characters, and 16 Mi characters per line. Raises MalformedFile, whose message is one line
    with file, line number, field and value.
    """
    if limit is not None and limit < 1:
        raise InvalidInput(f"the number of requests to read must be at least 1, not {limit}")
    with open_trace(path) as lines:
        first = _first_line(lines)
        options = TraceOptions(
            name=_trace_name(lines.path),
            limit=limit,
            block_tokens=block_tokens,
            seconds_per_unit=seconds_per_unit,
            spread_ticks=spread_ticks,
            concurrent_sessions=concurrent_sessions,
        )
        known = next((entry for entry in _all_formats() if entry.recognises(first)), None)
        if known is None:
            _reject_unknown_format(lines, first)
        if isinstance(first, JsonLines) and first.rest and not known.arrays:
            lines.reject(f"is a JSON array: {known.title} have one object per line")
        if spread_ticks and not known.spreads_ticks:
            raise InvalidInput(
                f"--trace-spread-ticks has no effect on {known.title} traces, which have no coarse clock: remove it"
            )
        return known.read(lines, first, options)


def _all_formats() -> Iterator[TraceFormat]:
    """Yield the trace formats, and those of plug-ins last. Raises InvalidInput for a broken plug-in."""
    yield from trace_formats()
    for name in plugin_names("readers"):
        yield load_plugin("readers", name, "a TraceFormat", lambda it: isinstance(it, TraceFormat))


def trace_titles() -> str:
    """Return the titles of all trace formats as one text."""
    titles = sorted(entry.title for entry in trace_formats())
    return f"{', '.join(titles[:-1])} or {titles[-1]}"


def _first_line(lines: TraceLines) -> FirstLine:
    """Return the first line that is not blank: the header of a table, or a JSON object. Raises MalformedFile."""
    text = next((line for line in lines if line.strip()), None)
    if text is None:
        lines.reject("the file is empty")
    begins, ends = text.lstrip()[:1], text.rstrip()[-1:]
    if begins == "[" or (begins == "{" and ends in ("{", "[", ",")):  # an array, or a multi-line object
        return json_document(lines, text)
    if begins == "{":
        return JsonLines(json_record(lines, text))
    return parse_header(lines, text)


def _reject_unknown_format(lines: TraceLines, first: FirstLine) -> NoReturn:
    if isinstance(first, Table):
        reject_table(
            lines, first, " or ".join(",".join(entry.needed) for entry in trace_formats() if entry.tabular)
        )
    needed = " or ".join(
        ", ".join(entry.needed) for entry in trace_formats() if entry.needed and not entry.tabular
    )
    keys = short_repr(", ".join(map(str, first.record)))
    lines.reject(f"keys {keys} do not match a known trace format; needed: {needed}")


def _trace_name(path: str) -> str:
    name = PurePath(path).name
    for ending in (".gz", ".csv", ".jsonl", ".json"):
        name = name.removesuffix(ending)
    return name or "trace"
