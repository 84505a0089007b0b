"""Latency metrics of a request. Summaries, SLOs, schemas, tables and charts all use this list.

CONTRIBUTING.md describes how to add a metric.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

ErrorKind = Literal["ttft", "tpot", "e2e"]  # latencies whose prediction error was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMetric:
    """One latency metric. If `vllm bench serve` reports the metric, the definition is the same.

    `key` is its name in SLOs and in JSON keys (`p99_e2el_ms`), `label` its name in tables and `title` its name in
    charts. `error`: the metric whose prediction error sets its interval. `span` takes completed requests (a
    `RequestTable`) and returns a time and a divisor for each request. The metric is the time divided by the divisor; it
    is undefined if the divisor is 0. `span` is None for ITL, which is measured between token deliveries.
    `from_arrival`: whether the metric includes the time in the queue.
    """

    key: str
    label: str
    title: str
    error: ErrorKind
    span: Callable[[Any], tuple[Any, Any]] | None
    from_arrival: bool = True
    aliases: tuple[str, ...] = ()


METRICS: Mapping[str, LatencyMetric] = {
    metric.key: metric
    for metric in (
        LatencyMetric(
            key="ttft",
            label="TTFT",
            title="TTFT",
            error="ttft",
            span=lambda request: (request.first_token_ps - request.arrival_ps, 1),
        ),
        LatencyMetric(
            key="tpot",
            label="TPOT",
            title="TPOT",
            error="tpot",
            span=lambda request: (request.finish_ps - request.first_token_ps, request.output_tokens - 1),
            from_arrival=False,
        ),
        LatencyMetric(key="itl", label="ITL", title="ITL", error="tpot", span=None, from_arrival=False),
        LatencyMetric(
            key="e2el",
            label="E2E",
            title="E2E latency",
            error="e2e",
            span=lambda request: (request.finish_ps - request.arrival_ps, 1),
            aliases=("e2e", "e2e_latency", "latency"),
        ),
    )
}
REQUEST_METRICS = tuple(key for key, metric in METRICS.items() if metric.span is not None)
FURTHER_METRICS = tuple(key for key in REQUEST_METRICS if key not in ("ttft", "tpot", "e2el"))
"""Metrics that `estimate` computes from TTFT and E2E."""
ALIASES = {alias: metric.key for metric in METRICS.values() for alias in metric.aliases}
# Names of the metrics in an engine's /metrics, without the engine's prefix; the first one present is read. vLLM 0.6 to
# 0.33, v1/metrics/loggers.py; SGLang 0.4 to 0.5, srt/observability/metrics_collector.py
HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft": ("time_to_first_token_seconds",),
    "tpot": ("request_time_per_output_token_seconds",),  # not in SGLang
    "itl": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "e2el": ("e2e_request_latency_seconds",),
}
RUNNING = ("num_requests_running", "num_running_reqs")  # gauges of vLLM and of SGLang
WAITING = ("num_requests_waiting", "num_queue_reqs")
KV_USE = ("kv_cache_usage_perc", "token_usage")
