"""Real workloads from files: the schema is recognised by what is in the file, not by its name."""

from __future__ import annotations

import os
from pathlib import PurePath

from capacity.base.errors import InvalidInput
from capacity.workload.trace_agentic import read_agentic
from capacity.workload.trace_csv import read_csv
from capacity.workload.trace_hashes import json_record, read_hashed
from capacity.workload.trace_lines import TraceLines, open_trace, shown
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
    """The requests of a trace file, plain or gzipped, `-` for standard input; the first `limit` in file order.

    Tables: `arrival_s,prompt_tokens,output_tokens`; Azure's; BurstGPT's. JSON lines: Mooncake's, Qwen-Bailian's and
    vLLM's timed_trace (`block_tokens` and `seconds_per_unit` override what is inferred, `spread_ticks` spreads the
    requests of a coarse clock); agentic sessions (`concurrent_sessions` users play them).
    Read line by line: at most 10 million requests, 4 Gi characters, 16 Mi characters a line.
    Raises MalformedFile, one line of text that names file, line, field and value.
    """
    if limit is not None and limit < 1:
        raise InvalidInput(f"the number of requests to read must be at least 1, not {limit}")
    with open_trace(path) as lines:
        first_line = _first_line(lines)
        name = _name(lines.path)
        if not first_line.lstrip().startswith(("{", "[")):
            return read_csv(lines, first_line, limit=limit, name=name)
        first = json_record(lines, first_line)
        if "req" in first and "cols" in first:
            return read_agentic(lines, first, limit=limit, name=name, concurrent_sessions=concurrent_sessions)
        if "timestamp" not in first:
            lines.refuse(
                f"keys {shown(', '.join(map(str, first)))} are those of no known trace; "
                "needed: timestamp, input_length, output_length"
            )
        return read_hashed(
            lines,
            first,
            limit=limit,
            name=name,
            block_tokens=block_tokens,
            seconds_per_unit=seconds_per_unit,
            spread_ticks=spread_ticks,
        )


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
