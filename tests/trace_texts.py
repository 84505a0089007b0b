"""Lines of trace files by hand, and how the tests read them."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, settings

from capacity.base.errors import InvalidInput
from capacity.workload import Workload, read_trace

PLAIN = "arrival_s,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
fuzzed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(tmp_path: Path, content: str | bytes, **options: object) -> Workload:
    path = tmp_path / "trace.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_trace(path, **options)  # type: ignore[arg-type]


def mooncake(**changes: object) -> str:
    row: dict[str, object] = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    return json.dumps({**row, **changes}) + "\n"


def agentic(requests: list[list[object]], **changes: object) -> str:
    columns = [
        "t",
        "in",
        "out",
        "prefix_parent",
        "prefix_blocks",
        "api_time",
        "think_time",
        "subagent",
        "stop",
    ]
    record: dict[str, object] = {
        "id": "a",
        "tool_tokens": 100,
        "system_tokens": 50,
        "block_size": 64,
        "dup_of": None,
    }
    return json.dumps({**record, "cols": columns, "req": requests, **changes}) + "\n"


def answer_or_line(tmp_path: Path, content: str | bytes) -> bool:
    """Whether reading gives requests, or an error of one printable line."""
    try:
        return len(read(tmp_path, content)) > 0
    except InvalidInput as error:
        return str(error).isprintable()


def infinite_cache_hit_fraction(workload: Workload, block_tokens: int) -> float:
    """Prompt tokens in full blocks that an earlier prompt had, over all prompt tokens."""
    assert workload.content is not None
    runs = workload.content.block_runs(block_tokens)
    seen: dict[int, int] = {}  # run -> blocks of it seen so far
    hits = 0
    for row in range(len(workload)):
        mine = [(first >> 24, first & (2**24 - 1), count) for first, count in runs.request_runs(row)]
        for run, start, count in mine:
            hit = min(max(seen.get(run, 0) - start, 0), count)
            hits += hit
            if hit < count:
                break
        for run, start, count in mine:
            seen[run] = max(seen.get(run, 0), start + count)
    return hits * block_tokens / int(workload.prompt_tokens.sum())
