"""A scrape of an engine's metrics (`GET /metrics`), or the difference of two, as a measured run.

Times end at the API server, so they exclude client latency. Up to vLLM 0.10, `time_per_output_token_seconds` was the
name of `inter_token_latency_seconds`. A percentile is interpolated in its bucket; neighbouring bounds differ by up to a
factor of 2.5, so each percentile has a standard deviation that follows from the width of its bucket.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from capacity.base.errors import MalformedFile
from capacity.base.latency_metrics import HISTOGRAMS
from capacity.base.untrusted_text import printable_values
from capacity_validate.benchmark_results.measured_run import (
    MeasuredRun,
    RequestColumns,
    parse_number,
    to_count,
)
from capacity_validate.server_log import LoggedSettings, ServerLog
from capacity_validate.server_metrics import ENGINES, ServerMetrics, parse_metrics

MAX_REPLAYED_REQUESTS = 1000  # maximum number of replayed requests
RELEASE = "release"  # key of the labels that contain the server's `version`, if it states one
PERCENTS = (50, 90, 95, 99)
LENGTHS = {
    "prompt": ("request_prompt_tokens", "prompt_tokens_histogram"),
    "generation": ("request_generation_tokens", "generation_tokens_histogram"),
}
_BEGINS = re.compile(
    r"\s*(?:# (?:HELP|TYPE) |[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[^}\n]*\})? [-+0-9.eE]+(?: +\d+)?\s*(?:\n|\Z))"
)
_ON_OFF = {"True": True, "False": False}


def is_metrics(text: str) -> bool:
    """Return whether a text is a scrape of vLLM's or SGLang's metrics, judged by its first line."""
    return _BEGINS.match(text) is not None


def modified_s(path: str | Path) -> float | None:
    """Return when a file was written, in seconds since 1970; None for anything else, such as a pipe."""
    path = Path(path)
    return path.stat().st_mtime if path.is_file() else None


def read_scrape(path: str | Path, text: str, *, scraped_s: float | None = None) -> ServerMetrics:
    """Return the metrics of one scrape. Raises MalformedFile if it contains several models, or no engine's metrics."""
    metrics = parse_metrics(str(path), text, scraped_s=scraped_s)
    if len(metrics.models) > 1:
        raise MalformedFile(
            path,
            f"contains metrics of several models ({', '.join(metrics.models)}): scrape a server with one model",
        )
    return metrics


def split_into_windows(scrapes: Sequence[ServerMetrics]) -> list[ServerMetrics]:
    """Return the metrics between scrapes of each server; a server's only scrape covers the time since its start.

    Raises MalformedFile if no request completed between two scrapes, so that the same file does not count twice.
    """
    windows: list[ServerMetrics] = []
    latest: list[ServerMetrics] = []  # the last scrape of each server
    for scrape in sorted(scrapes, key=lambda each: each.served):
        earlier = next((each for each in latest if scrape.follows(each)), None)
        if earlier is None:
            latest.append(scrape)
            windows.append(scrape)
            continue
        if scrape.served == earlier.served:
            raise MalformedFile(
                scrape.path,
                f"contains no request that {earlier.path} does not contain: give two scrapes with load between them",
            )
        if earlier in windows:
            windows.remove(earlier)
        latest[latest.index(earlier)] = scrape
        windows.append(scrape.minus(earlier))
    return windows


def run_of_metrics(metrics: ServerMetrics, *, replayed: int | None = None) -> MeasuredRun:
    """Return a run of the requests that `metrics` counts as completed. Raises MalformedFile if there are none.

    `replayed`: the number of requests to replay, drawn from the histograms; default: all up to a limit.
    """
    latencies: dict[str, dict[str, float]] = {}
    deviations: dict[str, float] = {}
    for metric, names in HISTOGRAMS.items():
        histogram = metrics.histogram(*names)
        if histogram is None or not 0 < (histogram.mean or 0.0) < float("inf"):
            continue
        latencies[metric] = {"mean": (histogram.mean or 0.0) * 1e3}
        for percent in PERCENTS if metric != "itl" else ():
            if (found := histogram.quantile(percent / 100)) is not None:
                latencies[metric][f"p{percent}"] = found[0] * 1e3
                deviations[f"p{percent}_{metric}_ms"] = found[1]
    if "tpot" not in latencies and "itl" in latencies:  # SGLang, and vLLM before 0.11
        latencies["tpot"] = {"mean": latencies["itl"]["mean"]}
    served = metrics.served
    if not latencies or served < 1:
        raise MalformedFile(metrics.path, "contains no completed request: scrape after a load has run")
    number = replayed or min(served, MAX_REPLAYED_REQUESTS)
    means = {kind: _mean_length(metrics, kind) for kind in LENGTHS}
    seconds, notices = _counted_seconds(metrics, latencies)
    return MeasuredRun(
        tool=f"{ENGINES[metrics.engine]} metrics",
        path=metrics.path,
        model=None if not metrics.models else str(printable_values(metrics.models[0])),
        completed=served,
        failed=0,
        latencies_ms=latencies,
        deviations=deviations,
        requests=_lengths(metrics, number),
        request_rate=None if seconds is None else served / seconds,
        rate_varies=metrics.earlier is None,
        num_requests=number,
        mean_prompt_tokens=means["prompt"],
        mean_output_tokens=means["generation"],
        prefix_hit_rate=metrics.prefix_hit_rate,
        client_latency_s=0.0,
        server=_server_settings(metrics),
        notices=notices,
    )


def _counted_seconds(
    metrics: ServerMetrics, latencies: dict[str, dict[str, float]]
) -> tuple[float | None, tuple[str, ...]]:
    """Return the length in s of the period that `metrics` covers (None if implausible), and notices on this period."""
    seconds, e2e_ms = metrics.seconds, latencies.get("e2el", {}).get("mean", 0.0)
    if seconds is not None and seconds < e2e_ms / 1e3:
        seconds = None  # the file's time is not that of the scrape
    if metrics.earlier is None:
        period = "since the server started, with warm-up and idle times; give two scrapes to exclude these"
    else:
        period = f"in the {seconds:,.0f} s since {metrics.earlier}" if seconds else f"since {metrics.earlier}"
    in_flight = ", ".join(
        f"{value:.0f} {name}"
        for name, value in (("running", metrics.running), ("waiting", metrics.waiting))
        if value is not None
    )
    return seconds, (
        f"the values are counted {period}" + (f"; at the scrape: {in_flight}" if in_flight else ""),
    )


def _mean_length(metrics: ServerMetrics, kind: str) -> float | None:
    histogram = metrics.histogram(*LENGTHS[kind])
    if histogram is not None:
        return histogram.mean
    total = metrics.counter(f"{kind}_tokens_total")
    return total / metrics.served if total and metrics.served else None


def _lengths(metrics: ServerMetrics, number: int) -> RequestColumns | None:
    """Return request lengths drawn from the histograms of prompt and output lengths; None if one is missing."""
    columns = []
    for seed, names in enumerate(LENGTHS.values()):
        histogram = metrics.histogram(*names)
        if histogram is None or len(histogram.bounds) < 2 or not (histogram.mean or 0.0) > 0:
            return None
        values = np.maximum(1, np.rint(histogram.spread_values(number))).astype(np.int64)
        columns.append(np.random.default_rng(seed).permutation(values).tolist())
    return RequestColumns(prompt_tokens=columns[0], output_tokens=columns[1])


def _server_settings(metrics: ServerMetrics) -> ServerLog | None:
    """Return the launch settings that the metrics contain: vLLM's cache_config_info, SGLang's limits."""
    cache, version = (metrics.labels.get(name, {}) for name in ("cache_config_info", RELEASE))
    fields: dict[str, object] = {}
    if (dtype := cache.get("cache_dtype", "None")) not in ("None", "auto"):
        fields["kv_cache_dtype"] = dtype
    if (caching := _ON_OFF.get(cache.get("enable_prefix_caching", ""))) is not None:
        fields["enable_prefix_caching"] = caching
    if (utilization := parse_number(cache.get("gpu_memory_utilization"))) is not None:
        fields["gpu_memory_utilization"] = utilization
    found = ServerLog(
        path=metrics.path,
        kv_tokens=to_count(parse_number(cache.get("kv_cache_size_tokens")))
        or _first_count(metrics, "max_total_num_tokens"),
        kv_blocks=to_count(parse_number(cache.get("num_gpu_blocks"))),
        block_size=to_count(parse_number(cache.get("block_size"))),
        max_num_seqs=_first_count(metrics, "max_running_requests"),
        max_model_len=_first_count(metrics, "context_len"),
        prefix_hit_rate=metrics.prefix_hit_rate,
        launch=LoggedSettings(engine="@".join((metrics.engine, *version.values())), fields=fields),
    )
    return found if version or len(found.rows()) > 1 else None


def _first_count(metrics: ServerMetrics, name: str) -> int | None:
    return to_count(next(iter(metrics.gauges.get(name, ())), None))
