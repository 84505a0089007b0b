"""Results of guidellm: several benchmarks a report. Its `inter_token_latency` is our TPOT."""

from pathlib import Path

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
)


def _guidellm(path: Path, benchmark: Document, report: Document) -> MeasuredRun:
    """One benchmark of a v2 report. `time_per_output_token` there includes the first token: `inter_token` is TPOT."""
    metrics = benchmark.get("metrics", {})
    names = {"ttft": "time_to_first_token_ms", "tpot": "inter_token_latency_ms", "e2el": "request_latency"}
    latencies = {}
    for metric, name in names.items():
        values = _guidellm_statistics(metrics.get(name), 1e3 if name == "request_latency" else 1.0)
        if values:
            latencies[metric] = values
    totals = metrics.get("request_totals") or {}
    strategy = (benchmark.get("config") or {}).get("strategy") or {}
    kind = str(strategy.get("type_", ""))
    closed = kind in ("concurrent", "synchronous", "throughput")
    streams = strategy.get("streams") or strategy.get("max_concurrency")
    lengths = [_guidellm_statistics(metrics.get(n)) for n in ("prompt_token_count", "output_token_count")]
    spec = (report.get("config") or {}).get("spec") or {}
    return MeasuredRun(
        tool="guidellm",
        path=str(path),
        model=(spec.get("backend") or {}).get("model"),
        completed=int(totals.get("successful") or 0),
        failed=int(totals.get("errored") or 0),
        duration_s=number(benchmark.get("duration")),
        request_throughput=_guidellm_statistics(metrics.get("requests_per_second")).get("mean"),
        output_throughput=_guidellm_statistics(metrics.get("output_tokens_per_second")).get("mean"),
        latencies_ms=latencies,
        requests=_guidellm_requests(benchmark),
        request_rate=None if closed else rate(strategy.get("rate")),
        burstiness=float("inf") if kind == "constant" else 1.0,
        concurrency=(1 if kind == "synchronous" else count(streams)) if closed else None,
        num_requests=int(totals.get("successful") or 0),
        mean_prompt_tokens=lengths[0].get("mean"),
        mean_output_tokens=lengths[1].get("mean"),
    )


def _guidellm_statistics(entry: object, factor: float = 1.0) -> dict[str, float]:
    if not isinstance(entry, dict):
        return {}
    values = entry.get("successful")
    if not isinstance(values, dict) or not values.get("count"):
        return {}
    return known(percentiles({**(values.get("percentiles") or {}), **values}), factor)


def _guidellm_requests(benchmark: Document) -> RequestColumns | None:
    entries = (benchmark.get("requests") or {}).get("successful")
    if not isinstance(entries, list) or not entries:
        return None
    rows = []
    for entry in entries:
        timings = (entry.get("info") or {}).get("timings") or {}
        start = number(entry.get("request_start_time")) or number(timings.get("request_start"))
        start = start if start is not None else number(entry.get("start_time"))
        prompt = count(entry.get("prompt_tokens")) or count(
            (entry.get("input_metrics") or {}).get("text_tokens")
        )
        output = count(entry.get("output_tokens")) or count(
            (entry.get("output_metrics") or {}).get("text_tokens")
        )
        if start is None or prompt is None or output is None:
            return None
        rows.append((start, prompt, output))
    rows.sort()
    return RequestColumns(
        start_s=[row[0] for row in rows],
        prompt_tokens=[row[1] for row in rows],
        output_tokens=[row[2] for row in rows],
    )


GUIDELLM = ResultFormat(
    tools=("guidellm",),
    recognises=lambda documents: "benchmarks" in documents[0],
    read=lambda path, documents: [_guidellm(path, b, documents[0]) for b in documents[0]["benchmarks"]],
)
