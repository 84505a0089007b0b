"""One deployment of a comparison at equal load: its replicas, bill, latency curve, day and energy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from capacity.answers.drawn_energy import DrawnEnergy, drawn_energy
from capacity.answers.engine_setup import make_workload
from capacity.answers.records import ReplicaCount
from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.record import make_from
from capacity.deployment import DeploymentFile, Traffic
from capacity.hardware.pricing import Price, find_price_for_cost
from capacity.planning.evaluation.evaluate import deployment_label
from capacity.planning.evaluation.evaluation_context import EvaluationRequest
from capacity.planning.evaluation.slo_evaluation import Evaluation, Goal, Level
from capacity.planning.load.curve import SHARES, CurvePoint, curve
from capacity.planning.load.day import Day, hourly_rates, replicas_by_hour
from capacity.planning.load.highest_rate import HighestRate, RateRuns, Served
from capacity.planning.sizing.replicas_needed import SizedReplicas, size_replicas
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import Workload
from capacity.workload.request_generation import DEFAULT_NUM_PROMPTS
from capacity.workload.windows import Window

MEMORY_PARTS = ("weights", "activations", "overhead", "kv_cache")
CONFIDENCE = 0.9  # that the replicas meet the SLO, as in `plan` and `cost`
MOST_SIMULATED = 8  # replicas in the curve of a side; more barely change the capacity of each
REQUESTS_PER_REPLICA = 500  # in that curve, at least
MOST_TIMES_GUESS = 64  # highest concurrency of that curve, relative to the first guess
REQUESTS_PER_SLOT = 40  # in that curve of a closed loop, at most, for each request in flight
ROUNDING = 1e-9  # relative, so that the load divided by the capacity rounds up to the replicas
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPoint:
    """Point of a side's curve, with predicted step times. `load_per_replica`: requests/s or requests in flight."""

    load_per_replica: float
    output_tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float | None
    levels: tuple[Level, ...]
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One of the compared deployments; `reason`: why it has no replicas (does not fit, or no number meets the SLO).

    Loads are in requests/s or, for a closed loop, in requests in flight. `needed` has the replicas and bill for the
    common load, as in `plan` and `cost`. `carried_load`: the load that these replicas serve within the SLO, scaled
    from the `highest` load of `simulated_replicas` replicas, whose curve is `points`. `load_per_replica`: the load
    that one replica serves within the SLO, limited so that the common load needs the replicas of `needed`.
    `served_per_s`: requests/s that these replicas serve at the common load. `costed_per_s`: requests/s by which the
    cost per request is computed, those of fully used replicas or, for a closed loop, `served_per_s`. `utilization`:
    fraction of the throughput under a backlog, as in `cost`; None for a closed loop.

    `levels`: SLO results of these replicas with step times at the required confidence, in `window`, the worst window
    of traffic that is longer than a window. `day`: replicas by hour of traffic of a day. `drawn`: power and energy at
    the common load, as in `plan`. `memory_bytes`: use of each GPU by part.
    """

    name: str
    deployment: str
    reason: str | None = None
    needed: ReplicaCount | None = None
    price: Price | None = None
    gpus_per_replica: int = 0
    carried_load: float | None = None
    load_per_replica: float = 0.0
    served_per_s: float | None = None
    costed_per_s: float | None = None
    utilization: float | None = None
    levels: tuple[Level, ...] = ()
    window: Window | None = None
    day: Day | None = None
    drawn: DrawnEnergy | None = None
    simulated_replicas: int = 0
    highest: HighestRate | None = None
    points: tuple[ComparedPoint, ...] = ()
    memory_bytes: dict[str, float] = field(default_factory=dict)

    def usd_per_hour_at(self, load: float, load_per_replica: Floats | float) -> Floats:
        """Return the bill ($/h) for `load` if a replica serves `load_per_replica`; infinite if that is 0."""
        assert self.price is not None
        unit = self.price.gpus_per_instance
        with np.errstate(divide="ignore"):
            gpus = np.ceil(load / np.asarray(load_per_replica, float)) * self.gpus_per_replica
        return np.asarray(np.ceil(gpus / unit) * unit * self.price.usd_per_gpu_hour)

    def usd_per_request_at(self, requests_per_s: Floats | float) -> Floats:
        """Return $ per request if the replicas of `needed` serve `requests_per_s`; infinite if that is 0."""
        assert self.price is not None
        assert self.needed is not None
        hourly = self.price.usd_per_gpu_hour * self.needed.num_gpus
        with np.errstate(divide="ignore"):
            return np.asarray(hourly / 3600 / np.asarray(requests_per_s, float))


@dataclass(slots=True, kw_only=True)
class SizedSide:
    """A compared deployment (`found`) with what the interval of its cost needs.

    `error`: why it cannot run at all. `loop_rates`: requests/s that its replicas serve in a closed loop, by error of
    the step times in standard deviations.
    """

    found: ComparedSide
    resolved: ResolvedPool | None = None
    error: CapacityError | None = None
    warnings: tuple[str, ...] = ()
    loop_rates: dict[float, float] = field(default_factory=dict)


def size_side(
    name: str, described: DeploymentFile, traffic: Traffic, slo: Sequence[str], load: float, **place: Any
) -> SizedSide:
    """Return one deployment of the comparison with its replicas and latency curve, or why it cannot run.

    `load`: requests/s or, for a closed loop, requests in flight. `place`: the keywords `profiles` and `download`.
    """
    pool = described.pools[0].model_copy(update={"replicas": 1})
    deployment = described.model_copy(update={"pools": (pool,), "traffic": traffic})
    model = getattr(deployment.model, "name", deployment.model)
    side = SizedSide(found=ComparedSide(name=name, deployment=f"{model} on {pool.num_gpus} x {pool.gpu}"))
    try:
        resolved = side.resolved = resolve(deployment.model, pool, **place)
        side.found = replace(
            side.found,
            deployment=deployment_label(resolved),
            gpus_per_replica=resolved.pool.num_gpus,
            memory_bytes={part: getattr(resolved.memory, f"{part}_bytes") for part in MEMORY_PARTS},
        )
        resolved.memory.require_fit()
        _size(side, resolved, deployment, slo, load, **place)
    except CapacityError as error:
        side.error = None if side.found.reason else error
        side.found = replace(side.found, needed=None, reason=side.found.reason or str(error))
    return side


def _size(
    side: SizedSide,
    resolved: ResolvedPool,
    deployment: DeploymentFile,
    slo: Sequence[str],
    load: float,
    **place: Any,
) -> None:
    """Set the replicas of a deployment that the load needs, and the curve of at most `MOST_SIMULATED` replicas."""
    price = find_price_for_cost(resolved.profile.name, deployment.cost)
    sized = size_replicas(
        resolved,
        deployment.traffic,
        slo=slo,
        service=deployment.service,
        price=price,
        confidence=CONFIDENCE,
        profiles=place["profiles"],
    )
    assert sized is not None  # it has an SLO
    needed = sized.answer.within_slo
    reason = None if needed else f"no number of replicas meets the SLO ({sized.answer.reason})"
    side.found = replace(side.found, price=price, needed=needed, reason=reason)
    simulated = min(needed.replicas if needed else 1, MOST_SIMULATED)
    if deployment.traffic.concurrency is None:
        _set_rate_curve(side, deployment, slo, simulated, **place)
    else:
        _set_loop_curve(side, resolved, deployment, sized, simulated)
    if needed is not None:
        _set_load(side, needed, sized, load)
        _set_served(side, resolved, deployment, sized)
        _set_day(side, deployment.traffic, sized)


def _set_rate_curve(
    side: SizedSide, deployment: DeploymentFile, slo: Sequence[str], simulated: int, **place: Any
) -> None:
    """Set the curve of `simulated` replicas by request rate, as `curve` computes it."""
    pool = deployment.pools[0].model_copy(update={"replicas": simulated})
    traffic = _curve_traffic(deployment.traffic, simulated)
    asked = deployment.model_copy(update={"pools": (pool,), "traffic": traffic})
    rising = curve(asked, slo=slo, replications=1, confidence=CONFIDENCE, **place)
    if rising.highest is None:
        raise InvalidInput(" ".join(rising.warnings))
    side.warnings = rising.warnings
    loads = [point.request_rate_per_s for point in rising.points]
    _set_points(side, simulated, rising.highest, dict(zip(loads, rising.points, strict=True)))


def _curve_traffic(traffic: Traffic, replicas: int) -> Traffic:
    """Return the traffic with enough requests for the curve of this many replicas, if its length is not fixed."""
    steady = traffic.num_prompts is None and traffic.trace is None and traffic.arrivals == "steady"
    if replicas == 1 or not steady:
        return traffic
    requests = max(DEFAULT_NUM_PROMPTS, REQUESTS_PER_REPLICA * replicas)
    return traffic.model_copy(update={"num_prompts": requests})


def _set_loop_curve(
    side: SizedSide,
    resolved: ResolvedPool,
    deployment: DeploymentFile,
    sized: SizedReplicas,
    simulated: int,
) -> None:
    """Set the curve of `simulated` replicas by the number of requests in flight."""
    assert sized.context is not None
    drawn, concurrency = sized.context.workloads[0], deployment.traffic.concurrency
    assert concurrency is not None
    replicas = 1 if sized.best is None else sized.best.replicas
    full = resolved.max_num_seqs * simulated
    guess = min(math.ceil(concurrency * simulated / replicas), full)
    most = min(guess * MOST_TIMES_GUESS, 2 * full)
    served = Served(
        resolved=resolved,
        workloads=[_larger_loop(deployment.traffic, drawn, most, resolved.max_model_len)],
        goal=Goal(slos=sized.context.goal.slos),
        replicas=simulated,
        service=deployment.service,
    )
    runs = RateRuns(served=served, worker_pool=None, progress=None)
    highest, highest_notes = runs.highest(guess, CONFIDENCE)
    assert highest is not None  # of a closed loop
    around = highest.predicted or guess
    loads = sorted({max(round(share * around), 1) for share in SHARES})
    split_notes = resolved.split_notes(drawn.mean_prompt_tokens)
    side.warnings = (*highest_notes, *resolved.notes, *split_notes, *drawn.notices)
    _set_points(side, simulated, highest, dict(zip(loads, runs.evaluate_all(loads), strict=True)))


def _set_points(
    side: SizedSide, simulated: int, highest: HighestRate, points: Mapping[float, CurvePoint | Evaluation]
) -> None:
    """Set the curve of `simulated` replicas: `points` by load, and the `highest` load within the SLO."""
    gpus = simulated * side.found.gpus_per_replica
    found = tuple(
        make_from(
            ComparedPoint,
            point,
            load_per_replica=load / simulated,
            output_tokens_per_s_per_gpu=point.output_tokens_per_s / gpus,
        )
        for load, point in points.items()
    )
    side.found = replace(side.found, simulated_replicas=simulated, highest=highest, points=found)


def _larger_loop(traffic: Traffic, drawn: Workload, concurrency: int, max_model_len: int) -> Workload:
    """Return a closed loop with `concurrency` requests in flight, and as many requests for each as `drawn` has, at most
    `REQUESTS_PER_SLOT`."""
    assert drawn.concurrency is not None
    each = min(len(drawn) / drawn.concurrency, REQUESTS_PER_SLOT)
    changes = {"concurrency": concurrency, "num_prompts": math.ceil(concurrency * each)}
    return make_workload(traffic.model_copy(update=changes), max_model_len)


def _set_load(side: SizedSide, needed: ReplicaCount, sized: SizedReplicas, load: float) -> None:
    """Set the load that the replicas carry, and the utilization, from the curve."""
    highest, throughput = side.found.highest, sized.answer.stable
    assert highest is not None
    busy = load / (sized.answer.busiest_requests_per_s or load)
    least, most = load / needed.replicas, load / max(needed.replicas - 1, ROUNDING)
    each = highest.at_confidence / side.found.simulated_replicas * busy
    side.found = replace(
        side.found,
        carried_load=max(each, least) * needed.replicas,
        load_per_replica=min(max(each, least * (1 + ROUNDING)), most * (1 - ROUNDING)),
        utilization=None if throughput is None else least / busy / throughput.requests_per_s_per_replica,
    )


def _set_served(
    side: SizedSide, resolved: ResolvedPool, deployment: DeploymentFile, sized: SizedReplicas
) -> None:
    """Set the SLO results, the served requests/s and the drawn energy of the replicas at the common load."""
    best, context = sized.best, sized.context
    assert best is not None
    assert context is not None
    trial = best.trial
    if deployment.traffic.concurrency is not None:
        levels = (None, 0.05, CONFIDENCE, 0.95)
        asked = [EvaluationRequest(best.candidate, level, give_up=False) for level in levels]
        trials = [context.run(each) for each in asked]
        places = [0.0 if level is None else NormalDist().inv_cdf(level) for level in levels]
        side.loop_rates = dict(zip(places, (each.requests_per_s for each in trials), strict=True))
        trial = trials[0]
    pools = [(resolved, best.replicas)]
    load = context.served_load(pools, trial, sized.answer.requests_per_s)
    served = None if load is None else load.requests_per_s
    loop = sized.answer.requests_per_s is None
    side.found = replace(
        side.found,
        levels=best.trial.levels,
        window=best.trial.window,
        served_per_s=served,
        costed_per_s=served if loop else side.found.carried_load,
        drawn=None if load is None else drawn_energy(pools, load),
    )


def _set_day(side: SizedSide, traffic: Traffic, sized: SizedReplicas) -> None:
    """Set the replicas by hour, as `curve` computes them, if the traffic covers a day.

    A replica serves so much that the hour with the highest rate needs the replicas of `needed`. The busiest minutes of
    the other hours are assumed to exceed the rate of their hour as much as those of this hour.
    """
    context = sized.context
    assert context is not None
    rates_per_s = hourly_rates(traffic, (context.whole or context.workloads)[0])
    if rates_per_s is None:
        return
    mean_per_s = sized.answer.requests_per_s
    assert mean_per_s is not None
    day = replicas_by_hour(
        rates_per_s,
        side.found.load_per_replica * max(rates_per_s) / mean_per_s,
        replicas=1,
        gpus_per_replica=side.found.gpus_per_replica,
        price=side.found.price,
    )
    side.found = replace(side.found, day=day)
