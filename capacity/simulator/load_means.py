"""Means and intervals of client latencies over the steady part of a run, and means over the whole run.

A whole run includes its warm-up (in a closed loop the first wave, whose requests arrive all at once) and its drain. The
longer the run, the closer its means are to those of the steady part.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capacity.base.latency_metrics import METRICS, REQUEST_METRICS
from capacity.simulator.distribution import PERCENTILES
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.intervals import Interval, gap_intervals_ms, percentile_intervals
from capacity.simulator.metrics import PS_TO_MS, LatencySummary, RequestTable
from capacity.step import PS_PER_S
from capacity.workload.columns import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeans:
    """Means over `requests` requests, as `vllm bench serve` measures them; `tpot_s` is None for single-token outputs.

    `waiting_s` is the part of `ttft_s` until the request is first scheduled, including the latency to the engine.
    `in_flight` is the mean number of requests in the system, including waiting ones: `requests_per_s` * `e2e_s`.
    """

    requests: int
    latencies_s: Mapping[str, float | None]
    waiting_s: float
    requests_per_s: float
    in_flight: float

    @property
    def ttft_s(self) -> float:
        return self.latencies_s["ttft"] or 0.0

    @property
    def tpot_s(self) -> float | None:
        return self.latencies_s["tpot"]

    @property
    def e2e_s(self) -> float:
        return self.latencies_s["e2el"] or 0.0

    def to_dict(self) -> dict[str, float | None]:
        """Return JSON values with the names of `vllm bench serve`, latencies in ms."""
        means = self.latencies_s.items()
        return {
            "requests": self.requests,
            **{f"mean_{name}_ms": None if mean is None else mean * 1e3 for name, mean in means},
            "request_throughput": self.requests_per_s,
            "mean_in_flight": self.in_flight,
        }


def steady_means(records: RequestTable, rows: npt.NDArray[np.int64], *, clocked: bool) -> LoadMeans | None:
    """Return means over the completed requests at `rows` (the steady part, in arrival order); None if fewer than two.

    With `clocked` arrivals (not a closed loop), the rate is the arrival rate, and the number in flight is rate times
    latency (Little's law). In a closed loop, arrivals may come in waves, and the measured interval might include only
    a part of a wave. So the number in flight is a mean over time, and the rate is this number divided by the latency.
    """
    if len(rows) < 2:
        return None
    measured = records.rows(rows)
    latencies_s: dict[str, float | None] = {}
    for key in REQUEST_METRICS:
        latencies_ps = measured.latencies(key, per_ps=1.0)
        latencies_s[key] = float(latencies_ps.mean()) / PS_PER_S if len(latencies_ps) else None
    e2e_s = latencies_s["e2el"]
    start_ps, end_ps = int(measured.arrival_ps[0]), int(measured.arrival_ps[-1])
    if end_ps <= start_ps or not e2e_s:
        return None
    if clocked:
        requests_per_s = (len(rows) - 1) / ((end_ps - start_ps) / PS_PER_S)
        in_flight = requests_per_s * e2e_s
    else:
        in_flight = _in_flight(records, start_ps, end_ps)
        requests_per_s = in_flight / e2e_s
    return LoadMeans(
        requests=len(rows),
        latencies_s=latencies_s,
        waiting_s=_mean_wait_s(measured),
        requests_per_s=requests_per_s,
        in_flight=in_flight,
    )


def _in_flight(records: RequestTable, start_ps: int, end_ps: int) -> float:
    """Return the mean number of requests in the system between two times."""
    done = records.completed
    arrival, finish = records.arrival_ps[done], records.finish_ps[done]
    inside = np.clip(finish, start_ps, end_ps) - np.clip(arrival, start_ps, end_ps)
    return float(inside.sum(dtype=float)) / (end_ps - start_ps)  # an int64 sum may overflow on long runs


def steady_intervals(
    records: RequestTable, rows: npt.NDArray[np.int64], gaps: GapCounter | None
) -> dict[str, Interval | None]:
    """Return the interval of each percentile for the requests at `rows`, as a dict with the summary's keys."""
    names = [f"p{percent}_{metric}_ms" for metric in METRICS for percent in PERCENTILES]
    if not len(rows):
        return dict.fromkeys(names)
    measured = records.rows(rows)
    found = {
        name: percentile_intervals(measured.latencies(name, per_ps=PS_TO_MS), PERCENTILES)
        for name in REQUEST_METRICS
    }
    if gaps is not None:
        batches = gaps.batches().histograms()
        ends = int(measured.arrival_ps[0]), int(measured.arrival_ps[-1])
        begin, end = _share_of_gaps_before(records, ends) * len(batches)
        found["itl"] = gap_intervals_ms(batches[math.ceil(begin) : math.floor(end)], PERCENTILES)
    known = {
        f"p{percent}_{name}_ms": interval
        for name, intervals in found.items()
        for percent, interval in zip(PERCENTILES, intervals, strict=True)
    }
    return dict.fromkeys(names) | known


def _share_of_gaps_before(records: RequestTable, instants_ps: Sequence[int]) -> FloatArray:
    """Return an estimate of the share of all gaps between deliveries that precede each of these times."""
    done = records.completed & (records.output_tokens > 1)
    first, finish = records.first_token_ps[done], records.finish_ps[done]
    weights = records.output_tokens[done] - 1
    total = max(int(weights.sum()), 1)
    lasted = np.maximum(finish - first, 1)
    passed = [float((np.clip((at_ps - first) / lasted, 0, 1) * weights).sum()) for at_ps in instants_ps]
    return np.array(passed) / total


def whole_run_means(summary: LatencySummary, records: RequestTable) -> LoadMeans | None:
    """Return means over all completed requests of a run, as `vllm bench serve` prints them; None if none completed."""
    e2e = summary.e2el_ms
    if e2e is None:
        return None
    known = ((key, summary.latencies_ms[key]) for key in REQUEST_METRICS)
    return LoadMeans(
        requests=summary.completed,
        latencies_s={key: None if latency is None else latency.mean / 1e3 for key, latency in known},
        waiting_s=_mean_wait_s(records.rows(records.completed)),
        requests_per_s=summary.request_throughput,
        in_flight=summary.request_throughput * e2e.mean / 1e3,
    )


def _mean_wait_s(done: RequestTable) -> float:
    return float((done.first_scheduled_ps - done.arrival_ps).mean()) / PS_PER_S
