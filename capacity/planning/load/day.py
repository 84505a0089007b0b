"""Replicas needed in each hour of a day, and their cost compared with the replicas that the peak needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic
from capacity.hardware.pricing import HOURS_PER_MONTH, Price, billed_gpus, usd_per_hour
from capacity.workload import Workload
from capacity.workload.arrivals import DAY_S

HOURS = 24
LEAST_HOURS = 23  # that the arrivals of a trace cover, to be those of a day


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """One hour of a day: its request rate and the replicas needed to serve it."""

    hour: int
    request_rate_per_s: float
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """Replicas needed in each hour of a day, compared with the fixed number of replicas that the peak needs."""

    hours: tuple[Hour, ...]
    peak_replicas: int
    autoscaled_replica_hours: int
    fixed_replica_hours: int
    autoscaled_usd_per_month: float | None
    fixed_usd_per_month: float | None


def day_of(mean_rate_per_s: float, peak_to_mean: float) -> tuple[float, ...]:
    """Return 24 hourly request rates that follow a sinusoid with its peak at noon."""
    if not 1 <= peak_to_mean <= 2:
        raise InvalidInput(f"peak_to_mean must be from 1 (flat) to 2 (idle at night), not {peak_to_mean}")
    swing = peak_to_mean - 1
    return tuple(
        mean_rate_per_s * (1 - swing * math.cos(2 * math.pi * hour / HOURS)) for hour in range(HOURS)
    )


def hourly_rates(traffic: Traffic, workload: Workload) -> tuple[float, ...] | None:
    """Return the 24 hourly request rates of diurnal traffic, or of a trace that covers a day; None for other traffic.

    `workload`: all requests of the trace. The days of a longer trace are averaged.
    """
    if traffic.arrivals == "diurnal" and traffic.day_length_s == DAY_S:
        return day_of(workload.offered_per_s, traffic.day_peak_to_mean)
    if traffic.trace is None or workload.is_closed_loop or workload.span_s < LEAST_HOURS * 3600:
        return None
    counts = np.bincount((workload.arrival_s // 3600).astype(int) % HOURS, minlength=HOURS)
    return tuple(map(float, counts / 3600 / max(round(workload.span_s / DAY_S), 1)))


def replicas_by_hour(
    rates_per_s: Sequence[float],
    usable_per_s: float | None,
    *,
    replicas: int,
    gpus_per_replica: int,
    price: Price | None,
) -> Day:
    """Return the replicas for each hourly rate, given that `replicas` serve `usable_per_s`. Raises InvalidInput."""
    if usable_per_s is None or usable_per_s <= 0:
        raise InvalidInput(
            "hourly replicas need an SLO that the deployment meets, and enough requests to saturate it: give "
            "--slo, and increase --num-prompts"
        )
    if len(rates_per_s) != HOURS or not all(math.isfinite(rate) and rate >= 0 for rate in rates_per_s):
        raise InvalidInput(
            f"{len(rates_per_s)} hourly rates are given: a day needs {HOURS}, each finite and at least 0"
        )
    each = usable_per_s / replicas
    hours = tuple(
        Hour(hour=hour, request_rate_per_s=rate, replicas=max(1, math.ceil(rate / each - 1e-9)))
        for hour, rate in enumerate(rates_per_s)
    )
    peak = max(hour.replicas for hour in hours)

    def monthly(counts: Sequence[int]) -> float | None:
        if price is None:
            return None
        gpus = sum(billed_gpus(price, count * gpus_per_replica) for count in counts)
        return usd_per_hour(price, gpus) * HOURS_PER_MONTH / HOURS

    return Day(
        hours=hours,
        peak_replicas=peak,
        autoscaled_replica_hours=sum(hour.replicas for hour in hours),
        fixed_replica_hours=peak * HOURS,
        autoscaled_usd_per_month=monthly([hour.replicas for hour in hours]),
        fixed_usd_per_month=monthly([peak] * HOURS),
    )
