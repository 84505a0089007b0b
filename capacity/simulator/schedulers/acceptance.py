"""How well drafts go differs between requests: classes of requests, equally likely, with rates of their own.

A request's drafts are about equally hard to guess all the way (code, a translation, small talk), so accepted tokens of
one request go together, which draws by position alone do not show. The model is a logistic one with a random effect of
the request: its class shifts the log-odds of every acceptance by the same number, a normal one of standard deviation
`spread`. Close to a Beta of the same variance: 0.5 is ±0.10 around a rate of 0.7.
Between the six tasks of Spec-Bench it is 0.2 (EAGLE-2 on Vicuna-7B, from the tasks' speedups, 2025-04); between
single requests it is larger, and nobody publishes it. Not in it: a request that changes its character on the way.
"""

from __future__ import annotations

import math
from statistics import NormalDist

CLASSES = 16
HALVINGS = 80  # of the interval in which a log-odds is sought

RateTable = tuple[tuple[float, ...], ...]  # classes x depth


def rate_table(rates: tuple[float, ...], spread: float) -> RateTable:
    """Rates by class and depth; one class, of `rates` themselves, without a spread.

    The share of drafts accepted at each depth, over all classes alike, stays that of `rates`: deeper drafts are
    reached by good classes more often, so their rates are lower class by class than the rate of all.
    """
    if not spread:
        return (rates,)
    shifts = [spread * z for z in _standard_normals(CLASSES)]
    reached = [1.0] * CLASSES
    columns = []
    for rate in rates:
        column = _column(rate, shifts, reached)
        reached = [share * accepted for share, accepted in zip(reached, column)]
        columns.append(column)
    return tuple(zip(*columns))


def _standard_normals(count: int) -> list[float]:
    """The middles of equally likely slices of a normal distribution, stretched to a variance of 1."""
    middles = [NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    deviation = math.sqrt(sum(z * z for z in middles) / count)
    return [z / deviation for z in middles]


def _column(rate: float, shifts: list[float], reached: list[float]) -> tuple[float, ...]:
    """Rates of the classes at one depth, which classes reach as often as `reached` says, with `rate` as their mean."""
    if rate in (0.0, 1.0) or not any(reached):
        return (rate,) * len(shifts)
    low, high = -40.0 - max(shifts), 40.0 + max(shifts)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        accepted = sum(share / (1 + math.exp(-middle - shift)) for share, shift in zip(reached, shifts))
        low, high = (middle, high) if accepted < rate * sum(reached) else (low, middle)
    return tuple(1 / (1 + math.exp(-low - shift)) for shift in shifts)
