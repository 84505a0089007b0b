"""Results of real servers' benchmarks: which tool wrote a file, what it measured, and the workload that it sent.

Names differ between tools, and one name hides two meanings: AIPerf's and guidellm's `inter_token_latency` is our
TPOT, guidellm's `time_per_output_token` includes the first token. What a file does not carry stays None and is
listed in `missing`, so that it can be asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capacity.base.errors import MalformedFile
from capacity.workload import Workload

MAX_FILE_BYTES = 512 * 2**20
MAX_NUMBER = 1e15  # of anything measured
MAX_TOKENS = 10**8  # of one request
METRICS = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestColumns:
    """What is known of each successful request, in order of sending; None: the file does not say. Times in s."""

    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    start_s: Sequence[float] | None = None  # when it left the client
    scheduled_s: Sequence[float] | None = None  # when it would have, without a cap on those in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One benchmark run. `latencies_ms[metric][statistic]`; a metric that was not measured is not there."""

    tool: str
    path: str
    model: str | None
    completed: int
    failed: int
    duration_s: float | None
    request_throughput: float | None
    output_throughput: float | None
    latencies_ms: Mapping[str, Mapping[str, float]]
    requests: RequestColumns | None
    request_rate: float | None  # inf: all at once; None: unknown
    burstiness: float
    concurrency: int | None
    num_requests: int
    mean_prompt_tokens: float | None
    mean_output_tokens: float | None
    accepted_length: float | None = None
    notices: tuple[str, ...] = ()

    def workload(self) -> Workload | None:
        """The requests as they were sent; None where lengths are not known for each."""
        columns = self.requests
        if columns is None:
            return None
        arrivals = self._arrivals_s(columns)
        if arrivals is None:
            return None
        return Workload.sorted(
            arrival_s=arrivals,
            prompt_tokens=np.maximum(1, np.asarray(columns.prompt_tokens, dtype=np.int64)),
            output_tokens=np.maximum(1, np.asarray(columns.output_tokens, dtype=np.int64)),
            concurrency=self.concurrency,
            name=f"{self.tool} run",
            source=self.path,
            notices=self.notices,
        )

    def _arrivals_s(self, columns: RequestColumns) -> Any:
        """Arrivals from 0 s. In a closed loop the server's own speed is in the starts, so the cap stands instead."""
        times = columns.start_s
        if self.concurrency is not None:
            times = columns.scheduled_s
            if times is None and (self.request_rate is None or np.isinf(self.request_rate)):
                return np.zeros(len(columns.prompt_tokens))
        if times is None:
            return None
        return np.asarray(times, dtype=float) - min(times)

    @property
    def missing(self) -> tuple[str, ...]:
        """What would have to be told to simulate the same workload."""
        lacks = []
        if self.requests is None:
            lacks += ["--input-len", "--output-len"]
        if self.workload() is None and self.request_rate is None and self.concurrency is None:
            lacks.append("--request-rate or --concurrency")
        return tuple(lacks)


def read_results(path: str | Path) -> list[MeasuredRun]:
    """Every run in a result file, whichever of the known tools wrote it. Raises MalformedFile."""
    path = Path(path)
    documents = list(_documents(path))
    if not documents:
        raise MalformedFile(path, "is empty")
    tool, read = _reader(path, documents)
    try:
        runs = read()
        for run in runs:
            _check_lengths(path, run)
            run.workload()
    except (AttributeError, TypeError, KeyError, IndexError, ValueError, OverflowError) as error:
        raise MalformedFile(
            path,
            f"looks like a result of {tool}, but is not laid out as one: {str(error)[:120] or type(error).__name__}",
        ) from None
    return runs


def _reader(path: Path, documents: Sequence[Any]) -> tuple[str, Callable[[], list[MeasuredRun]]]:
    """Which tool wrote the documents, and what reads them. Raises MalformedFile."""
    first = documents[0]
    if isinstance(first, list):
        return "inference-perf", lambda: [_inference_perf_requests(path, first)]
    if any(not isinstance(document, dict) for document in documents):
        raise MalformedFile(path, "mixes objects and lists, which no known tool writes")
    if "benchmarks" in first:
        return "guidellm", lambda: [_guidellm(path, b, first) for b in first["benchmarks"]]
    if "metadata" in first and "metrics" in first:
        return "AIPerf", lambda: [_aiperf_requests(path, documents)]
    if isinstance(first.get("request_latency"), dict) or isinstance(first.get("time_to_first_token"), dict):
        return "AIPerf", lambda: [_aiperf(path, document) for document in documents]
    if "load_summary" in first and "successes" in first:
        return "inference-perf", lambda: [_inference_perf(path, document) for document in documents]
    if "mean_e2e_latency_ms" in first or "input_throughput" in first or "sharegpt_output_len" in first:
        return "SGLang", lambda: [_sglang(path, document) for document in documents]
    if "total_output_tokens" in first and "duration" in first:
        return "vllm bench serve", lambda: [_vllm(path, document) for document in documents]
    raise MalformedFile(
        path,
        "is no known benchmark result (vllm bench serve, SGLang, AIPerf, genai-perf, guidellm, inference-perf)",
    )


def _check_lengths(path: Path, run: MeasuredRun) -> None:
    columns = run.requests
    if columns is None:
        return
    for name, values in (("prompt", columns.prompt_tokens), ("output", columns.output_tokens)):
        worst = max(values, default=0)
        if worst > MAX_TOKENS or min(values, default=0) < 0:
            raise MalformedFile(path, f"holds a {name} of {worst:,} tokens: must be 0 to {MAX_TOKENS:,}")
    for times in (columns.start_s, columns.scheduled_s):
        if times is not None and not (np.abs(np.asarray(times, dtype=float)) < MAX_NUMBER).all():
            raise MalformedFile(path, "holds start times that are no numbers")


def _documents(path: Path) -> Iterator[Any]:
    """JSON values of a file: one, or several one after the other (appended results, JSON lines)."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise MalformedFile(path, f"is larger than {MAX_FILE_BYTES // 2**20} MiB")
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MalformedFile(path, f"cannot be read: {error}") from None
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            line = text.count("\n", 0, position) + 1
            raise MalformedFile(path, f"not JSON: {error}", where=f"from line {line}") from None
        if not isinstance(value, dict | list):
            raise MalformedFile(path, f"holds a bare {type(value).__name__}, not a result")
        yield value
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1


def _number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < MAX_NUMBER else None  # not-a-number compares false


def _rate(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return float(value) if np.isinf(value) or value < MAX_NUMBER else None


def _count(value: object) -> int | None:
    number = _number(value)
    return None if number is None or number < 1 else int(number)


def summarise_ms(values_s: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles in ms, as the benchmark clients compute them."""
    array = np.asarray(values_s, dtype=float)
    if not len(array):
        return {}
    if not (np.abs(array) < MAX_NUMBER).all():
        raise ValueError("a time is no number of seconds")
    array = array * 1e3
    quantiles = {f"p{p}": float(np.percentile(array, p)) for p in (50, 90, 95, 99)}
    return {"mean": float(array.mean()), **quantiles}


# vllm bench serve, and what grew out of it


def _flat_latencies(document: Document, names: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """`mean_ttft_ms` and its kin; `names` maps our metric to the tool's."""
    found: dict[str, dict[str, float]] = {}
    for metric, name in names.items():
        values = {
            "mean": _number(document.get(f"mean_{name}_ms")),
            "p50": _number(document.get(f"median_{name}_ms", document.get(f"p50_{name}_ms"))),
            **{f"p{p}": _number(document.get(f"p{p}_{name}_ms")) for p in (90, 95, 99)},
        }
        known = {key: value for key, value in values.items() if value is not None}
        if known:
            found[metric] = known
    return found


def _lists(document: Document, *names: str) -> list[list[Any]] | None:
    """Equally long per-request arrays, or None where one is missing."""
    columns = [document.get(name) for name in names]
    if not all(isinstance(column, list) and column for column in columns):
        return None
    if len({len(column) for column in columns if column is not None}) != 1:
        return None
    return [list(column) for column in columns if column is not None]


def _vllm(path: Path, document: Document) -> MeasuredRun:
    """`vllm bench serve` 0.33, and older forks: no `failed`, `request_goodput:` with its colon, no `e2el`."""
    latencies = _flat_latencies(document, {metric: metric for metric in METRICS})
    requests, notices = _vllm_requests(document)
    detailed = _detailed_latencies(document)
    latencies = {
        **latencies,
        **{k: v for k, v in detailed.items() if k not in latencies or len(latencies[k]) < len(v)},
    }
    completed = _count(document.get("completed")) or 0
    total = _count(document.get("num_prompts")) or completed
    failed = document.get("failed")
    return MeasuredRun(
        tool="vllm bench serve",
        path=str(path),
        model=document.get("model_id"),
        completed=completed,
        failed=int(failed) if isinstance(failed, int) else max(0, total - completed),
        duration_s=_number(document.get("duration")),
        request_throughput=_number(document.get("request_throughput")),
        output_throughput=_number(document.get("output_throughput")),
        latencies_ms=latencies,
        requests=requests,
        request_rate=_rate(document.get("request_rate")),
        burstiness=_number(document.get("burstiness")) or 1.0,
        concurrency=_count(document.get("max_concurrency")),
        num_requests=total,
        mean_prompt_tokens=_mean(document.get("total_input_tokens"), completed),
        mean_output_tokens=_mean(document.get("total_output_tokens"), completed),
        accepted_length=_number(document.get("spec_decode_acceptance_length")),
        notices=notices,
    )


def _mean(total: object, count: int) -> float | None:
    number = _number(total)
    return number / count if number is not None and count else None


def _vllm_requests(document: Document) -> tuple[RequestColumns | None, tuple[str, ...]]:
    columns = _lists(document, "input_lens", "output_lens")
    if columns is None or isinstance(columns[0][0], str):
        return None, ()
    prompts, outputs = columns
    good = [i for i, tokens in enumerate(outputs) if tokens]
    starts = _lists(document, "input_lens", "start_times")
    queued = _lists(document, "input_lens", "queue_times")
    start_s = [float(starts[1][i]) for i in good] if starts else None
    scheduled_s = (
        [float(starts[1][i]) - float(queued[1][i]) for i in good]
        if starts is not None and queued is not None
        else None
    )
    order = sorted(range(len(good)), key=lambda i: start_s[i]) if start_s else list(range(len(good)))
    lost = len(outputs) - len(good)
    notices = (f"{lost} failed requests are left out of the replay",) if lost else ()
    return (
        RequestColumns(
            prompt_tokens=[int(prompts[good[i]]) for i in order],
            output_tokens=[int(outputs[good[i]]) for i in order],
            start_s=[start_s[i] for i in order] if start_s else None,
            scheduled_s=[scheduled_s[i] for i in order] if scheduled_s else None,
        ),
        notices,
    )


def _detailed_latencies(document: Document) -> dict[str, dict[str, float]]:
    """From per-request arrays: E2E from `latencies`, or as TTFT plus the gaps, where no summary was asked for."""
    columns = _lists(document, "ttfts", "output_lens", "itls")
    if columns is None or isinstance(columns[0][0], str):
        return {}
    ttfts, outputs, itls = columns
    good = [i for i, tokens in enumerate(outputs) if tokens]
    latencies = document.get("latencies")
    given = isinstance(latencies, list) and len(latencies) == len(ttfts)
    e2e = [float(latencies[i]) if given else float(ttfts[i]) + sum(itls[i]) for i in good]  # type: ignore[index]
    tpot = [
        (e - float(ttfts[i])) / (outputs[i] - 1) for e, i in zip(e2e, good, strict=True) if outputs[i] > 1
    ]
    gaps = [float(gap) for i in good for gap in itls[i]]
    samples = {"ttft": [float(ttfts[i]) for i in good], "tpot": tpot, "itl": gaps, "e2el": e2e}
    return {metric: summarise_ms(values) for metric, values in samples.items() if values}


def _sglang(path: Path, document: Document) -> MeasuredRun:
    """`sglang.bench_serving` lines: no start times, Poisson gaps only."""
    completed = _count(document.get("completed")) or 0
    columns = _lists(document, "input_lens", "output_lens")
    requests = None
    notices: tuple[str, ...] = ()
    if columns is not None:
        pairs = [(int(p), int(o)) for p, o in zip(*columns, strict=True) if o]
        requests = RequestColumns(prompt_tokens=[p for p, _ in pairs], output_tokens=[o for _, o in pairs])
        notices = ("SGLang does not record start times: arrivals are drawn anew from the request rate",)
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e_latency"}
    accepted = _number(document.get("accept_length"))
    return MeasuredRun(
        tool="sglang.bench_serving",
        path=str(path),
        model=None,
        completed=completed,
        failed=0,
        duration_s=_number(document.get("duration")),
        request_throughput=_number(document.get("request_throughput")),
        output_throughput=_number(document.get("output_throughput")),
        latencies_ms=_flat_latencies(document, names),
        requests=requests,
        request_rate=_rate(document.get("request_rate")),
        burstiness=1.0,
        concurrency=_count(document.get("max_concurrency")),
        num_requests=completed,
        mean_prompt_tokens=_mean(document.get("total_input_tokens"), completed),
        mean_output_tokens=_mean(document.get("total_output_tokens"), completed),
        accepted_length=accepted if accepted and accepted > 1.0 else None,
        notices=notices,
    )


# AIPerf, genai-perf

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
        return _number(entry.get("avg")) if isinstance(entry, dict) else None

    latencies: dict[str, dict[str, float]] = {}
    for metric, name in _AIPERF.items():
        entry = document.get(name)
        if not isinstance(entry, dict):
            continue
        factor = _TO_MS.get(str(entry.get("unit", "ms")), 1.0)
        keys = {"mean": "avg", **{f"p{p}": f"p{p}" for p in (50, 90, 95, 99)}}
        values = {ours: _number(entry.get(theirs)) for ours, theirs in keys.items()}
        latencies[metric] = {key: value * factor for key, value in values.items() if value is not None}
    config = document.get("input_config") or {}
    load = _aiperf_load(config)
    count = int(average("request_count") or 0)
    errors = document.get("error_request_count")
    return MeasuredRun(
        tool="AIPerf",
        path=str(path),
        model=_aiperf_model(config),
        completed=count,
        failed=int(errors.get("avg") or 0) if isinstance(errors, dict) else 0,
        duration_s=average("benchmark_duration"),
        request_throughput=average("request_throughput"),
        output_throughput=average("output_token_throughput"),
        latencies_ms=latencies,
        requests=None,
        request_rate=_rate(load.get("request_rate", load.get("rate"))),
        burstiness=_number(load.get("arrival_smoothness", load.get("smoothness"))) or 1.0,
        concurrency=_count(load.get("concurrency")),
        num_requests=count,
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
            value = _number(entry.get("value")) if isinstance(entry, dict) else None
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
        model=None,
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
        request_rate=None,
        burstiness=1.0,
        concurrency=None,
        num_requests=len(good),
        mean_prompt_tokens=None,
        mean_output_tokens=None,
        notices=("the file does not say whether the load was a closed loop: if it was, give --concurrency",),
    )


# guidellm


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
        duration_s=_number(benchmark.get("duration")),
        request_throughput=_guidellm_statistics(metrics.get("requests_per_second")).get("mean"),
        output_throughput=_guidellm_statistics(metrics.get("output_tokens_per_second")).get("mean"),
        latencies_ms=latencies,
        requests=_guidellm_requests(benchmark),
        request_rate=None if closed else _rate(strategy.get("rate")),
        burstiness=float("inf") if kind == "constant" else 1.0,
        concurrency=(1 if kind == "synchronous" else _count(streams)) if closed else None,
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
    quantiles = values.get("percentiles") or {}
    found = {"mean": _number(values.get("mean")), "p50": _number(values.get("median"))}
    found |= {f"p{p}": _number(quantiles.get(f"p{p}")) for p in (90, 95, 99)}
    return {key: value * factor for key, value in found.items() if value is not None}


def _guidellm_requests(benchmark: Document) -> RequestColumns | None:
    entries = (benchmark.get("requests") or {}).get("successful")
    if not isinstance(entries, list) or not entries:
        return None
    rows = []
    for entry in entries:
        timings = (entry.get("info") or {}).get("timings") or {}
        start = _number(entry.get("request_start_time")) or _number(timings.get("request_start"))
        start = start if start is not None else _number(entry.get("start_time"))
        prompt = _count(entry.get("prompt_tokens")) or _count(
            (entry.get("input_metrics") or {}).get("text_tokens")
        )
        output = _count(entry.get("output_tokens")) or _count(
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


# inference-perf


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
        found = {"mean": _number(entry.get("mean")), "p50": _number(entry.get("median", entry.get("p50")))}
        found |= {f"p{p}": _number(entry.get(f"p{p}")) for p in (90, 95, 99)}
        latencies[metric] = {key: 1e3 * value for key, value in found.items() if value is not None}
    throughput = success.get("throughput") or {}
    prompt = success.get("prompt_tokens") or success.get("prompt_len") or {}
    output = success.get("output_tokens") or success.get("output_len") or {}
    count = int(success.get("count") or 0)
    rate = _number(throughput.get("requests_per_sec"))
    return MeasuredRun(
        tool="inference-perf",
        path=str(path),
        model=None,
        completed=count,
        failed=int((document.get("failures") or {}).get("count") or 0),
        duration_s=count / rate if rate else None,
        request_throughput=rate,
        output_throughput=_number(throughput.get("output_tokens_per_sec")),
        latencies_ms=latencies,
        requests=None,
        request_rate=_rate(load.get("requested_rate")),
        burstiness=1.0,
        concurrency=_count(load.get("concurrency")),
        num_requests=count,
        mean_prompt_tokens=_number(prompt.get("mean")),
        mean_output_tokens=_number(output.get("mean")),
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
        model=None,
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
        request_rate=None,
        burstiness=1.0,
        concurrency=None,
        num_requests=len(rows),
        mean_prompt_tokens=None,
        mean_output_tokens=None,
    )


def _inference_perf_info(info: Document) -> dict[str, Any]:
    """Tokens and their instants: flat in older versions, under `request_metrics` and `response_metrics` since."""
    asked = (info.get("request_metrics") or {}).get("text") or info
    given = info.get("response_metrics") or info
    return {
        "input_tokens": asked.get("input_tokens") or 0,
        "output_tokens": given.get("output_tokens") or 0,
        "output_token_times": given.get("output_token_times") or [],
    }
