"""The traffic of a fleet's pools: thresholds of length, the requests between two of them, and what each pool owes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.planning.evaluation.slo_evaluation import Goal

if TYPE_CHECKING:
    from capacity.workload import Workload
    from capacity.workload.columns import IntArray

QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.98)  # of the lengths: thresholds to try
ROUND_TOKENS = 64  # those are rounded up to this
LONG_SHARES = (0.5, 0.9)  # of what the fleet may miss, given to the longest requests; besides alike
MOST_MISSED = 50.0  # per cent of a pool's requests: with more, a queue that grows for ever would do


class Span(NamedTuple):
    """The requests longer than one number of tokens, and up to another; None: without such a limit."""

    above: int | None = None
    up_to: int | None = None


def lengths_of(workload: Workload, split_by: str) -> IntArray:
    """What the router tells requests apart by, tokens of each."""
    return workload.prompt_tokens if split_by == "prompt" else workload.asked_tokens


def usual_thresholds(lengths: IntArray) -> tuple[int, ...]:
    """Thresholds at quantiles of the lengths, rounded up; none that leaves one side empty."""
    at = {-(-int(np.quantile(lengths, share)) // ROUND_TOKENS) * ROUND_TOKENS for share in QUANTILES}
    return tuple(sorted(tokens for tokens in at if lengths.min() <= tokens < lengths.max()))


def spans_of(workloads: Sequence[Workload], threshold: int, split_by: str) -> tuple[Span, ...]:
    """Up to the threshold and above; all in one where one side has no requests.

    Raises InvalidInput where a side has requests in some draws only.
    """
    spans = (Span(up_to=threshold), Span(above=threshold))
    for span in spans:
        counts = [len(_within(lengths_of(workload, split_by), span)) for workload in workloads]
        if max(counts) == 0:
            return (Span(),)
        if min(counts) == 0:
            raise InvalidInput(
                f"a threshold of {threshold:,} tokens leaves a pool without requests in some draws of the traffic: "
                "give more (--num-prompts), or another --split-at"
            )
    return spans


def part_of(workloads: Sequence[Workload], span: Span, split_by: str) -> list[Workload]:
    """The requests of a span, every draw of them; empty where some draw has none."""
    if span == Span():
        return list(workloads)
    rows = [_within(lengths_of(workload, split_by), span) for workload in workloads]
    return [_part(w, each) for w, each in zip(workloads, rows, strict=True)] if all(map(len, rows)) else []


def _within(lengths: IntArray, span: Span) -> IntArray:
    above = lengths > (-1 if span.above is None else span.above)
    return np.flatnonzero(above if span.up_to is None else above & (lengths <= span.up_to))


def _part(workload: Workload, rows: IntArray) -> Workload:
    """Some requests, of which as large a share comes in the long run."""
    asked = workload.asked_per_s
    return replace(
        workload.take(rows), asked_per_s=None if asked is None else asked * len(rows) / len(workload)
    )


def goals_of_pools(goal: Goal, long_share: float) -> list[tuple[Goal, Goal]]:
    """Goals of the pools for shorter requests, each, and of that for the longest, so that what they may miss adds up
    to what the fleet may miss: alike, and with more of it for the longest. `long_share`: of the requests."""
    ways = [(goal, goal)]
    for of_long in LONG_SHARES:
        if of_long > long_share:
            factors = (1 - of_long) / (1 - long_share), of_long / long_share
            ways.append((_allowing(goal, factors[0]), _allowing(goal, factors[1])))
    return ways


def _allowing(goal: Goal, factor: float) -> Goal:
    """So many times the misses; levels of gaps between tokens, kept at few percentiles, stay as they are."""

    def percentile(before: float) -> float:
        return round(100 - min((100 - before) * factor, MOST_MISSED), 4)

    slos = tuple(
        slo
        if slo.percentile is None or not slo.of_requests
        else replace(slo, percentile=percentile(slo.percentile))
        for slo in goal.slos
    )
    return Goal(slos=slos, goodput_target=percentile(100 * goal.goodput_target) / 100)
