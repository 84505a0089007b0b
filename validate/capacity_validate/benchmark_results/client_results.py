"""Read results of clients that measure any server, and of benchmark suites. Suites and LLMPerf give no start times.

guidellm, inference-perf (Kubernetes), AIPerf and genai-perf (NVIDIA): `inter_token_latency` of guidellm and AIPerf is
our TPOT; guidellm's `time_per_output_token` is not, because it includes the first token. LLMPerf: `*_summary.json` and
`*_individual_responses.json` of token_benchmark_ray.py. Its inter-token latency is the whole request divided by its
tokens, TTFT included, so it is not read. InferenceX: `agg_*.json` of process_result.py, one object or a list; times in
s; lengths are uniform between 0.8 and 1.0 of the labels `isl` and `osl`. MLPerf: `mlperf_log_summary.txt` of LoadGen
(results.cc), whose data set's lengths only the user knows.
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
    run_of_requests,
    summarise_ms,
    to_count,
    to_number,
    to_rate,
    value_at,
)
from capacity_validate.server_log import LoggedSettings, ServerLog


def _read_guidellm(path: Path, benchmark: Document, report: Document) -> MeasuredRun:
    strategy = value_at(benchmark, "config.strategy") or {}
    kind = str(strategy.get("type_", ""))
    closed = kind in ("concurrent", "synchronous", "throughput")
    streams = strategy.get("streams") or strategy.get("max_concurrency")
    return measured_run(
        "guidellm",
        path,
        benchmark,
        model=value_at(report, "config.spec.backend.model"),
        latencies={
            "ttft": _guidellm_statistics(benchmark, "time_to_first_token_ms"),
            "tpot": _guidellm_statistics(benchmark, "inter_token_latency_ms"),
            "e2el": _guidellm_statistics(benchmark, "request_latency", 1e3),
        },
        requests=_guidellm_requests(benchmark),
        request_rate=None if closed else to_rate(strategy.get("rate")),
        burstiness=float("inf") if kind == "constant" else 1.0,
        concurrency=(1 if kind == "synchronous" else to_count(streams)) if closed else None,
    )


def _guidellm_statistics(benchmark: Document, name: str, factor: float = 1.0) -> dict[str, float]:
    values = value_at(benchmark, f"metrics.{name}.successful")
    if not isinstance(values, dict) or not values.get("count"):
        return {}
    return percentiles({**(values.get("percentiles") or {}), **values}, factor)


def _guidellm_requests(benchmark: Document) -> RequestColumns | None:
    rows = []
    for entry in value_at(benchmark, "requests.successful") or ():
        begins = ("request_start_time", "info.timings.request_start", "start_time")
        start = next(
            (begin for name in begins if (begin := to_number(value_at(entry, name))) is not None), None
        )
        prompt, output = (
            to_count(value_at(entry, old)) or to_count(value_at(entry, f"{new}_metrics.text_tokens"))
            for old, new in (("prompt_tokens", "input"), ("output_tokens", "output"))
        )
        if start is None or prompt is None or output is None:
            return None
        rows.append((start, prompt, output))
    if not rows:
        return None
    starts, prompts, outputs = map(list, zip(*sorted(rows), strict=True))
    return RequestColumns(start_s=starts, prompt_tokens=prompts, output_tokens=outputs)


GUIDELLM = ResultFormat(
    tools=("guidellm",),
    recognises=lambda documents: "benchmarks" in documents[0] and not is_nvbench(documents[0]),
    read=lambda path, documents: [_read_guidellm(path, b, documents[0]) for b in documents[0]["benchmarks"]],
)


def is_nvbench(document: Document) -> bool:
    """Return whether a JSON value is a result of nvbench (`benchmarks` with `states`)."""
    benchmarks = document.get("benchmarks")
    return isinstance(benchmarks, list) and any(isinstance(b, dict) and "states" in b for b in benchmarks)


def _read_inference_perf(path: Path, document: Document) -> MeasuredRun:
    """Read inference-perf's `summary_lifecycle_metrics.json` of a whole run or of one load stage."""
    success = document["successes"]
    prompt, output = (
        success.get(f"{kind}_tokens") or success.get(f"{kind}_len") for kind in ("prompt", "output")
    )
    requests_per_s = to_number(value_at(success, "throughput.requests_per_sec"))
    return measured_run(
        "inference-perf",
        path,
        document,
        latencies={
            metric: percentiles(value_at(success, f"latency.{name}"), 1e3)
            for metric, name in TOOLS["inference-perf"]["latencies"].items()
        },
        duration_s=(to_count(success.get("count")) or 0) / requests_per_s if requests_per_s else None,
        mean_prompt_tokens=to_number(value_at(prompt, "mean")),
        mean_output_tokens=to_number(value_at(output, "mean")),
    )


def _read_inference_perf_requests(path: Path, entries: Sequence[Any]) -> MeasuredRun:
    """Read `per_request_lifecycle_metrics.json`, which records every token's time; field names differ by version."""
    rows = []
    samples: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2el": []}
    for entry in entries:
        if not isinstance(entry, dict) or "start_time" not in entry:
            raise MalformedFile(path, "is a list whose entries are not requests of inference-perf")
        info = entry.get("info") or {}
        response = info.get("response_metrics") or info
        tokens, times = response.get("output_tokens") or 0, response.get("output_token_times") or []
        if entry.get("error") or not tokens:
            continue
        start, end = float(entry["start_time"]), float(entry["end_time"])
        prompt = (value_at(info, "request_metrics.text") or info).get("input_tokens") or 0
        rows.append((start, end, int(prompt), int(tokens)))
        samples["e2el"].append(end - start)
        if times:
            samples["ttft"].append(times[0] - start)
        if len(times) > 1 and tokens > 1:
            samples["tpot"].append((times[-1] - times[0]) / (tokens - 1))
    rows.sort(key=lambda row: row[0])
    return run_of_requests("inference-perf", path, rows, samples, failed=len(entries) - len(rows))


INFERENCE_PERF = (
    ResultFormat(
        tools=("inference-perf",),
        recognises=lambda documents: has_keys(documents, "start_time") or has_keys(documents, "end_time"),
        read=lambda path, documents: [_read_inference_perf_requests(path, documents[0])],
    ),
    ResultFormat.of_objects("inference-perf", read=_read_inference_perf),
)

# AIPerf, and its predecessor genai-perf: the aggregate, or one request per line
_AIPERF_LATENCIES = TOOLS["AIPerf"]["latencies"]
_TO_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}


def _read_aiperf(path: Path, document: Document) -> MeasuredRun:
    """Read the aggregate `profile_export_aiperf.json`, or genai-perf's similar file. Both lack per-request lengths."""
    config = document.get("input_config") or {}
    load = _aiperf_load(config)
    return measured_run(
        "AIPerf",
        path,
        document,
        model=_aiperf_model(config),
        latencies={
            metric: percentiles(
                document.get(name), _TO_MS.get(str(value_at(document, f"{name}.unit")), 1.0), mean="avg"
            )
            for metric, name in _AIPERF_LATENCIES.items()
        },
        request_rate=to_rate(load.get("request_rate", load.get("rate"))),
        burstiness=to_number(load.get("arrival_smoothness", load.get("smoothness"))) or 1.0,
        concurrency=to_count(load.get("concurrency")),
    )


def _aiperf_load(config: Document) -> Document:
    """Return the load settings: AIPerf's `loadgen`, after 0.11 its first measured phase; genai-perf's `stimulus`."""
    phases = config.get("phases")
    if isinstance(phases, dict):
        phases = [phases] if "type" in phases else [{"name": name, **phase} for name, phase in phases.items()]
    for phase in phases or ():
        if phase.get("name") != "warmup" and not phase.get("exclude_from_results"):
            return dict(phase)
    return config.get("loadgen") or value_at(config, "perf_analyzer.stimulus") or {}


def _aiperf_model(config: Document) -> object:
    names = value_at(config, "endpoint.model_names") or config.get("model_names") or config.get("models")
    if isinstance(names, dict):
        names = names.get("items")
    first = names[0] if isinstance(names, list) and names else names
    first = first.get("name") if isinstance(first, dict) else first
    return first if isinstance(first, str) else None


def _read_aiperf_requests(path: Path, documents: Sequence[Document]) -> MeasuredRun:
    """Read `profile_export.jsonl`, one request per line."""
    good = [d for d in documents if not d.get("error") and d["metadata"].get("benchmark_phase") != "warmup"]
    good.sort(key=lambda d: d["metadata"]["request_start_ns"])

    def column(name: str) -> list[float | None]:
        entries = [document["metrics"].get(name) for document in good]
        units = [_TO_MS.get(str(value_at(entry, "unit")), 1.0) for entry in entries]
        values = [to_number(value_at(entry, "value")) for entry in entries]
        return [None if value is None else value * unit for value, unit in zip(values, units, strict=True)]

    def tokens(name: str) -> list[int | None]:
        return [None if value is None else int(value or 1) for value in column(name)]

    spans = ([d["metadata"][f"request_{end}_ns"] * 1e-9 for d in good] for end in ("start", "end"))
    return run_of_requests(
        "AIPerf",
        path,
        list(zip(*spans, tokens("input_sequence_length"), tokens("output_sequence_length"), strict=True)),
        {
            metric: [value / 1e3 for value in column(_AIPERF_LATENCIES[metric]) if value is not None]
            for metric in ("ttft", "tpot", "e2el")
        },
        failed=len(documents) - len(good),
    )


AIPERF = (
    ResultFormat(
        tools=("AIPerf", "genai-perf"),
        recognises=lambda documents: {"metadata", "metrics"} <= documents[0].keys(),
        read=lambda path, documents: [_read_aiperf_requests(path, documents)],
    ),
    ResultFormat.of_objects(
        "AIPerf",
        "genai-perf",
        read=_read_aiperf,
        recognises=lambda document: any(
            isinstance(document.get(_AIPERF_LATENCIES[metric]), dict) for metric in ("e2el", "ttft")
        ),
    ),
)


def _read_llmperf(path: Path, document: Document) -> MeasuredRun:
    def statistics(name: str) -> dict[str, float]:
        quantiles = {f"p{p}": document.get(f"results_{name}_quantiles_p{p}") for p in (50, 90, 95, 99)}
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
    return measured_run(
        "LLMPerf",
        path,
        {},
        latencies={metric: summarise_ms(values) for metric, values in samples.items()},
        completed=len(good),
        failed=len(entries) - len(good),
        requests=RequestColumns(
            prompt_tokens=[int(entry["number_input_tokens"]) for entry in good],
            output_tokens=[int(entry["number_output_tokens"]) for entry in good],
        ),
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
            path,
            "contains results of separate prefill and decode servers, which are not supported: remove these entries",
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
        completed=10 * (to_count(document.get("conc")) or 1),  # as its scripts send
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
_MLPERF_LATENCIES = TOOLS["MLPerf"]["latencies"]


def is_mlperf(text: str) -> bool:
    """Return whether a text contains the summary of MLPerf's LoadGen."""
    return _MLPERF_MARK in text[:_MARK_WITHIN]


def read_mlperf(path: str | Path, text: str) -> MeasuredRun:
    """Return the run in a summary of MLPerf's LoadGen. Raises MalformedFile for a scenario other than Server,
    Offline or Interactive."""
    words = {name.lower(): value for name, value in _MLPERF_LINE.findall(text)}
    numbers = {name: number for name, value in words.items() if (number := parse_number(value)) is not None}
    scenario = words.get("scenario", "")
    if scenario not in ("Server", "Offline", "Interactive"):
        raise MalformedFile(
            path,
            f"has MLPerf's scenario {scenario or 'unknown'}: give a result of the scenario Server or Offline",
        )

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
        notices=(f"MLPerf {scenario}, result {words.get('result is', 'unknown')}; LoadGen uses no network",),
    )


def _mlperf_latencies(numbers: Mapping[str, float], metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    found = {}
    for metric in metrics:
        mean, form = _MLPERF_LATENCIES[metric]
        names = {"mean": mean, **{f"p{p}": form.format(p=p) for p in (50, 90, 95, 99)}}
        if statistics := finite_statistics({s: numbers.get(name) for s, name in names.items()}, 1e-6):
            found[metric] = statistics
    return found
