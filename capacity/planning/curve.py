"""How a deployment answers to its load: latency against rate, the knee, and the highest rate within the SLO.

The same requests come faster or slower at each rate (common random numbers), so that a curve's shape is the
deployment's and not the dice's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar

from pydantic import ConfigDict

from capacity.answers.costs import Pools, cost_of
from capacity.base.checked import checked
from capacity.base.errors import InvalidInput
from capacity.base.flags import CLUSTER
from capacity.base.keywords import documented, split
from capacity.base.record import AnswerRecord
from capacity.base.spec import Spec
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, build, deployment_of
from capacity.deployment.use_cases import levels_of
from capacity.hardware.cost_estimate import CostEstimate
from capacity.hardware.pricing import Price, cautions_of, price_of
from capacity.planning.bounds import Load, bound
from capacity.planning.crew import Crew, once, opened, side_by_side, stop_if_recalled
from capacity.planning.day import Day, day_of, replicas_by_hour
from capacity.planning.draws import draws
from capacity.planning.judging import Goal, Level, Trial
from capacity.planning.plan_cost import trial_load
from capacity.planning.step_error import ScaledSteps, factors_at
from capacity.planning.trial import deployment_label, simulate_trial
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import Workload, parse_slos

if TYPE_CHECKING:
    from capacity.model import ModelSpec

SHAPE_RATE = 1.0  # requests per second of traffic whose shape alone counts
TOLERANCE = 0.02  # of the highest rate, by bisection
MOST_DOUBLINGS = 12
SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.15, 1.3)  # of the highest rate, or of the bound without one
Number = int | float
Progress = Callable[[int, int], None]
Value = TypeVar("Value")


class RisingLoad(Spec):
    """What is asked of a deployment as its load rises; rates in requests per second."""

    model_config = ConfigDict(allow_inf_nan=True)

    goodput_target: float = 0.99
    confidence: float = 0.9
    rates: tuple[Number, ...] | None = None
    requests_per_user_hour: Number | None = None
    peak_rate: Number | None = None
    peak_to_mean: Number = 1.6
    hourly_rates: tuple[Number, ...] | None = None
    replications: int = 3

    def check(self) -> None:
        """Raise InvalidInput for a value out of its range."""
        if not 0.5 <= self.confidence < 1:
            raise InvalidInput(f"confidence must be from 0.5 to below 1, not {self.confidence}")
        if self.rates is not None and not (self.rates and all(0 < rate < math.inf for rate in self.rates)):
            raise InvalidInput("rates must be finite numbers above 0, at least one")
        if self.peak_rate is not None and not 0 < self.peak_rate < math.inf:
            raise InvalidInput(f"peak_rate must be finite and above 0, not {self.peak_rate}")
        if not 1 <= self.peak_to_mean <= 2:
            raise InvalidInput(
                f"peak_to_mean must be from 1 (flat) to 2 (silent at night), not {self.peak_to_mean}"
            )
        each = self.requests_per_user_hour
        if each is not None and not each > 0:
            raise InvalidInput(f"requests_per_user_hour must be above 0, not {each}")

    @property
    def day_rates_per_s(self) -> tuple[float, ...] | None:
        """24 rates: as given, or around a peak; None where neither is."""
        if self.hourly_rates is not None:
            return self.hourly_rates
        if self.peak_rate is None:
            return None
        return day_of(self.peak_rate / self.peak_to_mean, self.peak_to_mean)


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
    cost: CostEstimate | None = None  # at this rate, or at as much of it as is served

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
class Curve(AnswerRecord):
    """A deployment under rising load. `knee_per_s` is the rate of the greatest throughput over latency."""

    SCHEMA: ClassVar[str] = "capacity/curve/v1"
    ROWS: ClassVar[str] = "points"

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


@documented(Pool, Traffic, Cost, RisingLoad)
@checked
def curve(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo: Sequence[str] | str = (),
    cluster: Annotated[str | None, CLUSTER] = None,
    progress: Progress | None = None,
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Curve:
    """Latency against rate, the knee, the highest rate within the SLO, and the users that this is.

    The traffic's own rate does not matter: its requests come faster or slower. `hourly_rates` (24, requests/s), or
    a `peak_rate` with `peak_to_mean`, ask for replicas by the hour. Generated traffic is drawn `replications` times,
    for the interval that sampling leaves. `cluster` (tcp://host:port) simulates on a Dask cluster.
    Raises DoesNotFit and InvalidInput.
    """
    pool_fields, traffic_fields, prices, load_fields = split(options, Pool, Traffic, Cost, RisingLoad)
    load: RisingLoad = build(RisingLoad, load_fields)
    load.check()
    beside = {name: getattr(load, name) for name in load_fields} | {"request_rate": SHAPE_RATE}
    deployment = deployment_of(
        model, pool=pool_fields, traffic=traffic_fields, cost=prices, question="curve", **beside
    )
    pool, traffic = deployment.pool, deployment.traffic
    resolved = resolve(deployment.model, pool, profiles=profiles, download=download)
    resolved.memory.require_fit()
    if traffic.trace is None and "request_rate" not in traffic.model_fields_set:
        traffic = traffic.model_copy(update={"request_rate": SHAPE_RATE})
    if load.replications < 1:
        raise InvalidInput(f"replications must be at least 1, not {load.replications}")
    workloads = draws(traffic, workload, load.replications)
    goal = Goal(slos=parse_slos(levels_of(slo, traffic)), goodput_target=load.goodput_target)
    price = price_of(resolved.profile.name, deployment.cost)
    return draw_curve(
        resolved,
        workloads,
        goal,
        load,
        replicas=pool.replicas,
        price=price,
        cluster=cluster,
        progress=progress,
    )


def draw_curve(
    resolved: ResolvedPool,
    workloads: Sequence[Workload],
    goal: Goal,
    load: RisingLoad,
    *,
    replicas: int = 1,
    price: Price | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> Curve:
    """The curve of `replicas` engines: at the load's rates, or around the highest rate within the SLO.

    The first of `workloads` draws the curve; the others, draws of the same traffic, say how much hangs on the draw.
    `progress(simulations, of about so many)`.
    """
    if any(workload.is_closed_loop for workload in workloads):
        raise InvalidInput(
            "a curve over rates needs arrivals of their own: leave out --concurrency and sessions"
        )
    day_rates_per_s = load.day_rates_per_s
    served = _Served(resolved=resolved, workloads=workloads, goal=goal, replicas=replicas)
    with nullcontext() if cluster is None else opened(1, cluster, common=(served,)) as crew:
        runs = _Runs(served=served, crew=crew, progress=progress)
        runs.expected = len(load.rates or SHARES) + (9 * (3 + len(workloads)) if goal.slos else 0)
        guess = _bound_rate(resolved, workloads[:1], goal) * replicas
        highest, notes = runs.highest(guess, load.confidence) if goal.slos else (None, ())
        around = highest.predicted if highest is not None and highest.predicted > 0 else guess
        rates = sorted(load.rates) if load.rates else [share * around for share in SHARES]
        trials = runs.all(rates)
        remarks = () if crew is None else crew.remarks
    points = tuple(
        _point(rate, trial, price, [(resolved, replicas)], workloads[0])
        for rate, trial in zip(rates, trials, strict=True)
    )
    each = load.requests_per_user_hour
    usable = None if highest is None else highest.at_confidence
    day = None
    if day_rates_per_s is not None:
        gpus = resolved.pool.num_gpus
        day = replicas_by_hour(day_rates_per_s, usable, replicas=replicas, gpus_per_replica=gpus, price=price)
    return Curve(
        deployment=deployment_label(resolved, replicas),
        workload=workloads[0].name,
        slos=tuple(str(slo) for slo in goal.slos),
        points=points,
        knee_per_s=max(points, key=lambda point: point.power).request_rate_per_s,
        highest=highest,
        requests_per_user_hour=each,
        users=None if each is None or usable is None else usable * 3600 / each,
        day=day,
        warnings=(
            *notes,
            *cautions_of(price),
            *resolved.notes,
            *resolved.split_notes(workloads[0].mean_prompt_tokens),
            *workloads[0].notices,
            *remarks,
        ),
    )


class _Rate(NamedTuple):
    """One run: at a rate, with step times at a level of their error, of one draw of the traffic."""

    rate: float
    level: float | None = None
    draw: int = 0
    give_up: bool = False


@dataclass(frozen=True, kw_only=True)
class _Served:
    """The deployment at any rate."""

    resolved: ResolvedPool
    workloads: Sequence[Workload]
    goal: Goal
    replicas: int

    def trial(self, ask: _Rate) -> Trial:
        """Here, or on a worker."""
        factors = factors_at(self.resolved.step_model, ask.level)
        scaled = [self.workloads[ask.draw].at_rate(ask.rate)]
        return simulate_trial(
            self.resolved,
            self.replicas,
            scaled,
            self.goal,
            factors=factors,
            give_up=ask.give_up,
            check=stop_if_recalled,
        )


@dataclass(kw_only=True)
class _Runs:
    """Runs, counted; to bisect takes about nine."""

    served: _Served
    crew: Crew | None
    progress: Progress | None
    expected: int = 0
    done: int = 0

    def _tell(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, max(self.expected, self.done + 1))

    def _of(self, chains: Sequence[Generator[_Rate, Trial, Value]]) -> list[Value]:
        return side_by_side(
            chains, self.served.trial, crew=self.crew, function=_Served.trial, told=self._tell
        )

    def all(self, rates: Sequence[float]) -> list[Trial]:
        """At each of these, to the end."""
        chains: list[Generator[_Rate, Trial, Trial]] = [once(_Rate(rate)) for rate in rates]
        return self._of(chains)

    def highest(self, guess: float, confidence: float) -> tuple[HighestRate | None, tuple[str, ...]]:
        """The highest rate within the SLO; None, with a note, where any rate is."""
        draws = len(self.served.workloads)
        *predicted, at_confidence, low, high = self._of(
            [
                *(_bisected(guess, None, draw) for draw in range(draws)),
                *(_bisected(guess, level, 0) for level in (confidence, 0.95, 0.05)),
            ]
        )
        sampling = _interval(predicted)
        highest = HighestRate(
            predicted=predicted[0],
            at_confidence=at_confidence,
            confidence=confidence,
            low=low,
            high=high,
            replications=draws,
            sampling_low=None if sampling is None else sampling[0],
            sampling_high=None if sampling is None else sampling[1],
        )
        if not math.isinf(max(highest.predicted, highest.high)):
            return highest, ()
        note = (
            f"these {len(self.served.workloads[0]):,} requests meet the SLO at any rate: too few to fill the engine; "
            "give more (--num-prompts)"
        )
        return None, (note,)


def _bound_rate(resolved: ResolvedPool, workloads: Sequence[Workload], goal: Goal) -> float:
    """The rate at which one engine would be busy all the time at best."""
    steps = ScaledSteps(resolved.step_model, factors_at(resolved.step_model, None))
    work_s = bound(resolved, steps.step_seconds, Load.of(workloads), goal).work_s
    return 1 / work_s if work_s > 0 else 1.0


def _interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 90 % interval of one more draw, by Student's t: what another day of the same traffic would give."""
    if len(values) < 2 or not all(math.isfinite(value) for value in values):
        return None
    from scipy.special import stdtrit

    mean, spread = statistics.mean(values), statistics.stdev(values)
    reach = float(stdtrit(len(values) - 1, 0.95)) * spread * math.sqrt(1 + 1 / len(values))
    return max(mean - reach, 0.0), mean + reach


def _bisected(guess: float, level: float | None, draw: int) -> Generator[_Rate, Trial, float]:
    asking = highest_rate(guess)
    rate = next(asking)
    while True:
        trial = yield _Rate(rate, level, draw, give_up=True)
        try:
            rate = asking.send(trial.met)
        except StopIteration as found:
            highest: float = found.value
            return highest


def highest_rate(guess: float) -> Generator[float, bool, float]:
    """The highest rate that meets the SLO, within `TOLERANCE`: bracketed by doubling and halving, then bisected.

    Asks of one rate after the other whether it does. 0 where even the guess halved `MOST_DOUBLINGS` times does not;
    infinite where doubling it as often does.
    """
    low, high = 0.0, math.inf
    rate = guess
    for _ in range(MOST_DOUBLINGS):
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
    while high - low > TOLERANCE * low:
        middle = (low + high) / 2
        low, high = (middle, high) if (yield middle) else (low, middle)
    return low


def _point(rate: float, trial: Trial, price: Price | None, pools: Pools, workload: Workload) -> CurvePoint:
    """What is served is what would be for as long as the load lasts: the run's filling and draining are left out."""
    load = trial_load(pools, trial, workload, offered_per_s=rate)
    served = 0.0 if load is None else load.requests_per_s
    return CurvePoint(
        request_rate_per_s=rate,
        requests_per_s=served,
        output_tokens_per_s=0.0 if load is None else served * load.output_tokens,
        mean_e2e_s=trial.mean_e2e_s,
        tokens_per_s_per_user=trial.tokens_per_s_per_user,
        mean_batch_size=trial.mean_batch_size,
        kv_utilization_peak=trial.kv_utilization_peak,
        levels=trial.levels,
        met=trial.met,
        cost=None if load is None else cost_of(price, pools, load),
    )
