"""Number of replicas that serve a load, and their cost; all commands use this computation.

With an SLO, it is the planner's answer: the fewest replicas that meet the SLO in simulation, with step times that are
not exceeded with probability `confidence`. Without an SLO, it is the fewest replicas at which the offered load is at
most `STABLE_LOAD` times their throughput under a backlog, with predicted step times, so that `simulate` finds them
stable.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from capacity.answers.costs import ServedLoad, max_requests_per_s
from capacity.answers.deployment_run import (
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
from capacity.planning.space import Search
from capacity.pool.resolve import ResolvedPool
from capacity.simulator.verdict import STABLE_LOAD
from capacity.workload import Workload, parse_slos
from capacity.workload.windows import WINDOW_S, find_windows

ANY_GPUS = 1_000_000  # no limit on the size of a deployment
MAX_TIMES_STABLE, MAX_EXTRA_REPLICAS = (
    4,
    16,
)  # limits on replicas tried for an SLO: more barely reduce latency
MORE_REPLICAS = 1.5  # limit on replicas, relative to the busiest window's, if arrivals vary


def replicas_needed(
    pools: ResolvedPool | Sequence[ResolvedPool],
    traffic: Traffic,
    *,
    slo: Sequence[str] | str = (),
    price: Price | None = None,
    workload: Workload | None = None,
    confidence: float = 0.9,
    goodput_target: float = 0.99,
    replications: int = 3,
    slo_window: str = "15m",
    profiles: str | Path | None = None,
) -> ReplicasNeeded | None:
    """Return the fewest replicas of an engine that serve `traffic` within `slo` or the SLO of its use case.

    If the traffic is longer than `slo_window`, its busiest window must meet the SLO, as for `plan`. For several
    `pools` (tensor-parallel sizes of one GPU), return the size and replicas with the lowest bill. None for a closed
    loop without an SLO. Raises InvalidInput, as `plan`, if no SLO limits the waiting time.
    """
    engines = [one_replica(pool) for pool in ([pools] if isinstance(pools, ResolvedPool) else pools)]
    slos = parse_slos(service_levels(slo, traffic))
    asked = add_encoder_tokens(traffic, engines[0].model)
    longest = min(engine.max_model_len for engine in engines)
    workloads = resample_traffic(asked, workload, replications if slos else 1, longest)
    first = workloads[0]
    by_clock = not first.is_closed_loop and math.isfinite(first.offered_per_s)
    if not slos and not by_clock:
        return None
    varies = traffic.arrivals != "steady" or traffic.trace is not None or workload is not None
    stable, busiest_per_s = None, None
    if by_clock:
        busiest_per_s = _busiest_per_s(first) if varies else None
        stable = _stable(_cheapest_when_full(engines, first, price), first, price, busiest_per_s)
    within, reason, judged_in = None, None, None
    if slos:
        check_goal(slos, first)
        search = Search(
            gpus=(engines[0].pool.gpu,),
            max_gpus=_most_gpus(engines, stable),
            objective="gpus" if price is None else "cost",
            confidence=confidence,
            goodput_target=goodput_target,
            slo_window=slo_window,
        )
        question = PlanRequest(
            model=engines[0].model,
            workloads=workloads,
            goal=Goal(slos=slos, goodput_target=goodput_target),
            search=search,
            cost=Cost(),
            profiles=profiles,
            steady=SteadyTraffic.from_traffic(asked, workload, longest, confidence),
        )
        arena = question.arena()
        best, reason = _fewest(engines, question, arena, price)
        if arena.windows:
            judged_in = f"the busiest {arena.windows[0].duration} ({arena.windows[0].text})"
        if best is not None:
            size = best.option.pool.tensor_parallel_size
            engine = next(each for each in engines if each.pool.tensor_parallel_size == size)
            rate = first.offered_per_s if by_clock else best.trial.requests_per_s
            within = _count(engine, best.replicas, price, rate / best.replicas)
    return ReplicasNeeded(
        requests_per_s=first.offered_per_s if by_clock else None,
        busiest_requests_per_s=busiest_per_s,
        slos=tuple(map(str, slos)),
        confidence=confidence,
        stable=stable,
        within_slo=within,
        reason=reason,
        judged_in=judged_in,
    )


def _busiest_per_s(workload: Workload) -> float:
    """Return the request rate of the busiest window; for traffic shorter than a window, its mean request rate."""
    windows = find_windows([workload], WINDOW_S)
    if windows:
        return windows[0].requests_per_s
    return workload.offered_per_s if workload.part is None else workload.request_rate_per_s


def _stable(
    resolved: ResolvedPool, workload: Workload, price: Price | None, busiest_per_s: float | None
) -> ReplicaCount | None:
    """Return the fewest replicas at which the offered load is at most `STABLE_LOAD` times their capacity.

    If the arrival rate varies, this applies to the busiest window; replicas are added while shorter peaks overload
    them. None if the capacity cannot be measured.
    """
    capacity = measured_capacity([resolved], workload)
    if capacity is None:
        return None
    rate = workload.offered_per_s if busiest_per_s is None else busiest_per_s
    least = max(math.ceil(rate / (STABLE_LOAD * capacity.requests_per_s)), 1)
    replicas = least
    while busiest_per_s is not None and replicas < MORE_REPLICAS * least:
        pools = [with_replicas(resolved, replicas)]
        verdict = verdict_on(run_service(pools, Service(), workload), pools, Service(), workload)
        if verdict is None or verdict.verdict != "overloaded":
            break
        replicas += 1
    return _count(resolved, replicas, price, capacity.requests_per_s)


def _most_gpus(engines: Sequence[ResolvedPool], stable: ReplicaCount | None) -> int:
    """Return the most GPUs to try: a few times those of the stable deployment, with which engines are nearly idle."""
    if stable is None:
        return ANY_GPUS
    largest = max(engine.pool.num_gpus for engine in engines)
    return largest * (MAX_TIMES_STABLE * stable.replicas + MAX_EXTRA_REPLICAS)


def _fewest(
    engines: Sequence[ResolvedPool], asked: PlanRequest, arena: EvaluationContext, price: Price | None
) -> tuple[EvaluatedCandidate | None, str | None]:
    """Return the planner's answer among `engines`, or the reason why none meets the SLO."""
    gpu, load = engines[0].pool.gpu, asked.load
    market = Market(quotes={gpu: price}, unpriced={})
    busy = arena.busy_load(load)
    surveyor = CandidateGenerator(arena=arena, search=asked.search, load=busy, market=market)
    entries: list[Entry] = []
    refused: list[str] = []
    for engine in engines:
        arena.add(engine)
        found = surveyor.replica_searches(engine.pool)
        if isinstance(found, Exclusion):
            refused.append(found.reason)
        else:
            entries += found
    if not entries:
        return None, refused[-1]
    with EvaluationPool(arena=arena, intervals=False) as bench:
        chase = BestFirstSearch(entries, bench, whole=bool(arena.windows))
        chase.run()
        if chase.best is None:
            return None, f"no number of replicas up to {load.most_replicas:,} meets the service levels"
        fewer, _ = check_neighbours(chase.best, bench)
        if fewer is not None:
            chase.replace_best(fewer)
            chase.verify()
        return chase.best, None


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
    """Return the engine with the lowest bill; replicas are counted from the closed-form throughput at full load."""
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
