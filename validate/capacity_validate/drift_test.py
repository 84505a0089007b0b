"""A test that detects a change of a server: a CUSUM of recursive residuals with a known rate of false alarms.

A line over the logarithm of the predicted latency is fitted to the prediction errors so far, because a model error
that depends on the load is not a change of the server. The distance of the next error from this line has Student's t
distribution while nothing changes. It is converted to a standard normal quantile, which is independent of the earlier
quantiles for any line and any scatter. So the test needs no training period and no knowledge of the server's scatter.
Sources: recursive residuals by Brown, Durbin and Evans (J. R. Statist. Soc. B 37, 1975); quantiles in a CUSUM by
Hawkins (The Statistician 36, 1987). Quantiles are limited to -3 to 3, so that a single outlier raises no alarm.

Correlated errors look like a change. A change that the CUSUM finds must therefore be found again after the quantiles
are divided by sqrt((1 + r) / (1 - r)), by which the correlation r of neighbouring errors increases the standard
deviation of a sum. r is one standard error above its estimate. The estimate uses differences between errors on the
same side of the change, which the change does not affect.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capacity.workload.columns import FloatArray

ALLOWANCE = 0.5  # of the CUSUM: detects a change of one standard deviation fastest
MAX_QUANTILE = 3.0
FALSE_ALARM_WINDOWS = 10_000  # mean number of windows to a false alarm
FALSE_ALARMS = {0.0: FALSE_ALARM_WINDOWS, 0.3: 5400, 0.6: 1700, 0.8: 440}
"""Mean number of windows to a false alarm of `watch` by the correlation of neighbouring windows. Measured on 60,000
windows of simulated autoregressions of order 1 with the scatter of repeated runs, each time testing the last 64
windows, 2026-11-29. Without correlation there was no false alarm, so that entry is the lower bound of the CUSUM."""
SIDED_TESTS = 4  # of a server together: two metrics, two directions
MIN_ERRORS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A detected change: the index of the first changed error (`start`), and of the one that raised the alarm."""

    start: int
    detected: int


def cusum_limit(windows: float) -> float:
    """Return the limit of a one-sided CUSUM whose mean number of windows to a false alarm is `windows`.

    Siegmund's approximation (Sequential Analysis, 1985): (exp(b) - b - 1) / (2 k^2) with b = 2 k (limit + 1.166) and
    the allowance k.
    """
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        found = (math.expm1(middle) - middle) / (2 * ALLOWANCE**2)
        low, high = (middle, high) if found < windows else (low, middle)
    return high / (2 * ALLOWANCE) - 1.166


def find_drift(errors: Sequence[float], loads: Sequence[float]) -> Drift | None:
    """Return the first change of `errors`, in either direction; None if there is none.

    `loads`: the x values of the fitted line, one per error.
    """
    limit = cusum_limit(FALSE_ALARM_WINDOWS * SIDED_TESTS)
    quantiles = recursive_quantiles(errors, loads)
    found = first_change(quantiles, limit)
    if found is None:
        return None
    r = min(max(_correlation(errors, loads, found.start) + 1 / math.sqrt(len(errors)), 0.0), 0.97)
    return first_change(quantiles * math.sqrt((1 - r) / (1 + r)), limit)


def first_change(quantiles: FloatArray, limit: float) -> Drift | None:
    """Return the first change, in either direction, of standard normal quantiles by a CUSUM with this limit."""
    sums, starts = [0.0, 0.0], [0, 0]
    for at, quantile in enumerate(quantiles.tolist()):
        for side, sign in enumerate((1.0, -1.0)):
            sums[side] = max(0.0, sums[side] + sign * quantile - ALLOWANCE)
            if sums[side] == 0.0:
                starts[side] = at + 1
            elif sums[side] > limit:
                return Drift(start=starts[side], detected=at)
    return None


def _correlation(errors: Sequence[float], loads: Sequence[float], start: int) -> float:
    """Return the correlation of neighbouring errors around a line over `loads` whose constant changes at `start`.

    The mean squares of differences over two windows and over one have the ratio 1 + r in an autoregression of order 1.
    """
    after = np.arange(len(errors)) >= start
    design = np.column_stack([~after, after, loads])
    values = np.asarray(errors, dtype=np.float64)
    residuals = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    squares = [
        float(np.mean((residuals[lag:] - residuals[:-lag])[after[lag:] == after[:-lag]] ** 2))
        for lag in (1, 2)
    ]
    return squares[1] / squares[0] - 1 if squares[0] > 0 else 0.0


def recursive_quantiles(errors: Sequence[float], loads: Sequence[float]) -> FloatArray:
    """Return each error's normal quantile, given the line through earlier errors; 0 for the first `MIN_ERRORS`."""
    from scipy.special import ndtri, stdtr

    x, y = (np.asarray(each, dtype=np.float64) - (each[0] if len(each) else 0.0) for each in (loads, errors))
    n = np.arange(len(x))  # of earlier errors
    before = np.maximum(n, 1)

    def earlier(values: FloatArray) -> FloatArray:
        return np.concatenate([[0.0], np.cumsum(values)[:-1]]) if len(values) else values

    mean_x, mean_y = earlier(x) / before, earlier(y) / before
    xx, xy, yy = (
        earlier(x * x) - n * mean_x**2,
        earlier(x * y) - n * mean_x * mean_y,
        earlier(y * y) - n * mean_y**2,
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        sloped = xx > 1e-9 * before
        slope = np.where(sloped, xy / xx, 0.0)
        leverage = 1 / before + np.where(sloped, (x - mean_x) ** 2 / xx, 0.0)
        degrees = np.maximum(n - 1 - sloped, 1)
        scatter = np.sqrt(np.maximum(yy - slope * xy, 0.0) / degrees)
        t = (y - mean_y - slope * (x - mean_x)) / scatter / np.sqrt(1 + leverage)
        quantiles = np.clip(np.nan_to_num(ndtri(stdtr(degrees, t))), -MAX_QUANTILE, MAX_QUANTILE)
    return np.where((n >= MIN_ERRORS) & (scatter > 0), quantiles, 0.0)
