"""Verdict on a run: stable, saturated, overloaded or inconclusive because it is too short, with the evidence.

There are two independent tests. *Capacity*: offered load is compared with the rate at which the deployment drains a
backlog of the same requests, sent all at once. *Growth*: the trend of the number of requests in the system over the
run. Latencies of an overloaded run depend on its length, so they do not describe the deployment.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from capacity.base.record import to_plain_values
from capacity.simulator.capacity_probe import Capacity
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.intervals import Interval, t_quantile
from capacity.simulator.load_means import LoadMeans, steady_intervals, steady_means
from capacity.simulator.metrics import RequestTable
from capacity.simulator.peaks import MIN_RESIDENCES, Peak, local_variation, peak_load
from capacity.step import PS_PER_S
from capacity.workload import Workload
from capacity.workload.columns import FloatArray, IntArray

TOO_SHORT: Final = "too short to tell"
Judgement = Literal[
    "stable", "stable with bursts", "not all served", "saturated", "overloaded", "too short to tell"
]
STABLE: tuple[Judgement, ...] = ("stable", "stable with bursts")
UNSETTLED: tuple[Judgement, ...] = ("overloaded", TOO_SHORT)  # without a steady state to price
Bools = npt.NDArray[np.bool_]

STABLE_LOAD = 0.95  # of capacity; above, the correlation time of queues is longer than most runs
MIN_REQUESTS = 100
MAX_GROWTH = 0.05  # share of arrivals that accumulate, above which a run is overloaded
MAX_BURST_SHARE = 0.1  # share of the run; longer bursts, including their drain, make it overloaded
MAX_LOST_SHARE = 0.01  # share of requests; if more do not complete, the verdict is "not all served"
WINDOWS = 10
FRONT_END_BOUND = 0.95  # utilisation of the API servers above which they limit the rate


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndLimit:
    """Maximum throughput of a deployment's API servers, independent of its engines."""

    requests_per_s: float
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on a run and its reason. Fields are None if they do not apply (closed loop) or cannot be measured.

    `load_fraction` is the offered rate divided by the capacity, for the whole run. `peak_load_fraction` is this ratio
    in the interval `peak_s`, the one with the most arrivals above capacity; both are None unless this excess is
    significant. `growth_fraction` is the share of arrivals that accumulate in the system. `measured_s` is (begin, end)
    of the run without warm-up and drain; `measured_requests` is the number of requests that arrived in it, and `steady`
    has their means (None without a steady state: overloaded or too short). `is_stable`: the completed requests are from
    a steady state without backlog, and their percentiles have intervals. `bound_by` names the API server if it limits
    throughput; `reason` then does so too.
    """

    verdict: Judgement
    reason: str
    offered_requests_per_s: float | None
    capacity_requests_per_s: float | None
    capacity_error_fraction: float | None
    load_fraction: float | None
    peak_load_fraction: float | None
    peak_s: tuple[float, float] | None
    growth_fraction: float | None
    measured_s: tuple[float, float]
    measured_requests: int
    steady: LoadMeans | None
    is_stable: bool
    intervals_ms: Mapping[str, Interval | None]
    bound_by: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return JSON values: `verdict`, its `evidence`, and `intervals` of the steady part (null without one)."""
        names = (
            "offered_requests_per_s",
            "capacity_requests_per_s",
            "capacity_error_fraction",
            "load_fraction",
            "peak_load_fraction",
            "growth_fraction",
            "measured_requests",
        )
        values = ((name, getattr(self, name)) for name in names)
        evidence: dict[str, object] = {name: None if value == math.inf else value for name, value in values}
        evidence["peak_s"] = None if self.peak_s is None else list(self.peak_s)
        evidence["measured_s"] = list(self.measured_s)
        evidence["steady"] = None if self.steady is None else self.steady.to_dict()
        return {
            "verdict": self.verdict,
            "verdict_reason": self.reason,
            "evidence": evidence,
            "intervals": to_plain_values(self.intervals_ms),
        }


@dataclass(frozen=True, slots=True)
class _Run:
    """Requests of a run in order of arrival, times in seconds; `order` has the index of each in the run's records."""

    order: IntArray
    arrival: FloatArray
    finish: FloatArray  # the arrival, if the request did not complete
    completed: Bools
    span_s: float  # from the first to the last arrival
    stay_s: float  # median latency

    @property
    def is_long_enough(self) -> bool:
        return len(self.arrival) >= MIN_REQUESTS and self.span_s >= MIN_RESIDENCES * self.stay_s

    @property
    def offered_requests_per_s(self) -> float:
        return len(self.arrival) / self.span_s if self.span_s else math.inf

    def find_peak(self, capacity: Capacity | None) -> Peak | None:
        if capacity is None or not self.completed.any():
            return None
        latency = (self.finish - self.arrival)[self.completed]
        return peak_load(self.arrival, capacity.requests_per_s, float(np.quantile(latency, 0.25)))


def _make_run(records: RequestTable) -> _Run:
    order = np.argsort(records.arrival_ps, kind="stable")
    arrival = records.arrival_ps[order] / PS_PER_S
    completed = records.completed[order]
    finish = np.where(completed, records.finish_ps[order] / PS_PER_S, arrival)
    stay_s = float(np.median((finish - arrival)[completed])) if completed.any() else 0.0
    return _Run(order, arrival, finish, completed, float(arrival[-1] - arrival[0]), stay_s)


def judge(
    records: RequestTable,
    workload: Workload,
    *,
    capacity: Capacity | None = None,
    gaps: GapCounter | None = None,
    losses: Mapping[str, int] | None = None,
    front_end: FrontEndLimit | None = None,
    way_s: float = 0.0,
) -> Verdict:
    """Return the verdict on a run of `workload` with these `records`. Without `capacity` only growth is tested.

    If `gaps` between token deliveries are given, their percentiles get intervals too. `losses`: numbers of incomplete
    requests by reason. `front_end`: limit of the API servers, which is the capacity if it is lower. `way_s`: latency
    from the client to the engine, which does not count as waiting.
    """
    run, clocked = _make_run(records), not workload.is_closed_loop
    growth = _growth(run.arrival, run.finish)
    offered = run.offered_requests_per_s if clocked else None
    limit = limited_capacity(capacity, front_end) if offered and math.isfinite(offered) else capacity
    load = offered / limit.requests_per_s if offered and limit else None
    peak = run.find_peak(limit) if clocked else None
    measured = _steady_part(run, peak, clocked=clocked)
    verdict, reason = (
        _judge_open_loop(run, limit, load, peak, growth)
        if clocked
        else _judge_closed_loop(records, workload, growth, run.is_long_enough, way_s)
    )
    bound_by = _front_end_bound(records, front_end, capacity, load)
    if bound_by is not None:
        verdict = "saturated" if not clocked and verdict == "stable" else verdict
        reason = f"{reason}; {bound_by}"
    served = verdict  # of the completed requests
    if not run.completed.all():
        verdict, reason = _add_losses(verdict, reason, run.completed, losses or {})
    is_stable = served in STABLE and verdict != TOO_SHORT
    has_means = is_stable or (served == "saturated" and verdict != TOO_SHORT)
    bounds = run.arrival[measured]
    return Verdict(
        verdict=verdict,
        reason=reason,
        offered_requests_per_s=offered,
        capacity_requests_per_s=limit.requests_per_s if limit else None,
        capacity_error_fraction=limit.error_fraction if limit else None,
        load_fraction=load,
        peak_load_fraction=peak.load if peak else None,
        peak_s=(peak.start_s, peak.end_s) if peak else None,
        growth_fraction=growth,
        measured_s=(float(bounds[0]), float(bounds[-1])) if len(bounds) else (0.0, 0.0),
        measured_requests=int(measured.sum()),
        steady=steady_means(records, run.order[measured], clocked=clocked) if has_means else None,
        is_stable=is_stable,
        intervals_ms=steady_intervals(records, run.order[measured] if is_stable else run.order[:0], gaps),
        bound_by=bound_by,
    )


def limited_capacity(capacity: Capacity | None, front_end: FrontEndLimit | None) -> Capacity | None:
    """Return the lower of two capacities, that of the engines and that of the API servers; None if both are
    unknown."""
    if front_end is None or (capacity is not None and capacity.requests_per_s <= front_end.requests_per_s):
        return capacity
    means = None if capacity is None else capacity.means
    return Capacity(requests_per_s=front_end.requests_per_s, error_fraction=0.0, means=means)


def _front_end_bound(
    records: RequestTable, front_end: FrontEndLimit | None, capacity: Capacity | None, load: float | None
) -> str | None:
    """Return the reason if the API servers limit the throughput, and not the engines (`capacity`); else None."""
    if front_end is None:
        return None
    is_lower = capacity is None or front_end.requests_per_s < capacity.requests_per_s
    exceeded = is_lower and load is not None and load > STABLE_LOAD
    if not exceeded and _front_end_utilization(records, front_end) < FRONT_END_BOUND:
        return None
    return f"bound by the API server: at most {front_end.output_tokens_per_s:,.0f} output tokens/s"


def _front_end_utilization(records: RequestTable, front_end: FrontEndLimit) -> float:
    """Return the utilisation of the API servers between the first and the last token."""
    done = records.completed
    if not done.any():
        return 0.0
    span_ps = int(records.finish_ps[done].max()) - int(records.first_token_ps[done].min())
    return int(done.sum()) / front_end.requests_per_s * PS_PER_S / span_ps if span_ps > 0 else 0.0


def _add_losses(
    verdict: Judgement, reason: str, completed: Bools, losses: Mapping[str, int]
) -> tuple[Judgement, str]:
    """Add the number of incomplete requests to verdict and reason. If the run is not overloaded, the verdict becomes
    "not all served" above 1 % of the requests, and "too short to tell" if no request completed."""
    lost = len(completed) - int(completed.sum())
    kinds = ", ".join(f"{count:,} {what}" for what, count in losses.items() if count)
    became = f" ({kinds})" if kinds else ""
    if not completed.any():
        none = f"none of the {lost:,} requests completed{became}"
        return (verdict, f"{reason}; {none}") if verdict == "overloaded" else (TOO_SHORT, none)
    lost_of_all = f"{lost:,} of {len(completed):,} requests"
    if lost > MAX_LOST_SHARE * len(completed) and verdict != "overloaded":
        share = f"{lost / len(completed):.0%}"
        return (
            "not all served",
            f"{lost_of_all} ({share}) did not complete{became}; the others: {verdict}, {reason}",
        )
    return verdict, f"{reason}; {lost_of_all} did not complete{became}"


def _format_rate(per_s: float) -> str:
    """Format a rate with three significant digits; from 100 on, as a whole number."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _judge_open_loop(
    run: _Run, capacity: Capacity | None, load: float | None, peak: Peak | None, growth: float | None
) -> tuple[Judgement, str]:
    span_s, count = run.span_s, len(run.arrival)
    offered = (
        f"{_format_rate(count / span_s)} requests/s offered" if span_s else "all requests arrive at once"
    )
    bursts = ""
    if load is not None and capacity is not None:
        share = f"{load:.0%} of the capacity" if math.isfinite(load) else "capacity"
        offered += f", {share} of {_format_rate(capacity.requests_per_s)} requests/s"
        chance = math.hypot(capacity.error_fraction, math.sqrt(local_variation(run.arrival) / count))
        if load > 1 + 2 * chance:
            return "overloaded", f"{offered}; the queue grows without bound"
        if peak is not None:
            bursts = _describe_burst(peak, capacity)
            if _is_lasting(peak, capacity, span_s, load):
                return "overloaded", bursts
    if growth is not None and growth > MAX_GROWTH and run.is_long_enough:
        return "overloaded", f"{offered}; {growth:.0%} of the requests accumulate in the queue"
    if not run.is_long_enough:
        if load is None and not span_s:
            return TOO_SHORT, "all requests arrive at once, and no backlog forms"
        return (
            TOO_SHORT,
            f"{count} requests over {span_s:.3g} s; a steady-state estimate needs {MIN_REQUESTS} requests over at "
            f"least {MIN_RESIDENCES * run.stay_s:.3g} s ({MIN_RESIDENCES} times the latency)",
        )
    if load is None:
        if growth is None:
            return TOO_SHORT, f"{offered}; neither capacity nor queue growth could be measured"
        return "stable", f"{offered}; no backlog forms"
    if load > STABLE_LOAD:
        return "saturated", f"{offered}; waiting times this close to the capacity are not reliable"
    return ("stable with bursts", f"{offered}; {bursts}") if bursts else ("stable", offered)


def _is_lasting(peak: Peak, capacity: Capacity, span_s: float, load: float) -> bool:
    """Return whether bursts plus the time to serve their excess exceed 10 % of the run, or load is >= 0.95."""
    if load >= STABLE_LOAD:
        return True
    aftermath_s = peak.all_excess / (capacity.requests_per_s * (1 - load))
    return peak.all_s + aftermath_s > MAX_BURST_SHARE * span_s


def _describe_burst(peak: Peak, capacity: Capacity) -> str:
    """Describe the highest burst above capacity: its time, load, excess requests, and the time to serve them."""
    behind_s = peak.excess / capacity.requests_per_s
    others = round(peak.all_s / (peak.end_s - peak.start_s)) - 1
    more = f"; {others} more intervals of this length exceed the capacity" if others else ""
    return (
        f"from {peak.start_s:,.0f} s to {peak.end_s:,.0f} s the offered load is {peak.load:.2f} times the capacity: "
        f"serving the {peak.excess:,.0f} excess requests takes {behind_s:,.0f} s{more}"
    )


def _judge_closed_loop(
    records: RequestTable, workload: Workload, growth: float | None, long_enough: bool, way_s: float
) -> tuple[Judgement, str]:
    """Return verdict and reason for a closed loop: saturated if requests wait for more than 10 % of their time,
    overloaded if sessions start faster than they end."""
    done = records.completed
    until_scheduled_ps = (records.first_scheduled_ps - records.arrival_ps)[done]
    waited_ps = (until_scheduled_ps - way_s * PS_PER_S).clip(0)
    stayed_ps = (records.finish_ps - records.arrival_ps)[done].sum(dtype=float)  # an int64 sum may overflow
    share = float(waited_ps.sum(dtype=float) / stayed_ps) if stayed_ps else 0.0
    sent, cap = "a closed loop", workload.concurrency
    if cap is not None:
        sent += f" of {cap} concurrent request{'' if cap == 1 else 's'}"
    needed = max(MIN_REQUESTS, 5 * (workload.concurrency or 0))
    if len(records) < needed:
        return TOO_SHORT, f"{sent}: {len(records)} requests; a steady-state estimate needs {needed}"
    if workload.concurrency is None:
        if not long_enough:
            needed_s = f"{MIN_RESIDENCES} times the latency of a request"
            return TOO_SHORT, f"{sent}: a steady-state estimate needs a run of at least {needed_s}"
        if growth is not None and growth > MAX_GROWTH:
            return (
                "overloaded",
                f"sessions start faster than they end; {growth:.0%} of the requests accumulate in the queue",
            )
    verdict: Judgement = "saturated" if share > 0.1 else "stable"
    return verdict, f"{sent}: requests spend {share:.0%} of their latency waiting"


def _steady_part(run: _Run, peak: Peak | None, *, clocked: bool) -> Bools:
    """Return a mask of the completed requests after the warm-up and before the drain.

    The warm-up ends where the standard error of the mean latency of later requests is smallest (MSER-5: White, 1997),
    at the latest in the middle of the run and before `peak`, because a burst is no warm-up. The first wave of a closed
    loop (not `clocked`), which arrives all at once, is left out too: only its TTFT is long, which a mean over random
    output lengths may not show. Requests that arrive within one residence time of the last arrival see a falling load;
    they are left out if at least half of the requests after the warm-up remain.
    """
    arrival, count = run.arrival, len(run.arrival)
    first_wave = 0 if clocked else int(np.searchsorted(arrival, arrival[0], side="right"))
    kept = np.ones(count, dtype=bool)
    if first_wave * 2 <= count:
        kept[:first_wave] = False
    batches = count // 5
    if batches >= 10:
        means = (run.finish - arrival)[: batches * 5].reshape(batches, 5).mean(axis=1)
        most = count if peak is None else int(np.searchsorted(arrival, peak.start_s))
        kept[: min(5 * _warm_up_batches(means), most)] = False
    drained = kept & (arrival <= arrival[-1] - run.stay_s)
    if drained.sum() * 2 >= kept.sum():
        kept = drained
    return kept & run.completed


def _warm_up_batches(means: FloatArray) -> int:
    """Return how many of the first `means` to omit, at most half, for the least error of the mean of the others."""
    backwards = means[::-1]
    counts = np.arange(1, len(means) + 1)
    sums, squares = np.cumsum(backwards), np.cumsum(backwards**2)
    errors = (squares - sums**2 / counts) / counts**2
    half = len(means) // 2
    return int(np.argmin(errors[::-1][: half + 1]))


def _growth(arrival: FloatArray, finish: FloatArray) -> float | None:
    """Return the share of arriving requests that accumulate in the system; 0 if the growth is not significant.

    It is the slope of the number of requests in the system, in windows of equal duration over the last three quarters
    of the arrival period, divided by the arrival rate. None if there are too few requests.
    """
    count = len(arrival)
    if count < MIN_REQUESTS or arrival[-1] <= arrival[0]:
        return None
    ended = np.searchsorted(np.sort(finish), arrival, side="right")
    present = np.arange(1, count + 1) - ended
    start_s = arrival[0] + 0.25 * (arrival[-1] - arrival[0])
    window = np.clip((arrival - start_s) / (arrival[-1] - start_s) * WINDOWS, -1, WINDOWS - 1)
    inside = window >= 0
    place = np.floor(window[inside]).astype(np.int64)
    members = np.bincount(place, minlength=WINDOWS)
    if (members == 0).any():
        return None
    means = np.bincount(place, weights=present[inside], minlength=WINDOWS) / members
    at = np.arange(WINDOWS) - (WINDOWS - 1) / 2
    slope = float(at @ means) / float(at @ at)
    rest = means - means.mean() - slope * at
    error = math.sqrt(float(rest @ rest) / (WINDOWS - 2) / float(at @ at))
    if slope <= t_quantile(0.999, WINDOWS - 2) * error:
        return 0.0
    return slope * WINDOWS / float(inside.sum())
