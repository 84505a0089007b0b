"""Results of inference-perf: the summary of a run or stage, or a list of requests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capacity.base.errors import MalformedFile
from capacity_validate.benchmark_results.measured_run import (
    Document,
    MeasuredRun,
    RequestColumns,
    ResultFormat,
    count,
    known,
    number,
    percentiles,
    rate,
    summarise_ms,
)


def _inference_perf(path: Path, document: Document) -> MeasuredRun:
    """`summary_lifecycle_metrics.json` or a stage's: seconds throughout."""
    success, load = document["successes"], document["load_summary"]
    latency = success.get("latency") or {}
    names = {
        "ttft": "time_to_first_token",
        "tpot": "time_per_output_token",
        "itl": "inter_token_latency",
        "e2el": "request_latency",
    }
    latencies = {}
    for metric, name in names.items():
        entry = latency.get(name)
        if not isinstance(entry, dict):
            continue
        latencies[metric] = known(percentiles(entry), 1e3)
    throughput = success.get("throughput") or {}
    prompt = success.get("prompt_tokens") or success.get("prompt_len") or {}
    output = success.get("output_tokens") or success.get("output_len") or {}
    completed = int(success.get("count") or 0)
    requests_per_s = number(throughput.get("requests_per_sec"))
    return MeasuredRun(
        tool="inference-perf",
        path=str(path),
        completed=completed,
        failed=int((document.get("failures") or {}).get("count") or 0),
        duration_s=completed / requests_per_s if requests_per_s else None,
        request_throughput=requests_per_s,
        output_throughput=number(throughput.get("output_tokens_per_sec")),
        latencies_ms=latencies,
        request_rate=rate(load.get("requested_rate")),
        concurrency=count(load.get("concurrency")),
        num_requests=completed,
        mean_prompt_tokens=number(prompt.get("mean")),
        mean_output_tokens=number(output.get("mean")),
        notices=("per_request_lifecycle_metrics.json, where it was kept, holds every request",),
    )


def _inference_perf_requests(path: Path, entries: Sequence[Any]) -> MeasuredRun:
    """`per_request_lifecycle_metrics.json`: a list of requests with the instant of every token."""
    rows = []
    for entry in entries:
        if not isinstance(entry, dict) or "start_time" not in entry:
            raise MalformedFile(path, "is a list, but not of inference-perf requests")
        info = _inference_perf_info(entry.get("info") or {})
        times = info["output_token_times"]
        if entry.get("error") or not info["output_tokens"]:
            continue
        rows.append((float(entry["start_time"]), float(entry["end_time"]), info, times))
    if not rows:
        raise MalformedFile(path, "has no successful request")
    rows.sort(key=lambda row: row[0])
    duration = max(row[1] for row in rows) - rows[0][0]
    e2e = [end - start for start, end, _, _ in rows]
    ttft = [times[0] - start for start, _, _, times in rows if times]
    tpot = [
        (times[-1] - times[0]) / (info["output_tokens"] - 1)
        for _, _, info, times in rows
        if len(times) > 1 and info["output_tokens"] > 1
    ]
    samples = {"ttft": ttft, "tpot": tpot, "e2el": e2e}
    tokens = sum(row[2]["output_tokens"] for row in rows)
    return MeasuredRun(
        tool="inference-perf",
        path=str(path),
        completed=len(rows),
        failed=len(entries) - len(rows),
        duration_s=duration,
        request_throughput=len(rows) / duration if duration else None,
        output_throughput=tokens / duration if duration else None,
        latencies_ms={metric: summarise_ms(values) for metric, values in samples.items() if values},
        requests=RequestColumns(
            prompt_tokens=[int(row[2]["input_tokens"]) for row in rows],
            output_tokens=[int(row[2]["output_tokens"]) for row in rows],
            start_s=[row[0] for row in rows],
        ),
        num_requests=len(rows),
    )


def _inference_perf_info(info: Document) -> dict[str, Any]:
    """Tokens and their instants: flat in older versions, under `request_metrics` and `response_metrics` since."""
    request = (info.get("request_metrics") or {}).get("text") or info
    response = info.get("response_metrics") or info
    return {
        "input_tokens": request.get("input_tokens") or 0,
        "output_tokens": response.get("output_tokens") or 0,
        "output_token_times": response.get("output_token_times") or [],
    }


INFERENCE_PERF = (
    ResultFormat(
        tools=("inference-perf",),
        recognises=lambda documents: isinstance(documents[0], list),
        read=lambda path, documents: [_inference_perf_requests(path, documents[0])],
    ),
    ResultFormat.of_objects(
        "inference-perf",
        read=_inference_perf,
        recognises=lambda document: {"load_summary", "successes"} <= document.keys(),
    ),
)
