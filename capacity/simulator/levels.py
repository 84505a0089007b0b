"""Service levels held against a run: what was asked, what was attained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from capacity.errors import InvalidInput
from capacity.metrics import PERCENTILES, LatencySummary, RequestTable
from capacity.step import PS_PER_S
from capacity.workload import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class SloLevel:
    """One service level. `value_ms` is its percentile over all requests (None: infinite, too many never ended; or a
    limit owed to each request); `attained_fraction` the share of requests within the limit, None for gaps."""

    slo: str
    limit_ms: float
    value_ms: float | None
    attained_fraction: float | None
    met: bool


def hold(slos: Iterable[Slo], records: RequestTable, summary: LatencySummary) -> tuple[SloLevel, ...]:
    """Each of `slos` against all requests of a run; one that did not complete is infinitely late.

    A limit without a percentile is owed to every request. Raises InvalidInput for a percentile of gaps that the
    summary does not have.
    """
    return tuple(
        _of_gaps(slo, summary) if slo.metric == "itl" else _of_requests(slo, records) for slo in slos
    )


def _of_requests(slo: Slo, records: RequestTable) -> SloLevel:
    done = records.completed
    values_s = np.full(len(records), np.inf)
    arrival, first, finish = records.arrival_ps[done], records.first_token_ps[done], records.finish_ps[done]
    if slo.metric == "ttft":
        values_s[done] = (first - arrival) / PS_PER_S
    elif slo.metric == "e2el":
        values_s[done] = (finish - arrival) / PS_PER_S
    else:
        gaps = records.output_tokens[done] - 1
        values_s[done] = np.where(gaps > 0, (finish - first) / PS_PER_S / np.maximum(gaps, 1), 0.0)
    within = values_s <= slo.limit_s
    value_s = None
    if slo.percentile is not None:
        # the smallest value that the share reaches where infinity is beside it: no interpolation with it
        lower = float(np.percentile(values_s, slo.percentile, method="lower"))
        higher = float(np.percentile(values_s, slo.percentile, method="higher"))
        value_s = slo.value_s(values_s) if np.isfinite(higher) else (lower if lower == higher else np.inf)
    met = bool(within.all()) if slo.percentile is None else slo.attained_by(value_s)
    return SloLevel(
        slo=str(slo),
        limit_ms=slo.limit_s * 1e3,
        value_ms=None if value_s is None or not np.isfinite(value_s) else value_s * 1e3,
        attained_fraction=float(within.mean()),
        met=met,
    )


def _of_gaps(slo: Slo, summary: LatencySummary) -> SloLevel:
    if slo.percentile not in PERCENTILES:
        raise InvalidInput(f"{slo}: gaps have the percentiles {', '.join(f'p{p}' for p in PERCENTILES)}")
    found = summary.itl_ms
    value_ms = None if found is None else found.percentiles[int(slo.percentile)]
    return SloLevel(
        slo=str(slo),
        limit_ms=slo.limit_s * 1e3,
        value_ms=value_ms,
        attained_fraction=None,
        met=slo.attained_by(None if value_ms is None else value_ms / 1e3),
    )
