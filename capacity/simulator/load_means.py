"""Means over the steady part of a run, what clients see for as long as the load lasts; and over all of it.

A whole run also holds its warm-up (of a closed loop the first wave, which arrives all at once as none does later) and
its drain; the longer the run, the nearer its means come to those of the steady part.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from capacity.simulator.metrics import LatencySummary, RequestTable
from capacity.step import PS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeans:
    """Means over `requests` requests, on the clocks of `vllm bench serve`; `tpot_s` is None for single tokens.

    `waiting_s` is the part of `ttft_s` before the first token is scheduled, the way to the engine included.
    `in_flight` is the mean number of requests in the system, waiting included: `requests_per_s` * `e2e_s`.
    """

    requests: int
    ttft_s: float
    waiting_s: float
    tpot_s: float | None
    e2e_s: float
    requests_per_s: float
    in_flight: float

    def to_dict(self) -> dict[str, float | None]:
        """JSON values by the names of `vllm bench serve`, latencies in ms."""
        seconds = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2el": self.e2e_s}
        shown = asdict(self)
        return {
            "requests": shown["requests"],
            **{f"mean_{name}_ms": None if mean is None else mean * 1e3 for name, mean in seconds.items()},
            "request_throughput": shown["requests_per_s"],
            "mean_in_flight": shown["in_flight"],
        }


def steady_means(records: RequestTable, rows: npt.NDArray[np.int64], *, clocked: bool) -> LoadMeans | None:
    """Means over completed requests, the `rows` of the steady part in order of arrival; None of fewer than two.

    Of `clocked` arrivals the rate is theirs, and how many are in flight follows (Little). Of a closed loop those in
    flight are counted over time, and the rate follows: its arrivals may come in waves that a count would cut.
    """
    if len(rows) < 2:
        return None
    arrival, first, finish = (
        column[rows] for column in (records.arrival_ps, records.first_token_ps, records.finish_ps)
    )
    decoded = records.output_tokens[rows] - 1
    several = decoded > 0
    tpot = ((finish - first)[several] / decoded[several]).mean() if several.any() else None
    e2e_s = float((finish - arrival).mean()) / PS_PER_S
    start_ps, end_ps = int(arrival[0]), int(arrival[-1])
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
        ttft_s=float((first - arrival).mean()) / PS_PER_S,
        waiting_s=float((records.first_scheduled_ps[rows] - arrival).mean()) / PS_PER_S,
        tpot_s=None if tpot is None else float(tpot) / PS_PER_S,
        e2e_s=e2e_s,
        requests_per_s=requests_per_s,
        in_flight=in_flight,
    )


def _in_flight(records: RequestTable, start_ps: int, end_ps: int) -> float:
    """Mean over a stretch of time of the requests that were in the system."""
    done = records.completed
    arrival, finish = records.arrival_ps[done], records.finish_ps[done]
    inside = np.clip(finish, start_ps, end_ps) - np.clip(arrival, start_ps, end_ps)
    return float(inside.sum(dtype=float)) / (end_ps - start_ps)  # over 2**63 in a day of many


def whole_means(summary: LatencySummary, records: RequestTable) -> LoadMeans | None:
    """Means over all requests of a run, as `vllm bench serve` prints them; None where none was completed."""
    ttft, tpot, e2e = summary.ttft_ms, summary.tpot_ms, summary.e2el_ms
    if ttft is None or e2e is None:
        return None
    done = records.completed
    waited = (records.first_scheduled_ps - records.arrival_ps)[done]
    return LoadMeans(
        requests=summary.completed,
        ttft_s=ttft.mean / 1e3,
        waiting_s=float(waited.mean()) / PS_PER_S,
        tpot_s=None if tpot is None else tpot.mean / 1e3,
        e2e_s=e2e.mean / 1e3,
        requests_per_s=summary.request_throughput,
        in_flight=summary.request_throughput * e2e.mean / 1e3,
    )
