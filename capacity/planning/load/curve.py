"""Latency of a deployment by request rate: the curve, its knee, and the highest rate that meets the SLO.

Each rate uses the same requests with scaled arrival times (common random numbers), so differences between rates come
from the deployment and not from chance.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import field_validator

from capacity.answers.costs import Pools, cost_of
from capacity.answers.deployment_run import check_fixed_replicas, measured_capacity, with_replicas
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.flags import CLUSTER
from capacity.base.keywords import document_options, split
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, build, make_deployment
from capacity.deployment.field_flags import FlagSpec
from capacity.deployment.use_cases import service_levels
from capacity.hardware.cost_estimate import CostEstimate
from capacity.hardware.pricing import Price, find_price_for_cost, price_cautions
from capacity.model import ModelSpec
from capacity.planning.evaluation.cost_bounds import Load, bound_engine
from capacity.planning.evaluation.evaluate import deployment_label, served_load_of
from capacity.planning.evaluation.resampling import resample_traffic
from capacity.planning.evaluation.slo_evaluation import Evaluation, Goal, Level
from capacity.planning.evaluation.step_error import ScaledSteps, factors_at
from capacity.planning.load.day import Day, day_of, replicas_by_hour
from capacity.planning.load.highest_rate import HighestRate, RateRuns, Served
from capacity.planning.workers.worker_pool import open_pool
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator.capacity_probe import Capacity
from capacity.workload import Workload, parse_slos
from capacity.workload.request_generation import DEFAULT_NUM_PROMPTS
from capacity.workload.windows import take_busiest_window

SHAPE_RATE = 1.0  # requests/s of traffic whose rate is ignored
SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.15, 1.3)  # fractions of the highest rate, or of the bound
Number = int | float
Progress = Callable[[int, int], None]


class RisingLoad(FlagSpec):
    """Settings of `curve`: request rates, SLO, users and hours of a day; rates in requests per second."""

    goodput_target: float = 0.99
    slo_window: str = "15m"
    confidence: float = 0.9
    rates: tuple[Number, ...] | None = None
    requests_per_user_hour: Number | None = None
    peak_rate: Number | None = None
    peak_to_mean: Number = 1.6
    hourly_rates: tuple[Number, ...] | None = None
    replications: int = 3

    @field_validator("rates")
    @classmethod
    def _above_0(cls, rates: tuple[Number, ...] | None) -> tuple[Number, ...] | None:
        if rates is not None and not (rates and min(rates) > 0):
            raise ValueError("must contain at least one number, all above 0")
        return rates


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Point of the curve: offered rate, served load, and SLO results, with predicted step times."""

    request_rate_per_s: float
    requests_per_s: float
    output_tokens_per_s: float
    mean_e2e_s: float
    tokens_per_s_per_user: float | None
    mean_batch_size: float
    kv_utilization_peak: float
    levels: tuple[Level, ...]
    met: bool
    cost: CostEstimate | None = None  # at the served part of this rate

    @property
    def power(self) -> float:
        """Return throughput/latency, highest at the knee (Kleinrock, Power and deterministic rules of thumb, 1979)."""
        return self.requests_per_s / self.mean_e2e_s if self.mean_e2e_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve(AnswerRecord):
    """Latency curve of a deployment by request rate.

    `knee_per_s` is the rate with the highest throughput / latency; None if that is the first or last rate, because the
    knee may then lie outside the evaluated rates.
    """

    SCHEMA: ClassVar[str] = "capacity/curve/v1"
    ROWS: ClassVar[str] = "points"

    deployment: str
    workload: str
    slos: tuple[str, ...]
    points: tuple[CurvePoint, ...]
    knee_per_s: float | None
    highest: HighestRate | None
    requests_per_user_hour: float | None
    users: float | None
    day: Day | None
    warnings: tuple[str, ...]


@document_options(Pool, Traffic, Cost, RisingLoad)
@validate_arguments
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
    """Compute latency by request rate, the knee, the highest rate that meets the SLO, and its number of users.

    The rate of the given traffic is ignored because its arrival times are scaled to each rate. Traffic longer than
    `slo_window` is reduced to its busiest window. The service of a deployment file (router, limits, failures) applies.
    `hourly_rates` (24, requests/s), or a `peak_rate` with `peak_to_mean`, add the replicas for each hour of a day.
    Generated traffic is drawn `replications` times to compute the sampling interval. `cluster` (tcp://host:port)
    simulates on a Dask cluster. Raises DoesNotFit and InvalidInput.
    """
    pool_fields, traffic_fields, prices, load_fields = split(options, Pool, Traffic, Cost, RisingLoad)
    load: RisingLoad = build(RisingLoad, load_fields)
    asked = {name: getattr(load, name) for name in load_fields} | {"request_rate": SHAPE_RATE}
    deployment = make_deployment(
        model, pool=pool_fields, traffic=traffic_fields, cost=prices, question="curve", **asked
    )
    pool, traffic, service = deployment.pool, deployment.traffic, deployment.service
    check_fixed_replicas(service)
    resolved = resolve(deployment.model, pool, profiles=profiles, download=download)
    resolved.memory.require_fit()
    if traffic.trace is None and "request_rate" not in traffic.model_fields_set:
        traffic = traffic.model_copy(update={"request_rate": SHAPE_RATE})
    drawn = resample_traffic(traffic, workload, load.replications, resolved.max_model_len)
    varies = workload is not None or traffic.trace is not None or traffic.arrivals != "steady"
    workloads, window_notes = _in_busiest_window(drawn, load.slo_window) if varies else (drawn, ())
    goal = Goal(slos=parse_slos(service_levels(slo, traffic)), goodput_target=load.goodput_target)
    price = find_price_for_cost(resolved.profile.name, deployment.cost)
    served = Served(
        resolved=resolved, workloads=workloads, goal=goal, replicas=pool.replicas, service=service
    )
    return _curve(served, load, price, cluster=cluster, progress=progress, notes=window_notes)


def _in_busiest_window(
    workloads: Sequence[Workload], slo_window: str
) -> tuple[Sequence[Workload], tuple[str, ...]]:
    """Return the requests of the busiest window (all requests if the window has too few), and notes on the choice."""
    if (part := workloads[0].part) is not None:
        return workloads, (_rates_note(part, workloads[0], workloads[0].request_rate_per_s),)
    parts, windows = take_busiest_window(workloads, slo_window)
    if not windows:
        return workloads, ()
    busiest = windows[0]
    if busiest.requests < DEFAULT_NUM_PROMPTS:
        return workloads, (
            f"The SLO is evaluated over all requests, because the busiest {slo_window} has {busiest.requests:,} "
            f"requests and a curve needs {DEFAULT_NUM_PROMPTS:,}.",
        )
    return parts, (
        _rates_note(f"the busiest {slo_window}, {busiest.label}", workloads[0], busiest.requests_per_s),
    )


def _rates_note(part: str, whole: Workload, part_per_s: float) -> str:
    share = whole.offered_per_s / part_per_s
    return f"The curve is for {part}; the mean rate of the whole traffic is {share:.2f} times the rate of this part."


def _curve(
    served: Served,
    load: RisingLoad,
    price: Price | None,
    *,
    cluster: str | None,
    progress: Progress | None,
    notes: Sequence[str],
) -> Curve:
    """Return the curve of a deployment, at the given rates or around the highest rate that meets the SLO.

    The points use the first workload. The other workloads are samples of the same traffic and contribute only to the
    sampling interval. `progress(done, total)` counts simulations; `total` is an estimate.
    """
    resolved, workloads, goal, replicas = served.resolved, served.workloads, served.goal, served.replicas
    if any(workload.is_closed_loop for workload in workloads):
        raise InvalidInput("a curve needs open-loop arrivals: leave out --concurrency and sessions")
    with nullcontext() if cluster is None else open_pool(1, cluster, common=(served,)) as worker_pool:
        runs = RateRuns(served=served, worker_pool=worker_pool, progress=progress)
        runs.expected = len(load.rates or SHARES) + (9 * (3 + len(workloads)) if goal.slos else 0)
        guess = _bound_rate(resolved, workloads[:1], goal) * replicas
        highest, rate_notes = runs.highest(guess, load.confidence) if goal.slos else (None, ())
        around = highest.predicted if highest is not None and highest.predicted > 0 else guess
        rates = sorted(load.rates) if load.rates else [share * around for share in SHARES]
        trials = runs.evaluate_all(rates)
        remarks = () if worker_pool is None else worker_pool.remarks
    capacity = measured_capacity([with_replicas(resolved, replicas)], workloads[0], served.service)
    points = tuple(
        _point(rate, trial, price, [(resolved, replicas)], workloads[0], capacity)
        for rate, trial in zip(rates, trials, strict=True)
    )
    best = max(range(len(points)), key=lambda at: points[at].power)
    each = load.requests_per_user_hour
    usable = None if highest is None else highest.at_confidence
    return Curve(
        deployment=deployment_label(resolved),
        workload=workloads[0].name,
        slos=tuple(str(slo) for slo in goal.slos),
        points=points,
        knee_per_s=points[best].request_rate_per_s if 0 < best < len(points) - 1 else None,
        highest=highest,
        requests_per_user_hour=each,
        users=None if each is None or usable is None else usable * 3600 / each,
        day=_day(load, served, usable, price),
        warnings=(
            *notes,
            *rate_notes,
            *price_cautions(price),
            *resolved.notes,
            *resolved.split_notes(workloads[0].mean_prompt_tokens),
            *workloads[0].notices,
            *remarks,
        ),
    )


def _day(load: RisingLoad, served: Served, usable_per_s: float | None, price: Price | None) -> Day | None:
    """Return the replicas for the 24 hourly rates, given or computed from `peak_rate`; None if neither is set."""
    rates_per_s = load.hourly_rates
    if rates_per_s is None:
        if load.peak_rate is None:
            return None
        rates_per_s = day_of(load.peak_rate / load.peak_to_mean, load.peak_to_mean)
    gpus = served.resolved.pool.num_gpus
    return replicas_by_hour(
        rates_per_s, usable_per_s, replicas=served.replicas, gpus_per_replica=gpus, price=price
    )


def _bound_rate(resolved: ResolvedPool, workloads: Sequence[Workload], goal: Goal) -> float:
    """Return the request rate at which one engine is always busy at its most efficient batch size within the SLO."""
    steps = ScaledSteps(resolved.step_model, factors_at(resolved, None))
    work_s = bound_engine(resolved, steps.step_seconds, Load.average(workloads), goal).work_s
    return 1 / work_s if work_s > 0 else 1.0


def _point(
    rate: float,
    trial: Evaluation,
    price: Price | None,
    pools: Pools,
    workload: Workload,
    capacity: Capacity | None,
) -> CurvePoint:
    """Return one point of the curve; the served load is that of the steady state, without warm-up and drain."""
    most = None if capacity is None else capacity.requests_per_s
    load = served_load_of(pools, trial, workload, offered_per_s=rate, capacity_per_s=most)
    served = 0.0 if load is None else load.requests_per_s
    return make_from(
        CurvePoint,
        trial,
        request_rate_per_s=rate,
        requests_per_s=served,
        output_tokens_per_s=0.0 if load is None else served * load.output_tokens,
        cost=None if load is None else cost_of(price, pools, load),
    )
