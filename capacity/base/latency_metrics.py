"""The latencies of a request: the one list that summaries, service levels, schemas, tables and charts read.

To add a metric, see CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

ErrorKind = Literal["ttft", "tpot", "e2e"]  # the latencies of which the prediction error was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMetric:
    """One latency, as `vllm bench serve` defines it if it has it.

    `key` is its name in service levels and in the keys of JSON (`p99_e2el_ms`), `label` its name in tables and `title`
    that in charts. `error`: the latency whose prediction interval it gets. `span` takes completed requests (a
    `RequestTable`) and returns the time of each and the number of parts that it is divided by; a request with 0 parts
    does not have the metric. `span` is None for gaps between deliveries. `from_arrival`: it includes the queue.
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
"""Metrics that an estimate does not predict but computes from TTFT and E2E."""
ALIASES = {alias: metric.key for metric in METRICS.values() for alias in metric.aliases}
