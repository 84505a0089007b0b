"""SLO evaluation of a run: value of each SLO's metric, share of requests within the limit, and goodput."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capacity.base.errors import InvalidInput
from capacity.simulator.distribution import PERCENTILES
from capacity.simulator.intervals import share_interval
from capacity.simulator.metrics import LatencySummary, RequestTable
from capacity.workload import Slo, Workload
from capacity.workload.windows import Window, evaluated_windows, find_windows, parse_window_s, window_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SloLevel:
    """Result for one SLO.

    `value_ms` is the percentile of the metric over all requests; None if it is infinite (too many requests did not
    complete) or if the limit applies to every request. `attained_fraction` is the share of requests within the limit
    (None for gaps between tokens); its 95 % interval exists for steady runs only, and a bound may be None.
    """

    slo: str
    limit_ms: float
    value_ms: float | None
    attained_fraction: float | None
    met: bool
    attained_low: float | None = None
    attained_high: float | None = None

    @property
    def ratio(self) -> float:
        """`value_ms` divided by the limit. For an SLO without a percentile: 0 if it is met, else 1 plus the share of
        requests beyond the limit."""
        if self.value_ms is not None:
            return self.value_ms / self.limit_ms
        if self.met or self.attained_fraction is None or self.slo.count(":") > 1:
            return 0.0 if self.met else math.inf
        return 2 - self.attained_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Rate and share of requests that meet all SLOs, each with a 95 % interval, and the result for each SLO."""

    requests_per_s: float
    requests_per_s_low: float | None
    requests_per_s_high: float | None
    attained_fraction: float
    attained_low: float | None
    attained_high: float | None
    limits: tuple[SloLevel, ...]


def goodput(slos: Sequence[Slo], records: RequestTable, summary: LatencySummary, *, steady: bool) -> Goodput:
    """Return the goodput under these SLOs; a request must meet all of them and must complete."""
    good = np.ones(len(records), dtype=bool)
    for slo in slos:
        good &= _values_s(slo, records) <= slo.limit_s
    low, high = _interval_bounds(good, steady)
    rate = len(records) / summary.duration if summary.duration else 0.0
    return Goodput(
        requests_per_s=rate * float(good.mean()),
        requests_per_s_low=None if low is None else rate * low,
        requests_per_s_high=None if high is None else rate * high,
        attained_fraction=float(good.mean()),
        attained_low=low,
        attained_high=high,
        limits=evaluate_slos(slos, records, summary, steady=steady),
    )


def _interval_bounds(within: npt.NDArray[np.bool_], steady: bool) -> tuple[float | None, float | None]:
    interval = share_interval(within) if steady else None
    return (None, None) if interval is None else (interval.low, interval.high)


def evaluate_slos(
    slos: Iterable[Slo], records: RequestTable, summary: LatencySummary, *, steady: bool = False
) -> tuple[SloLevel, ...]:
    """Return the result for each SLO over all requests of a run; the latency of an incomplete request is infinite.

    An SLO without a percentile applies to every request. `steady`: the run was steady, so the attained share has an
    interval. Raises InvalidInput for a percentile of gaps that the summary does not have.
    """
    return tuple(
        _request_level(slo, records, steady) if slo.applies_to_requests else _gap_level(slo, summary)
        for slo in slos
    )


def check_window(slo_window: str, slos: Sequence[Slo]) -> None:
    """Raise InvalidInput if `slo_window` is not a duration, or is set without SLOs."""
    parse_window_s(slo_window)
    if slo_window != "15m" and not slos:
        raise InvalidInput("--slo-window has no effect without SLOs: add --slo, or leave it out")


def evaluate_slos_in_windows(
    slos: Sequence[Slo],
    workload: Workload,
    records: RequestTable,
    summary: LatencySummary,
    slo_window: str,
    *,
    steady: bool,
) -> tuple[tuple[SloLevel, ...], Window | None]:
    """Return the SLO results in the worst time window of a run of `workload`, and that window.

    If the traffic is not longer than `slo_window`, return the results over all requests, and None.
    """
    windows = evaluated_windows(find_windows([workload], parse_window_s(slo_window))) if slos else ()
    held = [
        (evaluate_slos(slos, records.rows(window_rows(workload, window)), summary, steady=steady), window)
        for window in windows
    ]
    if not held:
        return evaluate_slos(slos, records, summary, steady=steady), None
    return max(held, key=lambda each: max(level.ratio for level in each[0]))


def _values_s(slo: Slo, records: RequestTable) -> npt.NDArray[np.float64]:
    """Return the SLO's metric (s) for every request; infinite if the request did not complete."""
    # TPOT of a single token is 0, as in the goodput of `vllm bench serve`
    return np.where(records.completed, np.nan_to_num(records.latency_s(slo.metric)), np.inf)


def _request_level(slo: Slo, records: RequestTable, steady: bool) -> SloLevel:
    values_s = _values_s(slo, records)
    within = values_s <= slo.limit_s
    low, high = _interval_bounds(within, steady)
    value_s = None
    if slo.percentile is not None:
        # no interpolation next to infinity
        lower = float(np.percentile(values_s, slo.percentile, method="lower"))
        higher = float(np.percentile(values_s, slo.percentile, method="higher"))
        value_s = slo.value_s(values_s) if np.isfinite(higher) else (lower if lower == higher else np.inf)
    met = bool(within.all()) if slo.percentile is None else slo.is_met(value_s)
    return SloLevel(
        slo=str(slo),
        limit_ms=slo.limit_s * 1e3,
        value_ms=None if value_s is None or not np.isfinite(value_s) else value_s * 1e3,
        attained_fraction=float(within.mean()),
        met=met,
        attained_low=low,
        attained_high=high,
    )


def gap_percentile_ms(slo: Slo, summary: LatencySummary) -> float | None:
    """Return the SLO's percentile of gaps between tokens; None without gaps. Raises InvalidInput for a percentile that
    runs do not record."""
    if slo.percentile not in PERCENTILES:
        raise InvalidInput(
            f"{slo}: for gaps between tokens, use one of the percentiles {', '.join(f'p{p}' for p in PERCENTILES)}"
        )
    gaps_ms = summary.latencies_ms[slo.metric]
    return None if gaps_ms is None else gaps_ms.percentiles[int(slo.percentile)]


def _gap_level(slo: Slo, summary: LatencySummary) -> SloLevel:
    value_ms = gap_percentile_ms(slo, summary)
    return SloLevel(
        slo=str(slo),
        limit_ms=slo.limit_s * 1e3,
        value_ms=value_ms,
        attained_fraction=None,
        met=slo.is_met(None if value_ms is None else value_ms / 1e3),
    )
