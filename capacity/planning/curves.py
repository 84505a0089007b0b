"""How a deployment answers to its load: latency against rate, the knee, and the highest rate within the SLO.

The same requests come faster or slower at each rate (common random numbers), so that a curve's shape is the
deployment's and not the dice's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from capacity.base.errors import InvalidInput
from capacity.base.record import AnswerRecord
from capacity.hardware.pricing import Price
from capacity.planning.bounds import Load, bound
from capacity.planning.step_error import ScaledSteps, factors_at
from capacity.planning.trial import Goal, Level, Trial, simulate_trial
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Workload

TOLERANCE = 0.02  # of the highest rate, by bisection
MOST_DOUBLINGS = 12
SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.15, 1.3)  # of the highest rate, or of the bound without one
HOURS = 24

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One rate: what is offered, what is served, and the levels, at step times as predicted."""

    request_rate_per_s: float
    requests_per_s: float
    output_tokens_per_s: float
    mean_e2e_s: float
    tokens_per_s_per_user: float | None
    mean_batch_size: float
    kv_utilization_peak: float
    levels: tuple[Level, ...]
    met: bool

    @property
    def power(self) -> float:
        """Throughput over latency: greatest at the knee (Kleinrock, Power and deterministic rules of thumb, 1979)."""
        return self.requests_per_s / self.mean_e2e_s if self.mean_e2e_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestRate:
    """The highest rate within the SLO: with step times as predicted, at the asked confidence, and at the ends of
    the 90 % band of the step model's error. 0: not even a trickle is.

    `sampling_low` to `sampling_high` is the 90 % interval of `predicted` over draws of the traffic (Student's t over
    `replications` of them, each bisected by itself); None with a single draw.
    """

    predicted: float
    at_confidence: float
    confidence: float
    low: float
    high: float
    replications: int
    sampling_low: float | None
    sampling_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """One hour of a day: its rate and the replicas that it needs."""

    hour: int
    request_rate_per_s: float
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day's replicas by the hour, against as many as the peak needs around the clock."""

    hours: tuple[Hour, ...]
    peak_replicas: int
    autoscaled_replica_hours: int
    fixed_replica_hours: int
    autoscaled_usd_per_month: float | None
    fixed_usd_per_month: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve(AnswerRecord):
    """A deployment under rising load. `knee_per_s` is the rate of the greatest throughput over latency."""

    SCHEMA: ClassVar[str] = "capacity/curve/v1"

    deployment: str
    workload: str
    slos: tuple[str, ...]
    points: tuple[CurvePoint, ...]
    knee_per_s: float
    highest: HighestRate | None
    requests_per_user_hour: float | None
    users: float | None
    day: Day | None
    warnings: tuple[str, ...]


def draw_curve(
    resolved: ResolvedPool,
    workloads: Sequence[Workload],
    goal: Goal,
    *,
    replicas: int = 1,
    confidence: float = 0.9,
    rates: Sequence[float] | None = None,
    requests_per_user_hour: float | None = None,
    day_rates_per_s: Sequence[float] | None = None,
    price: Price | None = None,
    progress: Progress | None = None,
) -> Curve:
    """The curve of `replicas` engines. `rates`: where to look; None: around the highest rate within the SLO.

    The first of `workloads` draws the curve; the others, draws of the same traffic, say how much hangs on the draw.
    `progress(simulations, of about so many)`.
    """
    if any(workload.is_closed_loop for workload in workloads):
        raise InvalidInput(
            "a curve over rates needs arrivals of their own: leave out --concurrency and sessions"
        )
    done = 0

    def tried(rate: float, level: float | None, *, give_up: bool, draw: int = 0) -> Trial:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, max(_about(workloads, goal, rates), done + 1))
        factors = factors_at(resolved.step_model, level)
        scaled = [workloads[draw].at_rate(rate)]
        return simulate_trial(resolved, replicas, scaled, goal, factors=factors, give_up=give_up)

    guess = _bound_rate(resolved, workloads[:1], goal) * replicas
    highest = _highest(tried, guess, confidence, len(workloads)) if goal.slos else None
    notes: tuple[str, ...] = ()
    if highest is not None and math.isinf(max(highest.predicted, highest.high)):
        highest = None
        notes = (
            f"these {len(workloads[0]):,} requests meet the SLO at any rate: too few to fill the engine; "
            "give more (--num-prompts)",
        )
    around = highest.predicted if highest is not None and highest.predicted > 0 else guess
    chosen = sorted(rates) if rates else [share * around for share in SHARES]
    points = tuple(_point(rate, tried(rate, None, give_up=False)) for rate in chosen)
    each = requests_per_user_hour
    usable = None if highest is None else highest.at_confidence
    return Curve(
        deployment=f"{resolved.model.name} on {replicas} x {resolved.pool.num_gpus} {resolved.profile.name}, "
        f"{resolved.engine.label}",
        workload=workloads[0].name,
        slos=tuple(str(slo) for slo in goal.slos),
        points=points,
        knee_per_s=max(points, key=lambda point: point.power).request_rate_per_s,
        highest=highest,
        requests_per_user_hour=each,
        users=None if each is None or usable is None else usable * 3600 / each,
        day=None if day_rates_per_s is None else _day(day_rates_per_s, usable, replicas, resolved, price),
        warnings=(*notes, *resolved.notes, *workloads[0].notices),
    )


def _bound_rate(resolved: ResolvedPool, workloads: Sequence[Workload], goal: Goal) -> float:
    """The rate at which one engine would be busy all the time at best."""
    steps = ScaledSteps(resolved.step_model, factors_at(resolved.step_model, None))
    work_s = bound(resolved, steps.step_seconds, Load.of(workloads), goal).work_s
    return 1 / work_s if work_s > 0 else 1.0


def _about(workloads: Sequence[Workload], goal: Goal, rates: Sequence[float] | None) -> int:
    """Simulations that a curve takes, as a rule: to bisect takes about nine."""
    bisections = 3 + len(workloads) if goal.slos else 0
    return 9 * bisections + len(rates or SHARES)


def _highest(tried: Callable[..., Trial], guess: float, confidence: float, draws: int) -> HighestRate:
    def at(level: float | None, draw: int = 0) -> float:
        return highest_rate(lambda rate: tried(rate, level, give_up=True, draw=draw).met, guess)

    predicted = [at(None, draw) for draw in range(draws)]
    sampling = _interval(predicted)
    return HighestRate(
        predicted=predicted[0],
        at_confidence=at(confidence),
        confidence=confidence,
        low=at(0.95),
        high=at(0.05),
        replications=draws,
        sampling_low=None if sampling is None else sampling[0],
        sampling_high=None if sampling is None else sampling[1],
    )


def _interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 90 % interval of one more draw, by Student's t: what another day of the same traffic would give."""
    if len(values) < 2 or not all(math.isfinite(value) for value in values):
        return None
    from scipy.special import stdtrit

    mean, spread = statistics.mean(values), statistics.stdev(values)
    reach = float(stdtrit(len(values) - 1, 0.95)) * spread * math.sqrt(1 + 1 / len(values))
    return max(mean - reach, 0.0), mean + reach


def highest_rate(met: Callable[[float], bool], guess: float) -> float:
    """The highest rate that meets the SLO, within `TOLERANCE`: bracketed by doubling and halving, then bisected.

    0 where even the guess halved `MOST_DOUBLINGS` times does not; infinite where doubling it as often does.
    """
    low, high = 0.0, math.inf
    rate = guess
    for _ in range(MOST_DOUBLINGS):
        if met(rate):
            low = rate
            rate *= 2
        else:
            high = rate
            rate /= 2
        if low > 0 and high < math.inf:
            break
    if low == 0.0 or high == math.inf:
        return high if low else 0.0
    while high - low > TOLERANCE * low:
        middle = (low + high) / 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low


def _point(rate: float, trial: Trial) -> CurvePoint:
    return CurvePoint(
        request_rate_per_s=rate,
        requests_per_s=trial.requests_per_s,
        output_tokens_per_s=trial.output_tokens_per_s,
        mean_e2e_s=trial.mean_e2e_s,
        tokens_per_s_per_user=trial.tokens_per_s_per_user,
        mean_batch_size=trial.mean_batch_size,
        kv_utilization_peak=trial.kv_utilization_peak,
        levels=trial.levels,
        met=trial.met,
    )


def day_of(mean_rate_per_s: float, peak_to_mean: float) -> tuple[float, ...]:
    """Hourly rates of a sinusoidal day with its peak at noon."""
    if not 1 <= peak_to_mean <= 2:
        raise InvalidInput(
            f"the peak over the mean must be from 1 (flat) to 2 (silent at night), not {peak_to_mean}"
        )
    swing = peak_to_mean - 1
    return tuple(
        mean_rate_per_s * (1 - swing * math.cos(2 * math.pi * hour / HOURS)) for hour in range(HOURS)
    )


def _day(
    rates: Sequence[float], usable: float | None, replicas: int, resolved: ResolvedPool, price: Price | None
) -> Day:
    if usable is None or usable <= 0:
        raise InvalidInput(
            "replicas by the hour need a service level that the deployment meets, and requests enough to fill it: "
            "give --slo, more --num-prompts"
        )
    if len(rates) != HOURS or not all(math.isfinite(rate) and rate >= 0 for rate in rates):
        raise InvalidInput(f"a day has {HOURS} hourly rates of at least 0, not {len(rates)}")
    each = usable / replicas  # of one replica
    hours = tuple(
        Hour(hour=hour, request_rate_per_s=rate, replicas=max(1, math.ceil(rate / each - 1e-9)))
        for hour, rate in enumerate(rates)
    )
    peak = max(hour.replicas for hour in hours)
    scaled = sum(hour.replicas for hour in hours)

    def monthly(counts: Sequence[int]) -> float | None:
        if price is None:
            return None
        instance = price.gpus_per_instance
        gpus = [math.ceil(count * resolved.pool.num_gpus / instance) * instance for count in counts]
        return sum(gpus) * price.usd_per_gpu_hour * 730 / HOURS

    return Day(
        hours=hours,
        peak_replicas=peak,
        autoscaled_replica_hours=scaled,
        fixed_replica_hours=peak * HOURS,
        autoscaled_usd_per_month=monthly([hour.replicas for hour in hours]),
        fixed_usd_per_month=monthly([peak] * HOURS),
    )
