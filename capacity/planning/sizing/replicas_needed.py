"""Number of replicas that serve a load, and their cost; all commands use this computation.

With an SLO, it is the planner's answer: the fewest replicas that meet the SLO in simulation, with step times at
quantile `confidence` of their prediction error. Without an SLO, it is the fewest replicas at which the offered load is
at most `STABLE_LOAD` times their throughput under a backlog, with predicted step times, so that `simulate` finds them
stable.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capacity.answers.costs import ServedLoad, max_requests_per_s
from capacity.answers.deployment_run import (
    NO_SERVICE,
    check_fixed_replicas,
    measured_capacity,
    one_replica,
    run_service,
    verdict_on,
    with_replicas,
)
from capacity.answers.records import ReplicaCount, ReplicasNeeded
from capacity.deployment import Cost, Service, Traffic
from capacity.deployment.images import add_encoder_tokens
from capacity.deployment.use_cases import service_levels
from capacity.hardware.pricing import HOURS_PER_MONTH, Price, billed_gpus, usd_per_hour
from capacity.planning.evaluation.evaluation_context import EvaluationContext
from capacity.planning.evaluation.evaluation_pool import EvaluationPool
from capacity.planning.evaluation.resampling import SteadyTraffic, resample_traffic
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.search.best_first_search import BestFirstSearch, Entry
from capacity.planning.search.candidate_family import EvaluatedCandidate, Exclusion
from capacity.planning.search.candidate_generator import CandidateGenerator
from capacity.planning.search.few_requests import check_neighbours
from capacity.planning.search.plan_request import Market, PlanRequest, check_goal
from capacity.planning.space import Objective, Search
from capacity.pool.resolve import ResolvedPool
from capacity.simulator.verdict import STABLE_LOAD
from capacity.workload import Workload, parse_slos
from capacity.workload.windows import WINDOW_S, find_windows

ANY_GPUS = 1_000_000  # no limit on the size of a deployment
# limits on replicas tried for an SLO, relative to the stable number: more barely reduce latency
MAX_TIMES_STABLE, MAX_EXTRA_REPLICAS = 4, 16
MORE_REPLICAS = 1.5  # limit on replicas, relative to the busiest window's, if arrivals vary


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedReplicas:
    """Answer of `replicas_needed`, and the simulation of its `within_slo` (`best`) with the `context` that ran it."""

    answer: ReplicasNeeded
    best: EvaluatedCandidate | None
    context: EvaluationContext | None


def replicas_needed(
    pools: ResolvedPool | Sequence[ResolvedPool], traffic: Traffic, **options: Any
) -> ReplicasNeeded | None:
    """Return the answer of `size_replicas`, which has the same keywords."""
    found = size_replicas(pools, traffic, **options)
    return None if found is None else found.answer


def size_replicas(
    pools: ResolvedPool | Sequence[ResolvedPool],
    traffic: Traffic,
    *,
    slo: Sequence[str] | str = (),
    service: Service = NO_SERVICE,
    price: Price | None = None,
    workload: Workload | None = None,
    confidence: float = 0.9,
    replications: int = 3,
    slo_window: str = "15m",
    profiles: str | Path | None = None,
) -> SizedReplicas | None:
    """Return the fewest replicas of an engine that serve `traffic` within `slo` or the SLO of its use case.

    If the traffic is longer than `slo_window`, its busiest window must meet the SLO, as for `plan`. For several
    `pools` (tensor-parallel sizes of one GPU), return the size and replicas with the lowest bill. `service`: router,
    limits, timeout and failures. None for a closed loop without an SLO. Raises InvalidInput, as `plan`, if no SLO
    limits the waiting time, and for a service that sets or changes the number of replicas.
    """
    check_fixed_replicas(service)
    engines = [one_replica(pool) for pool in ([pools] if isinstance(pools, ResolvedPool) else pools)]
    slos = parse_slos(service_levels(slo, traffic))
    asked = add_encoder_tokens(traffic, engines[0].model)
    longest = min(engine.max_model_len for engine in engines)
    workloads = resample_traffic(asked, workload, replications if slos else 1, longest)
    first = workloads[0]
    by_clock = not first.is_closed_loop and math.isfinite(first.offered_per_s)
    rate = first.offered_per_s if by_clock else None
    if not slos and rate is None:
        return None
    varies = traffic.arrivals != "steady" or traffic.trace is not None or workload is not None
    busiest_per_s = _busiest_per_s(first) if by_clock and varies else None
    stable = _stable(engines, service, first, price, busiest_per_s) if by_clock else None
    best, reason, context = None, None, None
    if slos:
        check_goal(slos, first)
        limits = {"confidence": confidence, "slo_window": slo_window}
        request = PlanRequest(
            model=engines[0].model,
            workloads=workloads,
            goal=Goal(slos=slos),
            search=_search_space(engines, stable, price).model_copy(update=limits),
            cost=Cost(),
            profiles=profiles,
            steady=SteadyTraffic.from_traffic(asked, workload, longest, confidence),
            service=service,
        )
        context = request.context()
        best, reason = _fewest(engines, request, context, price)
    answer = ReplicasNeeded(
        requests_per_s=rate,
        busiest_requests_per_s=busiest_per_s,
        slos=tuple(map(str, slos)),
        confidence=confidence,
        stable=stable,
        within_slo=None if best is None else _count_of(best, engines, price, rate),
        reason=reason,
        judged_in=None if context is None else _window_text(context),
    )
    return SizedReplicas(answer=answer, best=best, context=context)


def _window_text(context: EvaluationContext) -> str | None:
    """Return the window of long traffic in which the SLOs apply, as text; None for short traffic."""
    window = context.windows[0] if context.windows else None
    return None if window is None else f"the busiest {window.duration} ({window.text})"


def _busiest_per_s(workload: Workload) -> float:
    """Return the request rate of the busiest window; for traffic shorter than a window, its mean request rate."""
    windows = find_windows([workload], WINDOW_S)
    if windows:
        return windows[0].requests_per_s
    return workload.offered_per_s if workload.part is None else workload.request_rate_per_s


def _stable(
    engines: Sequence[ResolvedPool],
    service: Service,
    workload: Workload,
    price: Price | None,
    busiest_per_s: float | None,
) -> ReplicaCount | None:
    """Return the fewest replicas at which the offered load is at most `STABLE_LOAD` times their capacity.

    If the arrival rate varies, this applies to the busiest window; replicas are added while shorter peaks overload
    them. None if the capacity cannot be measured.
    """
    resolved = _cheapest_when_full(engines, workload, price)
    capacity = measured_capacity([resolved], workload, service)
    if capacity is None:
        return None
    rate = workload.offered_per_s if busiest_per_s is None else busiest_per_s
    least = max(math.ceil(rate / (STABLE_LOAD * capacity.requests_per_s)), 1)
    replicas = least
    while busiest_per_s is not None and replicas < MORE_REPLICAS * least:
        pools = [with_replicas(resolved, replicas)]
        verdict = verdict_on(run_service(pools, service, workload), pools, service, workload)
        if verdict is None or verdict.verdict != "overloaded":
            break
        replicas += 1
    return _count(resolved, replicas, price, capacity.requests_per_s)


def _search_space(
    engines: Sequence[ResolvedPool], stable: ReplicaCount | None, price: Price | None
) -> Search:
    most_gpus = ANY_GPUS
    if stable is not None:  # several times the stable deployment, so that engines are nearly idle
        largest = max(engine.pool.num_gpus for engine in engines)
        most_gpus = min(largest * (MAX_TIMES_STABLE * stable.replicas + MAX_EXTRA_REPLICAS), ANY_GPUS)
    objective: Objective = "gpus" if price is None else "cost"
    return Search(gpus=(engines[0].pool.gpu,), max_gpus=most_gpus, objective=objective)


def _count_of(
    best: EvaluatedCandidate, engines: Sequence[ResolvedPool], price: Price | None, rate_per_s: float | None
) -> ReplicaCount:
    """Return the replicas of `best`; `rate_per_s` is None for a closed loop, whose rate is that of the simulation."""
    size = best.option.pool.tensor_parallel_size
    engine = next(each for each in engines if each.pool.tensor_parallel_size == size)
    rate = best.trial.requests_per_s if rate_per_s is None else rate_per_s
    return _count(engine, best.replicas, price, rate / best.replicas)


def _fewest(
    engines: Sequence[ResolvedPool], asked: PlanRequest, context: EvaluationContext, price: Price | None
) -> tuple[EvaluatedCandidate | None, str | None]:
    """Return the deployment that the planner selects among `engines`, or the reason why none meets the SLO."""
    gpu, load = engines[0].pool.gpu, asked.load
    market = Market(quotes={gpu: price}, unpriced={})
    busy = context.busy_load(load)
    generator = CandidateGenerator(context=context, search=asked.search, load=busy, market=market)
    entries: list[Entry] = []
    refused: list[str] = []
    for engine in engines:
        context.add(engine)
        found = generator.replica_searches(engine.pool)
        if isinstance(found, Exclusion):
            refused.append(found.reason)
        else:
            entries += found
    if not entries:
        return None, refused[-1]
    with EvaluationPool(context=context, intervals=False) as evaluator:
        search = BestFirstSearch(entries, evaluator, whole=bool(context.windows))
        search.run()
        if search.best is None:
            return None, f"no number of replicas up to {load.most_replicas:,} meets the service levels"
        fewer, _ = check_neighbours(search.best, evaluator)
        if fewer is not None:
            search.replace_best(fewer)
            search.verify()
        return search.best, None


def _count(resolved: ResolvedPool, replicas: int, price: Price | None, rate: float) -> ReplicaCount:
    gpus = resolved.pool.num_gpus * replicas
    billed = gpus if price is None else billed_gpus(price, gpus)
    hourly = None if price is None else usd_per_hour(price, billed)
    return ReplicaCount(
        replicas=replicas,
        tensor_parallel_size=resolved.pool.tensor_parallel_size,
        num_gpus=gpus,
        billed_gpus=billed,
        usd_per_hour=hourly,
        usd_per_month=None if hourly is None else hourly * HOURS_PER_MONTH,
        requests_per_s_per_replica=rate,
    )


def _cheapest_when_full(
    engines: Sequence[ResolvedPool], workload: Workload, price: Price | None
) -> ResolvedPool:
    """Return the engine with the lowest bill for the load, by the closed-form throughput at full load."""
    if len(engines) == 1:
        return engines[0]
    load = ServedLoad(
        requests_per_s=workload.offered_per_s,
        input_tokens=float(workload.prompt_tokens.mean()),
        output_tokens=float(workload.output_tokens.mean()),
    )

    def bill(engine: ResolvedPool) -> tuple[int, int]:
        rate = max_requests_per_s([(engine, 1)], load)
        count = _count(engine, math.ceil(workload.offered_per_s / (STABLE_LOAD * rate)), price, rate)
        return count.billed_gpus, count.replicas

    return min(engines, key=bill)
