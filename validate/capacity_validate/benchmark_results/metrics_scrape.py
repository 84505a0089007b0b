"""A scrape of an engine's metrics (`GET /metrics`): means of its histograms since the server started.

Times end at the API server, so they exclude client latency. Names: vLLM 0.33, vllm/v1/metrics/loggers.py (up to 0.10,
`time_per_output_token_seconds` was the name of `inter_token_latency_seconds`); SGLang 0.5,
srt/observability/metrics_collector.py. Percentiles are omitted because neighbouring buckets differ by up to a factor
of two.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from capacity.base.errors import MalformedFile
from capacity_validate.benchmark_results.measured_run import MeasuredRun

MAX_REPLAYED_REQUESTS = 1000  # maximum number of replayed requests
_LINE = re.compile(r"((?:vllm|sglang):[a-z0-9_]+)(?:\{([^}]*)\})? +([-+0-9.eE]+|[+-]?Inf|NaN)(?: +\d+)?")
_MODEL = re.compile(r'(?:^|,)model_name="((?:[^"\\]|\\.)*)"')
_BEGINS = re.compile(
    r"\s*(?:# (?:HELP|TYPE) |[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[^}\n]*\})? [-+0-9.eE]+(?: +\d+)?\s*(?:\n|\Z))"
)

_HISTOGRAMS = {  # latencies of a request; the first name found is used
    "ttft": ("time_to_first_token_seconds",),
    "tpot": ("request_time_per_output_token_seconds",),
    "itl": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "e2el": ("e2e_request_latency_seconds",),
}


def is_metrics(text: str) -> bool:
    """Return whether a text is a scrape of vLLM's or SGLang's metrics, judged by its first line."""
    return _BEGINS.match(text) is not None


def read_metrics(path: str | Path, text: str) -> MeasuredRun:
    """Return one scrape's means as a run. Raises MalformedFile for several models, or if no request completed."""
    engine, values, models = _sum_samples(path, text)
    if len(models) > 1:
        raise MalformedFile(
            path, f"contains metrics of several models ({', '.join(sorted(models))}): scrape a server of one"
        )

    def mean(*names: str) -> float | None:
        for name in names:
            observed = values.get(f"{engine}:{name}_count", 0.0)
            if observed > 0:
                return values.get(f"{engine}:{name}_sum", math.nan) / observed
        return None

    found = {metric: mean(*names) for metric, names in _HISTOGRAMS.items()}
    # SGLang and vLLM before 0.11 have the per-token histogram only
    found["tpot"] = found["tpot"] or found["itl"]
    latencies = {
        metric: {"mean": seconds * 1e3}
        for metric, seconds in found.items()
        if seconds is not None and 0 < seconds < math.inf
    }
    served = _served_requests(engine, values)
    if not latencies or served < 1:
        raise MalformedFile(path, "contains no completed request: scrape after a load has run")
    prompts, outputs = (
        mean(f"request_{kind}_tokens") or values.get(f"{engine}:{kind}_tokens_total", 0.0) / served
        for kind in ("prompt", "generation")
    )
    return MeasuredRun(
        tool=f"{'vLLM' if engine == 'vllm' else 'SGLang'} metrics",
        path=str(path),
        model=next(iter(models), None),
        completed=served,
        failed=0,
        latencies_ms=latencies,
        num_requests=min(served, MAX_REPLAYED_REQUESTS),
        mean_prompt_tokens=prompts or None,
        mean_output_tokens=outputs or None,
        client_latency_s=0.0,
        notices=("the values are means since the server started, including warm-up and idle times",),
    )


def _served_requests(engine: str, values: Mapping[str, float]) -> int:
    names = ("request_success_total", "num_requests_total", "e2e_request_latency_seconds_count")
    found = (values.get(f"{engine}:{name}", 0.0) for name in names)
    number = next((value for value in found if value > 0), 0.0)
    return int(number) if number < 1e12 else 0


def _sum_samples(path: str | Path, text: str) -> tuple[str, dict[str, float], set[str]]:
    """Return the engine's name, the value of each metric summed over its label sets, and the names of the models."""
    values: dict[str, float] = {}
    models: set[str] = set()
    for sample in filter(None, (_LINE.fullmatch(line.strip()) for line in text.splitlines())):
        name, value = sample[1], float(sample[3])
        if name.endswith(("_bucket", "_created")) or not 0 <= value < math.inf:
            continue
        if model := _MODEL.search(sample[2] or ""):
            models.add(model[1])
        values[name] = values.get(name, 0.0) + value
    engines = {name.partition(":")[0] for name in values}
    if len(engines) != 1:
        wrong = "of both vLLM and SGLang" if engines else "of neither vLLM nor SGLang"
        raise MalformedFile(path, f"contains metrics {wrong}: give the /metrics of one engine")
    return engines.pop(), values, models
