"""One benchmark run as every tool's file is read: what was measured, and the workload that was sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capacity.base.errors import MalformedFile
from capacity.workload import Workload
from capacity.workload.columns import FloatArray
from capacity_validate.server_log import ServerLog

METRICS = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestColumns:
    """What is known of each successful request, in order of sending; None: the file does not say. Times in s."""

    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    start_s: Sequence[float] | None = None  # when it left the client
    scheduled_s: Sequence[float] | None = None  # when it would have, without a cap on those in flight


ENGINES = {
    "llama-bench": "llama.cpp",
    "trtllm-bench": "tensorrt-llm",
    "vllm bench throughput": "vllm",
    "vllm bench latency": "vllm",
    "vLLM metrics": "vllm",
    "SGLang metrics": "sglang",
}
"""By tool, the one engine that it measures; those that speak HTTP measure any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One benchmark run. `latencies_ms[metric][statistic]`; a metric that was not measured is not there."""

    tool: str
    path: str
    model: str | None = None
    completed: int
    failed: int
    duration_s: float | None = None
    request_throughput: float | None = None
    output_throughput: float | None = None
    latencies_ms: Mapping[str, Mapping[str, float]]
    requests: RequestColumns | None = None
    request_rate: float | None = None  # inf: all at once; None: unknown
    burstiness: float = 1.0
    concurrency: int | None = None
    num_requests: int
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None
    accepted_length: float | None = None
    in_process: bool = False  # requests were made inside of the engine's process: no HTTP, no client
    client_latency_s: float | None = None  # where the tool knows it
    server: ServerLog | None = None  # what the file says of how the server was started
    notices: tuple[str, ...] = ()

    @property
    def engine(self) -> str | None:
        """The engine that was measured, where its tool measures no other."""
        return ENGINES.get(self.tool)

    def require_measured(self) -> MeasuredRun:
        """This run, if any latency or throughput in it is above 0; MalformedFile otherwise."""
        latencies = [value for statistics in self.latencies_ms.values() for value in statistics.values()]
        if any(
            value and value > 0 for value in (*latencies, self.request_throughput, self.output_throughput)
        ):
            return self
        raise MalformedFile(
            self.path,
            f"measured nothing: every latency and throughput of a {self.tool} run is 0 or missing ({self.completed:,} "
            f"requests completed, {self.failed:,} failed); look at the client's errors and run it again",
        )

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

    def _arrivals_s(self, columns: RequestColumns) -> FloatArray | None:
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
        """What has to be named to simulate the same workload."""
        lacks = []
        if self.requests is None:
            lacks += ["--input-len", "--output-len"]
        if self.workload() is None and self.request_rate is None and self.concurrency is None:
            lacks.append("--request-rate or --concurrency")
        return tuple(lacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFormat:
    """A file layout of one tool: how its JSON values are recognised, and what reads them."""

    tools: tuple[str, ...]  # that write it; the first is named in messages
    recognises: Callable[[Sequence[Any]], bool]
    read: Callable[[Path, Sequence[Any]], list[MeasuredRun]]
