"""Summaries without requests: LLMPerf, InferenceX, and MLPerf Inference.

LLMPerf: `*_summary.json` and `*_individual_responses.json` of token_benchmark_ray.py. Its inter-token latency is the
whole request divided by its tokens, TTFT included, so it is not read. InferenceX: `agg_*.json` of process_result.py,
one object or a list; times in s; lengths are uniform between 0.8 and 1.0 of the labels `isl` and `osl`. MLPerf:
`mlperf_log_summary.txt` of LoadGen (results.cc), whose data set's lengths only the user knows.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capacity.base.errors import MalformedFile
from capacity.base.latency_metrics import METRICS
from capacity_validate.benchmark_results.measured_run import (
    TOOLS,
    Document,
    MeasuredRun,
    RequestColumns,
    ResultFormat,
    finite_statistics,
    flat_latencies,
    has_keys,
    measured_run,
    parse_number,
    percentiles,
    summarise_ms,
    to_count,
    to_number,
)
from capacity_validate.server_log import LoggedSettings, ServerLog

_QUANTILES = ("p50", "p90", "p95", "p99")


def _read_llmperf(path: Path, document: Document) -> MeasuredRun:
    def statistics(name: str) -> dict[str, float]:
        quantiles = {p: document.get(f"results_{name}_quantiles_{p}") for p in _QUANTILES}
        return percentiles({"mean": document.get(f"results_{name}_mean"), **quantiles}, 1e3)

    per_minute = to_number(document.get("results_num_completed_requests_per_min"))
    return measured_run(
        "LLMPerf",
        path,
        document,
        latencies={metric: statistics(name) for metric, name in TOOLS["LLMPerf"]["latencies"].items()},
        request_throughput=None if per_minute is None else per_minute / 60,
    )


def _read_llmperf_requests(path: Path, entries: Sequence[Any]) -> MeasuredRun:
    """Read the individual responses, which have lengths but no start times."""
    good = [entry for entry in entries if not entry.get("error_code") and entry.get("number_output_tokens")]
    if not good:
        raise MalformedFile(path, "has no successful request")
    samples = {
        metric: [float(entry[name]) for entry in good if to_number(entry.get(name))]
        for metric, name in TOOLS["LLMPerf"]["latencies"].items()
    }
    return MeasuredRun(
        tool="LLMPerf",
        path=str(path),
        completed=len(good),
        failed=len(entries) - len(good),
        latencies_ms={metric: summarise_ms(values) for metric, values in samples.items() if values},
        requests=RequestColumns(
            prompt_tokens=[int(entry["number_input_tokens"]) for entry in good],
            output_tokens=[int(entry["number_output_tokens"]) for entry in good],
        ),
        num_requests=len(good),
        notices=tuple(TOOLS["LLMPerf"]["notices"]),
    )


LLMPERF = (
    ResultFormat(
        tools=("LLMPerf",),
        recognises=lambda documents: has_keys(documents, "end_to_end_latency_s", "number_output_tokens"),
        read=lambda path, documents: [_read_llmperf_requests(path, documents[0])],
    ),
    ResultFormat.of_objects("LLMPerf", read=_read_llmperf),
)

_LABEL_MEAN, _LABEL_RANGE = 0.9, 0.1 / 0.9  # of lengths between 0.8 and 1.0 of a label
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "tensorrt-llm", "trtllm": "tensorrt-llm"}


def _read_inferencex(path: Path, document: Document) -> MeasuredRun:
    if str(document.get("disagg")).lower() == "true":
        raise MalformedFile(
            path, "contains rows of separate prefill and decode servers; keep those of single servers"
        )
    values = {**document, **(document.get("metrics") or {})}
    gpus = to_count(document.get("tp")) or 1
    labels = [to_number(document.get(name)) for name in ("isl", "osl")]
    means = [None if label is None else _LABEL_MEAN * label for label in labels]
    per_gpu = to_number(values.get("output_tput_per_gpu"))
    return measured_run(
        "InferenceX",
        path,
        document,
        latencies=flat_latencies(values, {metric: metric for metric in METRICS}, "", 1e3),
        output_throughput=None if per_gpu is None else per_gpu * gpus,
        num_requests=10 * (to_count(document.get("conc")) or 1),  # as its scripts send
        completed=10 * (to_count(document.get("conc")) or 1),
        mean_prompt_tokens=means[0],
        mean_output_tokens=means[1],
        range_ratio=None if None in means else _LABEL_RANGE,
        server=_inferencex_server(path, document, gpus),
    )


def _inferencex_server(path: Path, document: Document, gpus: int) -> ServerLog:
    fields: dict[str, object] = {"tensor_parallel_size": gpus}
    if (to_count(document.get("ep")) or 1) > 1:
        fields["enable_expert_parallel"] = True
    if document.get("precision") == "fp8":
        fields["quantization"] = "fp8"
    if str(document.get("dp_attention")).lower() == "true":
        fields |= {"data_parallel_size": gpus, "tensor_parallel_size": 1}
    engine = _ENGINES.get(str(document.get("framework")))
    return ServerLog(path=str(path), launch=LoggedSettings(engine=engine, fields=fields))


INFERENCEX = ResultFormat.of_objects(
    "InferenceX",
    read=_read_inferencex,
    recognises=lambda document: (
        {"hw", "conc", "framework"} <= document.keys()
        and ("tput_per_gpu" in document or isinstance(document.get("metrics"), dict))
    ),
)

MAX_MLPERF_REQUESTS = 5000  # replayed
_MLPERF_MARK, _MARK_WITHIN = "MLPerf Results Summary", 20_000  # characters of a log before the title
_MLPERF_LINE = re.compile(r"^([A-Za-z0-9][^:\n]*?)\s*: *(\S+)", re.MULTILINE)
_MLPERF_LATENCIES = {
    "e2el": ("mean latency (ns)", "{p}.00 percentile latency (ns)"),
    "ttft": ("mean first token latency (ns)", "{p}.00 percentile first token latency (ns)"),
    "tpot": ("mean time per output token (ns)", "{p}.00 percentile time to output token (ns)"),
}


def is_mlperf(text: str) -> bool:
    """Return whether a text contains the summary of MLPerf's LoadGen."""
    return _MLPERF_MARK in text[:_MARK_WITHIN]


def read_mlperf(path: str | Path, text: str) -> MeasuredRun:
    """Return the run in a summary of MLPerf's LoadGen. Raises MalformedFile for other scenarios than of servers."""
    words = {name.lower(): value for name, value in _MLPERF_LINE.findall(text)}
    numbers = {name: number for name, value in words.items() if (number := parse_number(value)) is not None}
    scenario = words.get("scenario", "")
    if scenario not in ("Server", "Offline", "Interactive"):
        raise MalformedFile(path, f"has MLPerf's scenario {scenario or 'unknown'}; give Server or Offline")

    def first(*names: str) -> float | None:
        return next((numbers[name] for name in names if name in numbers), None)

    rate = first("completed samples per second", "samples per second")
    tokens = first("completed tokens per second", "tokens per second")
    requests = int(first("samples_per_query" if scenario == "Offline" else "min_query_count") or 1000)
    offline = scenario == "Offline"
    return MeasuredRun(
        tool="MLPerf",
        path=str(path),
        completed=requests,
        failed=0,
        request_throughput=rate,
        output_throughput=tokens,
        latencies_ms=_mlperf_latencies(numbers, ("e2el",) if offline else tuple(_MLPERF_LATENCIES)),
        request_rate=math.inf if offline else first("scheduled samples per second") or rate,
        num_requests=min(requests, MAX_MLPERF_REQUESTS),
        mean_output_tokens=tokens / rate if tokens and rate else None,
        in_process=True,
        notices=(f"MLPerf {scenario}, result {words.get('result is', 'unknown')}; LoadGen has no network",),
    )


def _mlperf_latencies(numbers: Mapping[str, float], metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    found = {}
    for metric in metrics:
        mean, form = _MLPERF_LATENCIES[metric]
        names = {"mean": mean, **{f"p{p}": form.format(p=p) for p in (50, 90, 95, 99)}}
        if statistics := finite_statistics({s: numbers.get(name) for s, name in names.items()}, 1e-6):
            found[metric] = statistics
    return found
