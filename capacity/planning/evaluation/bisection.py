"""Bisection of the request rate at which a deployment still meets the SLO."""

import math
from collections.abc import Generator

TOLERANCE = 0.02  # relative tolerance of the bisection
MAX_DOUBLINGS = 12


def highest_rate(
    guess: float, *, doublings: int = MAX_DOUBLINGS, resolution: float = 0.0
) -> Generator[float, bool, float]:
    """Find the highest rate that meets the SLO, within `TOLERANCE`: double or halve to bracket it, then bisect.

    A generator that yields rates and receives whether each meets the SLO. `resolution`: the smallest difference of
    rates that matters. Returns 0 if the SLO is still missed after halving the guess `doublings` times, and infinity if
    the SLO is still met after doubling the guess as often.
    """
    low, high = 0.0, math.inf
    rate = guess
    for _ in range(doublings):
        if (yield rate):
            low = rate
            rate *= 2
        else:
            high = rate
            rate /= 2
        if low > 0 and high < math.inf:
            break
    if low == 0.0 or high == math.inf:
        return high if low else 0.0
    while high - low > max(TOLERANCE * low, resolution):
        middle = (low + high) / 2
        low, high = (middle, high) if (yield middle) else (low, middle)
    return low
