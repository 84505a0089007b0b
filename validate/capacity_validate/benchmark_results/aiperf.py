"""Results of AIPerf and genai-perf: the aggregate, or one request a line. Their `inter_token_latency` is our TPOT."""

from collections.abc import Sequence
from pathlib import Path

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

_AIPERF = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2el": "request_latency",
}
_TO_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}


def _aiperf(path: Path, document: Document) -> MeasuredRun:
    """The aggregate `profile_export_aiperf.json` (genai-perf's is alike): no lengths of single requests."""

    def average(name: str) -> float | None:
        entry = document.get(name)
        return number(entry.get("avg")) if isinstance(entry, dict) else None

    latencies: dict[str, dict[str, float]] = {}
    for metric, name in _AIPERF.items():
        entry = document.get(name)
        if not isinstance(entry, dict):
            continue
        factor = _TO_MS.get(str(entry.get("unit", "ms")), 1.0)
        latencies[metric] = known(percentiles(entry, mean="avg"), factor)
    config = document.get("input_config") or {}
    load = _aiperf_load(config)
    completed = int(average("request_count") or 0)
    errors = document.get("error_request_count")
    return MeasuredRun(
        tool="AIPerf",
        path=str(path),
        model=_aiperf_model(config),
        completed=completed,
        failed=int(errors.get("avg") or 0) if isinstance(errors, dict) else 0,
        duration_s=average("benchmark_duration"),
        request_throughput=average("request_throughput"),
        output_throughput=average("output_token_throughput"),
        latencies_ms=latencies,
        request_rate=rate(load.get("request_rate", load.get("rate"))),
        burstiness=number(load.get("arrival_smoothness", load.get("smoothness"))) or 1.0,
        concurrency=count(load.get("concurrency")),
        num_requests=completed,
        mean_prompt_tokens=average("input_sequence_length"),
        mean_output_tokens=average("output_sequence_length"),
        notices=("this is AIPerf's aggregate; profile_export.jsonl beside it holds every request",),
    )


def _aiperf_load(config: Document) -> Document:
    """How load was made: `loadgen` (AIPerf to 0.11), `phases` (since: all but the warm-up), genai-perf's stimulus."""
    phases = config.get("phases")
    if isinstance(phases, dict):
        phases = [phases] if "type" in phases else [{"name": name, **phase} for name, phase in phases.items()]
    for phase in phases or ():
        if phase.get("name") != "warmup" and not phase.get("exclude_from_results"):
            return dict(phase)
    return config.get("loadgen") or (config.get("perf_analyzer") or {}).get("stimulus") or {}


def _aiperf_model(config: Document) -> str | None:
    names = (
        (config.get("endpoint") or {}).get("model_names") or config.get("model_names") or config.get("models")
    )
    if isinstance(names, dict):
        names = names.get("items")
    first = names[0] if isinstance(names, list) and names else names
    if isinstance(first, dict):
        first = first.get("name")
    return first if isinstance(first, str) else None


def _aiperf_requests(path: Path, documents: Sequence[Document]) -> MeasuredRun:
    """`profile_export.jsonl`: one request a line."""
    good = [d for d in documents if not d.get("error") and d["metadata"].get("benchmark_phase") != "warmup"]
    good.sort(key=lambda d: d["metadata"]["request_start_ns"])
    if not good:
        raise MalformedFile(path, "has no successful request")

    def column(name: str) -> list[float | None]:
        values = []
        for document in good:
            entry = document["metrics"].get(name)
            value = number(entry.get("value")) if isinstance(entry, dict) else None
            unit = str(entry.get("unit", "")) if isinstance(entry, dict) else ""
            values.append(None if value is None else value * _TO_MS.get(unit, 1.0))
        return values

    def seconds(name: str) -> list[float]:
        return [value / 1e3 for value in column(name) if value is not None]

    prompts, outputs = column("input_sequence_length"), column("output_sequence_length")
    known = all(value is not None for value in (*prompts, *outputs))
    start_s = [d["metadata"]["request_start_ns"] * 1e-9 for d in good]
    end_s = max(d["metadata"]["request_end_ns"] for d in good) * 1e-9
    duration = end_s - start_s[0]
    tokens = sum(value or 0 for value in outputs)
    return MeasuredRun(
        tool="AIPerf",
        path=str(path),
        completed=len(good),
        failed=len(documents) - len(good),
        duration_s=duration,
        request_throughput=len(good) / duration if duration else None,
        output_throughput=tokens / duration if duration else None,
        latencies_ms={
            m: summarise_ms(seconds(_AIPERF[m])) for m in ("ttft", "tpot", "e2el") if seconds(_AIPERF[m])
        },
        requests=RequestColumns(
            prompt_tokens=[int(v or 1) for v in prompts],
            output_tokens=[int(v or 1) for v in outputs],
            start_s=start_s,
        )
        if known
        else None,
        num_requests=len(good),
        notices=("the file does not say whether the load was a closed loop: if it was, give --concurrency",),
    )


AIPERF = (
    ResultFormat(
        tools=("AIPerf", "genai-perf"),
        recognises=lambda documents: {"metadata", "metrics"} <= documents[0].keys(),
        read=lambda path, documents: [_aiperf_requests(path, documents)],
    ),
    ResultFormat.of_objects(
        "AIPerf",
        "genai-perf",
        read=_aiperf,
        recognises=lambda document: any(
            isinstance(document.get(_AIPERF[metric]), dict) for metric in ("e2el", "ttft")
        ),
    ),
)
