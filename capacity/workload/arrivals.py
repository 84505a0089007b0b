"""Arrival processes, which draw the sorted arrival times of requests."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.columns import FloatArray

DAY_S = 86_400.0
_CELLS_PER_PERIOD = 8_640  # steps of a diurnal rate: 10 s each for one day


class ArrivalProcess(Protocol):
    """Interface of arrival processes."""

    def times_s(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Return the sorted arrival times of `count` requests, on a clock that starts at 0."""
        ...


class TimedRate(Protocol):
    """An arrival process whose rate depends only on time, so that many clients can share it."""

    def when_s(self, expected: FloatArray) -> FloatArray:
        """Return the times at which the expected number of arrivals since time 0 reaches each value of `expected`."""
        ...


@dataclass(frozen=True, slots=True)
class SteadyArrivals:
    """Arrivals at a constant rate with gamma-distributed gaps, like `vllm bench serve --request-rate --burstiness`.

    Gaps have coefficient of variation 1/sqrt(burstiness): 1 is a Poisson process, infinity is constant gaps. An
    infinite rate sends all requests at 0. The first request also waits one gap. As in vLLM's client, times are rescaled
    so that the last of `count` requests is sent at exactly count/rate; so every run has the requested rate. Source:
    vLLM 0.33.0, benchmarks/serve.py, get_request.
    """

    rate_per_s: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        _check_rate("request rate", self.rate_per_s, infinite=True)
        _check_burstiness(self.burstiness)

    def when_s(self, expected: FloatArray) -> FloatArray:
        return expected / self.rate_per_s

    def times_s(self, count: int, rng: np.random.Generator) -> FloatArray:
        if math.isinf(self.rate_per_s):
            return np.zeros(count)
        if math.isinf(self.burstiness):
            return np.arange(1, count + 1, dtype=np.float64) / self.rate_per_s
        times_s: FloatArray = np.cumsum(unit_gaps(count, self.burstiness, rng))
        if times_s[-1] == 0:
            return times_s
        last_s = count / self.rate_per_s
        times_s = np.minimum(times_s * (last_s / times_s[-1]), last_s)
        times_s[-1] = last_s
        return times_s


@dataclass(frozen=True, slots=True)
class RampArrivals:
    """Arrivals at a rate that changes linearly from start to end over `ramp_s`, then stays constant."""

    start_rate_per_s: float
    end_rate_per_s: float
    ramp_s: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        _check_rate("ramp start rate", self.start_rate_per_s, zero=True)
        _check_rate("ramp end rate", self.end_rate_per_s)
        _check_duration("ramp", self.ramp_s)
        _check_burstiness(self.burstiness)

    def times_s(self, count: int, rng: np.random.Generator) -> FloatArray:
        return self.when_s(np.cumsum(unit_gaps(count, self.burstiness, rng)))

    def when_s(self, expected: FloatArray) -> FloatArray:
        start, end = self.start_rate_per_s, self.end_rate_per_s
        slope = (end - start) / self.ramp_s
        ramp_events = (start + end) / 2 * self.ramp_s
        inside = np.minimum(expected, ramp_events)
        # root of start·t + slope·t²/2 = events, in the form without cancellation
        ramped_s = 2 * inside / (start + np.sqrt(np.maximum(start * start + 2 * slope * inside, 0.0)))
        return ramped_s + (expected - inside) / end


@dataclass(frozen=True, slots=True)
class PeriodicArrivals:
    """Arrivals at a periodic rate, which is constant over each of `durations_s`: on/off traffic, hourly rates, days."""

    durations_s: tuple[float, ...]
    rates_per_s: tuple[float, ...]
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not self.durations_s or len(self.durations_s) != len(self.rates_per_s):
            raise InvalidInput(
                f"a periodic rate needs one rate per duration, not {len(self.rates_per_s)} for {len(self.durations_s)}"
            )
        for duration_s in self.durations_s:
            _check_duration("period", duration_s)
        for rate_per_s in self.rates_per_s:
            _check_rate("periodic rate", rate_per_s, zero=True)
        if not any(self.rates_per_s):
            raise InvalidInput("a periodic rate must be above 0 at some time of its period")
        _check_burstiness(self.burstiness)

    @property
    def mean_rate_per_s(self) -> float:
        """Return the requests per second, averaged over whole periods."""
        durations_s = np.asarray(self.durations_s)
        return float(durations_s @ np.asarray(self.rates_per_s) / durations_s.sum())

    def times_s(self, count: int, rng: np.random.Generator) -> FloatArray:
        return self.when_s(np.cumsum(unit_gaps(count, self.burstiness, rng)))

    def when_s(self, expected: FloatArray) -> FloatArray:
        times_s = np.concatenate(([0.0], np.cumsum(self.durations_s)))
        reached = np.concatenate(([0.0], np.cumsum(np.multiply(self.durations_s, self.rates_per_s))))
        periods = np.maximum(np.ceil(expected / reached[-1]) - 1, 0.0)
        arrival_s: FloatArray = (
            _invert_expected(expected - periods * reached[-1], reached, times_s) + periods * times_s[-1]
        )
        return arrival_s


@dataclass(frozen=True, slots=True)
class PartOfArrivals:
    """Arrivals of `process` without its first `skipped` expected arrivals; time 0 is after these."""

    process: RampArrivals | PeriodicArrivals
    skipped: float

    @property
    def start_s(self) -> float:
        """Return the time in `process` at which these arrivals start, in seconds."""
        return float(self.process.when_s(np.array([self.skipped]))[0])

    def times_s(self, count: int, rng: np.random.Generator) -> FloatArray:
        return self.when_s(np.cumsum(unit_gaps(count, self.process.burstiness, rng)))

    def when_s(self, expected: FloatArray) -> FloatArray:
        return self.process.when_s(expected + self.skipped) - self.start_s


def busiest_part(process: RampArrivals | PeriodicArrivals, within: float, count: float) -> PartOfArrivals:
    """Return the shortest part of `process` with `count` expected arrivals, within its first `within` arrivals."""
    starts = np.linspace(0.0, max(within - count, 0.0), _CELLS_PER_PERIOD + 1)
    lasts_s = process.when_s(starts + count) - process.when_s(starts)
    return PartOfArrivals(process, float(starts[int(np.argmax(lasts_s <= lasts_s.min() * (1 + 1e-9)))]))


def most_arrivals(process: RampArrivals | PeriodicArrivals, within: float, lasts_s: float) -> float:
    """Return the largest expected number of arrivals in `lasts_s` seconds, within the first `within` arrivals."""
    starts = np.linspace(0.0, within, _CELLS_PER_PERIOD + 1)
    times_s = process.when_s(starts)
    return float((np.interp(times_s + lasts_s, times_s, starts) - starts).max())


def on_off(
    on_rate_per_s: float, *, on_s: float, off_s: float, off_rate_per_s: float = 0.0, burstiness: float = 1.0
) -> PeriodicArrivals:
    """Return regular bursts: `on_s` seconds at `on_rate_per_s`, then `off_s` seconds at `off_rate_per_s`."""
    return PeriodicArrivals((on_s, off_s), (on_rate_per_s, off_rate_per_s), burstiness)


def diurnal(
    mean_rate_per_s: float,
    *,
    peak_to_mean: float = 1.5,
    period_s: float = DAY_S,
    peak_at_s: float = DAY_S / 2,
    burstiness: float = 1.0,
) -> PeriodicArrivals:
    """Return a daily rate mean·(1 + (peak_to_mean - 1)·cos) with its peak at `peak_at_s`, in 8,640 constant steps."""
    _check_rate("mean rate", mean_rate_per_s)
    _check_duration("period", period_s)
    if not 1 <= peak_to_mean <= 2:
        raise InvalidInput(f"peak_to_mean must be from 1 (flat) to 2 (silent at night), not {peak_to_mean}")
    cell_s = period_s / _CELLS_PER_PERIOD
    angle = 2 * np.pi * ((np.arange(_CELLS_PER_PERIOD) + 0.5) * cell_s - peak_at_s) / period_s
    rates = mean_rate_per_s * np.maximum(1 + (peak_to_mean - 1) * np.cos(angle), 0.0)
    return PeriodicArrivals((cell_s,) * _CELLS_PER_PERIOD, tuple(rates.tolist()), burstiness)


def unit_gaps(count: int, burstiness: float, rng: np.random.Generator) -> FloatArray:
    """Return `count` random gaps with mean 1 and squared coefficient of variation 1/burstiness."""
    if math.isinf(burstiness):
        return np.ones(count)
    return rng.gamma(burstiness, 1 / burstiness, count)


def _invert_expected(events: FloatArray, expected: FloatArray, times_s: FloatArray) -> FloatArray:
    """Return the times at which the expected number of arrivals reaches each value of `events`. `expected` is the
    number at `times_s`, interpolated linearly between them. No arrival falls in a time with rate 0."""
    cell = np.clip(np.searchsorted(expected, events, side="left") - 1, 0, len(times_s) - 2)
    width = expected[cell + 1] - expected[cell]
    part = np.divide(events - expected[cell], width, out=np.zeros_like(events), where=width > 0)
    return times_s[cell] + np.clip(part, 0.0, 1.0) * (times_s[cell + 1] - times_s[cell])


def _check_rate(what: str, rate_per_s: float, *, zero: bool = False, infinite: bool = False) -> None:
    lowest = "at least 0" if zero else "above 0"
    if math.isnan(rate_per_s) or rate_per_s < 0 or (rate_per_s == 0 and not zero):
        raise InvalidInput(f"the {what} must be {lowest} requests/s, not {rate_per_s}")
    if math.isinf(rate_per_s) and not infinite:
        raise InvalidInput(f"the {what} must be finite")


def _check_burstiness(burstiness: float) -> None:
    if not burstiness > 0:
        raise InvalidInput(f"burstiness must be above 0 (1 is Poisson, inf constant gaps), not {burstiness}")


def _check_duration(what: str, duration_s: float) -> None:
    if not 0 < duration_s < math.inf:
        raise InvalidInput(f"the {what} must last a finite time above 0 s, not {duration_s}")
