"""Results of `vllm bench throughput` and `vllm bench latency`: engine and requests in one process, without HTTP.

Layout: vLLM 0.33, vllm/benchmarks/throughput.py and latency.py, `--output-json`. Neither file says what was sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capacity_validate.benchmark_results.run import MeasuredRun, ResultFormat
from capacity_validate.benchmark_results.values import Document, count, known, number


def _throughput(path: Path, document: Document) -> MeasuredRun:
    """All requests at once; `total_num_tokens` counts prompts too."""
    requests = count(document["num_requests"]) or 0
    return MeasuredRun(
        tool="vllm bench throughput",
        path=str(path),
        completed=requests,
        failed=0,
        duration_s=number(document["elapsed_time"]),
        request_throughput=number(document["requests_per_second"]),
        latencies_ms={},
        request_rate=math.inf,
        num_requests=requests,
        in_process=True,
    )


def _latency(path: Path, document: Document) -> MeasuredRun:
    """The time of one whole batch, of `--concurrency` requests here: its size is not in the file."""
    percentiles = document.get("percentiles") or {}
    values = {"mean": document["avg_latency"]} | {f"p{p}": percentiles.get(f"{p}") for p in (50, 90, 99)}
    return MeasuredRun(
        tool="vllm bench latency",
        path=str(path),
        completed=0,
        failed=0,
        latencies_ms={"e2el": known(values, 1e3)},
        num_requests=0,
        in_process=True,
        notices=("the file does not hold its --batch-size: --concurrency is taken for it",),
    )


def _is_throughput(documents: Sequence[Any]) -> bool:
    return {"elapsed_time", "num_requests", "requests_per_second"} <= set(documents[0])


def _is_latency(documents: Sequence[Any]) -> bool:
    return {"avg_latency", "latencies"} <= set(documents[0])


FORMATS = (
    ResultFormat(
        tools=("vllm bench throughput",),
        recognises=_is_throughput,
        read=lambda path, documents: [_throughput(path, document) for document in documents],
    ),
    ResultFormat(
        tools=("vllm bench latency",),
        recognises=_is_latency,
        read=lambda path, documents: [_latency(path, document) for document in documents],
    ),
)
