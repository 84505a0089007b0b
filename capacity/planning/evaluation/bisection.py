"""Bisection of the request rate at which a deployment still meets the SLO."""

import math
from collections.abc import Generator

TOLERANCE = 0.02  # relative tolerance of the bisection
MAX_DOUBLINGS = 12


def highest_rate(
    guess: float, *, most: float = math.inf, resolution: float = 0.0
) -> Generator[float, bool, float]:
    """Find the highest rate that meets the SLO, within `TOLERANCE`: double or halve to bracket it, then bisect.

    A generator that yields rates and receives whether each meets the SLO. `most`: the highest rate to try.
    `resolution`: the smallest rate, and the smallest difference of rates, that matters. Returns 0 if the SLO is still
    missed after halving the guess `MAX_DOUBLINGS` times, `most` if that meets it, and infinity if the SLO is still met
    after doubling the guess as often.
    """
    low, high = 0.0, math.inf
    rate = min(guess, most)
    for _ in range(MAX_DOUBLINGS):
        if (yield rate):
            low = rate
            rate = min(rate * 2, most)
        else:
            high = rate
            rate /= 2
        if (low > 0 and high < math.inf) or low == most or high <= resolution:
            break
    if low == 0.0 or high == math.inf:
        return (low if low == most else high) if low else 0.0
    while high - low > max(TOLERANCE * low, resolution):
        middle = (low + high) / 2
        low, high = (middle, high) if (yield middle) else (low, middle)
    return low
