"""Growth of a request rate over time, a forecast, and the hours until it reaches a limit, with their intervals.

A trend may continue or end at any time, and the rate itself varies. So the interval of the forecast contains that of
a random walk around the trend and that of a random walk without trend.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capacity.answers.records import Quantity
from capacity.workload.columns import FloatArray

BLOCKS = 12  # means over consecutive parts of a history: neighbouring windows are correlated
MIN_BLOCKS = 4
HOUR_S, DAY_S = 3600.0, 86400.0
HORIZON = 0.5  # of the history's length
MAX_SPREAD = 2.0
WALKS = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
MIN_DAYS = 4  # from here on blocks are whole days, so that the time of day does not count as growth


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The trend of a rate: requests/s at the end of the history, and their change per hour, with 90 % intervals.

    `by_day`: the trend is that of whole days. `forecast_per_s`: the mean rate of the next `horizon_h` hours, which are
    half the length of the history.
    """

    rate_per_s: Quantity
    per_hour: Quantity
    by_day: bool
    forecast_per_s: Quantity
    horizon_h: float

    @property
    def is_significant(self) -> bool:
        """Return whether the interval of the change excludes 0."""
        low, high = self.per_hour.low, self.per_hour.high
        return low is not None and high is not None and (low > 0 or high < 0)

    @property
    def is_known(self) -> bool:
        """Return whether the high end of the forecast's interval is less than `MAX_SPREAD` times the low end."""
        return (self.forecast_per_s.high or 0.0) < MAX_SPREAD * (self.forecast_per_s.low or 0.0)

    def hours_until(self, limit: Quantity) -> Quantity | None:
        """Return the hours until the rate reaches `limit` (requests/s).

        None if that is after the horizon, if the growth is not significant, or if `is_known` is false. The interval
        combines the ends of the intervals of forecast and limit, so it contains more than 90 %. It has no upper end if
        the rate may never reach the limit.
        """
        if not (self.is_significant and self.is_known):
            return None

        def hours(rate_per_s: float | None, end_per_s: float | None) -> float | None:
            rise = (rate_per_s or 0.0) - self.rate_per_s.value  # at half the horizon
            gap = max((end_per_s or 0.0) - self.rate_per_s.value, 0.0)
            return self.horizon_h / 2 * gap / rise if 2 * rise >= gap and rise > 0 else None

        forecast = self.forecast_per_s
        value = hours(forecast.value, limit.value)
        if value is None:
            return None
        low = hours(forecast.high, limit.low)
        return Quantity(value=value, low=low, high=hours(forecast.low, limit.high or limit.value))


def rate_growth(
    end_s: Sequence[float], seconds: Sequence[float], rates_per_s: Sequence[float]
) -> Growth | None:
    """Return the growth of a rate measured in windows (end, length and rate); None if there are too few.

    Least squares on block means. The standard error is multiplied by sqrt((1 + r) / (1 - r)) with the residuals'
    correlation r between neighbouring blocks, if it is positive. Student's t with two degrees of freedom fewer than
    blocks.
    """
    from scipy.special import stdtrit

    ends, lengths, rates = (np.asarray(each, dtype=np.float64) for each in (end_s, seconds, rates_per_s))
    if len(ends) < MIN_BLOCKS:
        return None
    middles = ends - lengths / 2
    span_s = float(ends[-1] - ends[0] + lengths[0])
    by_day = span_s >= MIN_DAYS * DAY_S
    if by_day:  # whole days before the end
        block = np.floor((ends[-1] - middles) / DAY_S)
        block[block >= math.floor(span_s / DAY_S + 0.01)] = -1
    else:
        block = np.minimum(np.floor((ends[-1] - middles) / span_s * BLOCKS), BLOCKS - 1)
    chosen = [block == each for each in np.unique(block[block >= 0])[::-1]]
    if len(chosen) < MIN_BLOCKS:
        return None
    x = np.array([np.average(middles[each], weights=lengths[each]) for each in chosen])
    y = np.array([np.average(rates[each], weights=lengths[each]) for each in chosen])
    x = (x - ends[-1]) / HOUR_S  # hours before the end of the history
    n, centred = len(x), x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residuals = y - y.mean() - slope * centred
    square = float(residuals @ residuals)
    r = float(residuals[1:] @ residuals[:-1]) / square if square > 1e-12 * float(y @ y) else 0.0
    r = min(max(r, 0.0), 0.9)
    scatter = math.sqrt(square / (n - 2) * (1 + r) / (1 - r))
    reach = float(stdtrit(n - 2, 0.95)) * scatter
    own = reach * math.sqrt(1 / n + float(x.mean()) ** 2 / float(centred @ centred))
    wide = reach / math.sqrt(float(centred @ centred))
    now = max(float(y.mean() - slope * x.mean()), 0.0)
    horizon_h = span_s / HOUR_S * HORIZON
    trend, level = (_forecast(x, y, horizon_h, degree) for degree in (1, 0))
    return Growth(
        rate_per_s=Quantity(value=now, low=max(now - own, 0.0), high=now + own),
        per_hour=Quantity(value=slope, low=slope - wide, high=slope + wide),
        by_day=by_day,
        forecast_per_s=Quantity(value=trend[1], low=min(trend[0], level[0]), high=max(trend[2], level[2])),
        horizon_h=horizon_h,
    )


def _forecast(x: FloatArray, y: FloatArray, horizon_h: float, degree: int) -> tuple[float, float, float]:
    """Return low end, value and high end (90 %) of the mean rate over the next hours, at least 0.

    `x`: times of the block means `y`, in hours relative to now. The model is a random walk around a line (`degree` 1)
    or a constant (0), plus independent scatter. Results for all `WALKS` (variance of a walk's step between blocks,
    relative to the scatter) are averaged with their restricted likelihood as weight.
    """
    from scipy.special import stdtrit

    n, step = len(x), float(x[-1] - x[0]) / (len(x) - 1)
    design, ahead = np.vander(x, degree + 1), np.vander([horizon_h / 2], degree + 1)[0]
    age = (x - x[0]) / step
    until = (horizon_h / 3 - x[0]) / step  # variance of a walk's mean over the horizon
    walks = np.array(WALKS)
    inverse = np.linalg.inv(np.eye(n) + walks[:, None, None] * np.minimum.outer(age, age))
    spread = np.linalg.inv(design.T @ inverse @ design)
    line = (spread @ design.T @ inverse @ y[:, None])[..., 0]
    residuals = y - line @ design.T
    squares = np.einsum("wi,wij,wj->w", residuals, inverse, residuals) / (n - degree - 1)
    squares = np.maximum(squares, max(1e-12 * float(y @ y), 1e-300))
    weights = (np.linalg.slogdet(inverse)[1] + np.linalg.slogdet(spread)[1]) / 2
    weights -= (n - degree - 1) / 2 * np.log(squares)
    pull = walks[:, None] * (age @ inverse)
    own = ahead - pull @ design
    variances = walks * (until - pull @ age) + step / horizon_h + np.einsum("wi,wij,wj->w", own, spread, own)
    variances *= squares
    means = line @ ahead + np.sum(pull * residuals, axis=1)
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    value = float(weights @ means)
    reach = float(stdtrit(n - degree - 1, 0.95)) * math.sqrt(weights @ (variances + (means - value) ** 2))
    return max(value - reach, 0.0), max(value, 0.0), max(value + reach, 0.0)
