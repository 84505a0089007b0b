"""Records of requests, and their summary as `vllm bench serve` prints it; used for simulated and measured runs.

Definitions, as in vLLM 0.33.0's benchmark client:

- TTFT = first output token - arrival, including queueing
- E2EL = last output token - arrival
- TPOT = (E2EL - TTFT) / (output tokens - 1), one value per request, undefined for a single output token
- ITL = gaps between successive deliveries of one request, pooled over all requests

Percentiles interpolate linearly (numpy's default); standard deviations are population values.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from capacity.base.errors import InvalidInput
from capacity.base.latency_metrics import METRICS, REQUEST_METRICS
from capacity.simulator.distribution import Distribution, flatten_latencies
from capacity.simulator.gap_counter import GapCounter
from capacity.step import PS_PER_S
from capacity.workload.columns import IntArray

PS_PER_MS = PS_PER_S // 1000
PS_TO_MS = 1e3 / PS_PER_S
MISSING = -1  # an instant that never happened
_INSTANTS = ("arrival", "first_scheduled", "first_token", "finish")
_COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Times of one request (s since the start of the run; None: the event did not happen) and its token counts."""

    index: int
    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    finish_s: float | None
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    preemptions: int = 0

    @property
    def completed(self) -> bool:
        return self.finish_s is not None

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> float | None:
        return None if self.finish_s is None else self.finish_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between tokens after the first token (s); None for a single output token."""
        if self.finish_s is None or self.first_token_s is None or self.output_tokens < 2:
            return None
        return (self.finish_s - self.first_token_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTable(Sequence[RequestRecord]):
    """Table of requests with columns in whole ps (MISSING: did not happen); an index returns a RequestRecord."""

    arrival_ps: IntArray
    first_scheduled_ps: IntArray
    first_token_ps: IntArray
    finish_ps: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    cached_tokens: IntArray
    preemptions: IntArray
    preempted_ps: IntArray | None = None  # without a place in the batch, after the first token; None: unknown

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @overload
    def __getitem__(self, index: int) -> RequestRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[RequestRecord]: ...
    def __getitem__(self, index: int | slice) -> RequestRecord | list[RequestRecord]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        instants: Any = {}
        for name in _INSTANTS:
            ps = int(getattr(self, f"{name}_ps")[index])
            instants[f"{name}_s"] = None if ps == MISSING else ps / PS_PER_S
        counts = {name: int(getattr(self, name)[index]) for name in _COUNTS}
        return RequestRecord(index=index, **instants, **counts)

    def rows(self, chosen: slice | npt.NDArray[Any]) -> "RequestTable":
        """Return the table of the chosen requests, given as a slice, a mask or row numbers."""
        columns = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        parts: Any = {name: None if column is None else column[chosen] for name, column in columns}
        return RequestTable(**parts)

    @property
    def completed(self) -> npt.NDArray[np.bool_]:
        done: npt.NDArray[np.bool_] = self.finish_ps != MISSING
        return done

    def span_ps(self, metric: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return a time (ps) and a divisor per request; time / divisor is the metric, valid for completed requests."""
        span = METRICS[metric].span
        assert span is not None
        time_ps, parts = span(self)
        return time_ps, np.maximum(parts, 0)

    def latency_s(self, metric: str) -> npt.NDArray[np.float64]:
        """Return a latency metric (s) of each request; NaN if incomplete, and for TPOT of a single token."""
        time_ps, parts = self.span_ps(metric)
        known = self.completed & (parts > 0)
        return np.where(known, time_ps / PS_PER_S / np.maximum(parts, 1), np.nan)

    def latencies(self, metric: str, *, per_ps: float) -> npt.NDArray[np.float64]:
        """Return a latency metric where it is defined, in order; `per_ps` converts picoseconds to the unit.

        All requests of the table must be completed.
        """
        time_ps, parts = self.span_ps(metric)
        if not parts.ndim:
            return time_ps * per_ps
        several = parts > 0
        times: npt.NDArray[np.float64] = time_ps[several] * per_ps
        times /= parts[several]
        return times

    @classmethod
    def from_records(cls, records: Iterable[RequestRecord]) -> "RequestTable":
        """Return the table of these records; records of real servers may have any time origin."""
        rows = list(records)
        columns: dict[str, IntArray] = {}
        for name in _INSTANTS:
            values = [getattr(row, f"{name}_s") for row in rows]
            instants = [MISSING if value is None else round(value * PS_PER_S) for value in values]
            columns[f"{name}_ps"] = np.array(instants, dtype=np.int64)
        for name in _COUNTS:
            columns[name] = np.array([getattr(row, name) for row in rows], dtype=np.int64)
        return cls(**columns)


def request_latency_s(metric: str, ttft_s: float, e2e_s: float, output_tokens: int) -> float | None:
    """Return a latency metric (s) of a request with this TTFT and E2E; None if it is undefined."""
    request = RequestRecord(
        index=0,
        arrival_s=0.0,
        first_scheduled_s=0.0,
        first_token_s=ttft_s,
        finish_s=e2e_s,
        prompt_tokens=0,
        output_tokens=output_tokens,
    )
    latency_s = float(RequestTable.from_records([request]).latency_s(metric)[0])
    return None if math.isnan(latency_s) else latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """Summary of a run, with the field names of `vllm bench serve`; a metric without values is None, never 0.

    `duration` (s) is the time from the first arrival to the last completion.
    """

    duration: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    latencies_ms: Mapping[str, Distribution | None]
    itl_resolution: float = 0.0  # relative width of the bins of the ITL percentiles; 0: exact

    @property
    def ttft_ms(self) -> Distribution | None:
        return self.latencies_ms["ttft"]

    @property
    def tpot_ms(self) -> Distribution | None:
        return self.latencies_ms["tpot"]

    @property
    def itl_ms(self) -> Distribution | None:
        return self.latencies_ms["itl"]

    @property
    def e2el_ms(self) -> Distribution | None:
        return self.latencies_ms["e2el"]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as a flat dict with the keys that `vllm bench serve` writes to its result file."""
        names = [field.name for field in fields(self) if field.name not in ("latencies_ms", "itl_resolution")]
        return {name: getattr(self, name) for name in names} | flatten_latencies(self.latencies_ms)


def summarize(
    requests: RequestTable,
    *,
    gaps: GapCounter | None = None,
    goodput_ms: Mapping[str, float] | None = None,
    duration_s: float | None = None,
) -> LatencySummary:
    """Return the summary of the completed requests; all others count as failed.

    `goodput_ms` sets latency limits (ms, inclusive); goodput is the rate of requests within all of them. For goodput,
    the TPOT of a single output token counts as 0, as in vLLM. `duration_s` is the duration of the measured run, if
    known.
    """
    unknown = sorted(set(goodput_ms or ()) - set(REQUEST_METRICS))
    if unknown:
        raise InvalidInput(f"unknown goodput metric {unknown[0]!r}; known: {', '.join(REQUEST_METRICS)}")
    completed = int(requests.completed.sum())
    done = requests if completed == len(requests) else requests.rows(requests.completed)  # without a copy
    if duration_s is None:
        start_ps = int(requests.arrival_ps.min()) if len(requests) else 0
        duration_s = (int(done.finish_ps.max()) - start_ps) / PS_PER_S if completed else 0.0
    good = np.ones(completed, dtype=bool)
    for metric, limit_ms in (goodput_ms or {}).items():
        # in picoseconds, so that a latency equal to its limit compares exactly
        time_ps, parts = done.span_ps(metric)
        good &= time_ps <= limit_ms * PS_PER_MS * parts
    input_tokens, output_tokens = int(done.prompt_tokens.sum()), int(done.output_tokens.sum())

    def rate(count: int) -> float:
        return count / duration_s if duration_s else 0.0

    latencies_ms = {
        key: Distribution.from_values(done.latencies(key, per_ps=PS_TO_MS), reorder=True)
        for key in REQUEST_METRICS
    }
    latencies_ms["itl"] = gaps.distribution_ms() if gaps is not None else None
    return LatencySummary(
        duration=duration_s,
        completed=completed,
        failed=len(requests) - completed,
        total_input_tokens=input_tokens,
        total_output_tokens=output_tokens,
        request_throughput=rate(completed),
        request_goodput=rate(int(good.sum())) if goodput_ms else None,
        output_throughput=rate(output_tokens),
        total_token_throughput=rate(input_tokens + output_tokens),
        latencies_ms={key: latencies_ms[key] for key in METRICS},
        itl_resolution=gaps.resolution if gaps is not None else 0.0,
    )
