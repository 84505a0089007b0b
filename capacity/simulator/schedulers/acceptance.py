"""Acceptance rates of draft tokens that differ between requests, as equally likely classes of requests.

How hard it is to guess tokens depends on the kind of text (code, translation, small talk) and changes little within a
request, so the acceptances of one request are correlated. Acceptances that are drawn independently by position have no
such correlation. The model is logistic with a random effect per request: the class of a request shifts the log-odds of
every acceptance by the same amount, drawn from a normal distribution of standard deviation `spread`. This is close to a
Beta distribution of the same variance: a spread of 0.5 is ±0.10 around a rate of 0.7. Between the six tasks of
Spec-Bench the spread is 0.2 (EAGLE-2 on Vicuna-7B, from the speedups of the tasks, 2025-04). Between single requests it
is larger, but no published value is known. The model does not cover requests whose character changes over time.
"""

import math
from statistics import NormalDist

NUM_CLASSES = 16
BISECTION_STEPS = 80  # bisection steps of the search for a log-odds

RateTable = tuple[tuple[float, ...], ...]  # classes x depth


def rate_table(rates: tuple[float, ...], spread: float) -> RateTable:
    """Return acceptance rates by class and depth; without a spread, one class with the given rates.

    The fraction of drafts accepted at each depth over all classes stays equal to `rates`. Classes with high rates
    reach deeper drafts more often, so the rates of a class at these depths are below the overall rate.
    """
    if not spread:
        return (rates,)
    shifts = [spread * z for z in _standard_normals(NUM_CLASSES)]
    reached = [1.0] * NUM_CLASSES
    columns = []
    for rate in rates:
        column = _rates_at_depth(rate, shifts, reached)
        reached = [share * accepted for share, accepted in zip(reached, column)]
        columns.append(column)
    return tuple(zip(*columns))


def _standard_normals(count: int) -> list[float]:
    """Return `count` equally likely values of a standard normal distribution: quantiles scaled to a variance of 1."""
    middles = [NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    deviation = math.sqrt(sum(z * z for z in middles) / count)
    return [z / deviation for z in middles]


def _rates_at_depth(rate: float, shifts: list[float], reached: list[float]) -> tuple[float, ...]:
    """Return the acceptance rate of each class at one depth. Their mean, weighted by the share of each class's drafts
    that reach this depth (`reached`), is `rate`."""
    if rate in (0.0, 1.0) or not any(reached):
        return (rate,) * len(shifts)
    low, high = -40.0 - max(shifts), 40.0 + max(shifts)
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        accepted = sum(share / (1 + math.exp(-middle - shift)) for share, shift in zip(reached, shifts))
        low, high = (middle, high) if accepted < rate * sum(reached) else (low, middle)
    return tuple(1 / (1 + math.exp(-low - shift)) for shift in shifts)
