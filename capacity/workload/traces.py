"""Real workloads from files: the schema is recognised by what is in the file, not by its name."""

from __future__ import annotations

import os
from pathlib import PurePath

from capacity.errors import InvalidInput
from capacity.workload.trace_csv import read_csv
from capacity.workload.trace_lines import TraceLines, open_trace
from capacity.workload.workload import Workload


def read_trace(path: str | os.PathLike[str], *, limit: int | None = None) -> Workload:
    """The requests of a trace file, plain or gzipped, `-` for standard input; the first `limit` in file order.

    Read line by line, at most 10 million requests, 4 Gi characters and 16 Mi characters a line.
    Raises MalformedFile, one line of text that names file, line, field and value.
    """
    if limit is not None and limit < 1:
        raise InvalidInput(f"the number of requests to read must be at least 1, not {limit}")
    with open_trace(path) as lines:
        first_line = _first_line(lines)
        return read_csv(lines, first_line, limit=limit, name=_name(lines.path))


def _first_line(lines: TraceLines) -> str:
    first_line = next((line for line in lines if line.strip()), None)
    if first_line is None:
        lines.refuse("the file is empty")
    return first_line


def _name(path: str) -> str:
    name = PurePath(path).name
    for ending in (".gz", ".csv", ".jsonl", ".json"):
        name = name.removesuffix(ending)
    return name or "trace"
