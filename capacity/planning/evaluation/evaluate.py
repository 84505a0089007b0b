"""Simulate one deployment on the traffic, with the simulator's cluster and router, and compare it with the SLO;
bisect the request rate at which it still meets it.

With round-robin routing, identical replicas do not affect each other. If arrivals do not wait for answers, each of R
replicas receives every R-th request, so one replica can represent all of them in a first evaluation. A final answer
always simulates all replicas.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from capacity.answers.costs import Pools, ServedLoad, max_requests_per_s
from capacity.answers.deployment_run import NO_SERVICE, dispatch_settings, kv_link
from capacity.answers.engine_setup import engine_frontend, setup_of
from capacity.answers.routes import takes_of
from capacity.deployment import Service
from capacity.planning.evaluation.slo_evaluation import (
    Evaluation,
    Goal,
    cannot_meet_slo,
    evaluate_slos,
    projected_miss_ratio,
)
from capacity.planning.evaluation.step_error import Factors, ScaledSteps
from capacity.planning.space import Role
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.workload import Workload

Check = Callable[[], None] | None

AS_PREDICTED = Factors()
STRETCH_DIVISOR = 12  # a long run starts with the busiest 1/12 of its requests
MIN_STRETCH_REQUESTS = 400  # requests of a stretch: fewer save no time
MAX_STRETCHES = 4  # stretches, at most, before the whole run
LONG_RUN = 1600  # requests
MIN_SAMPLE_REQUESTS = 400  # requests of one replica that may represent all


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGroup:
    """Identical engines; `factors` scale their step times. `made`: simulator setup of one engine if already built."""

    resolved: ResolvedPool
    replicas: int = 1
    factors: Factors = AS_PREDICTED
    role: Role = "both"
    made: EngineSetup | None = None

    def setup(self) -> EngineSetup:
        made = self.made or scaled_setup(self.resolved, self.factors)
        return made if made.role == self.role else replace(made, role=self.role)


def deployment_label(resolved: ResolvedPool) -> str:
    """Return a one-line label with model, GPUs and engine."""
    gpus = f"{resolved.pool.num_gpus} x {resolved.profile.name}"
    if resolved.pool.replicas > 1:
        gpus = f"{resolved.pool.replicas} replicas of {gpus}"
    return f"{resolved.model.name} on {gpus}, {resolved.engine.label}"


def scaled_setup(resolved: ResolvedPool, factors: Factors) -> EngineSetup:
    """Return the simulator setup of one engine with step times scaled by `factors`. Raises InvalidInput."""
    setup = setup_of(resolved)
    return replace(setup, step_times=ScaledSteps(setup.step_times, factors))


def most_replicas(workload: Workload) -> int:
    """Return the largest number of replicas that can each receive a request; more would leave some idle."""
    if workload.concurrency is not None:
        return min(workload.concurrency, len(workload))
    return len(workload) if workload.session is None else len(np.unique(workload.session))


def run_engines(
    engines: Sequence[EngineGroup],
    workload: Workload,
    *,
    router: str = "round-robin",
    service: Service = NO_SERVICE,
    check: Check = None,
) -> SimulationResult:
    """Simulate the deployment on `workload`; an exception that `check` raises ends it. Raises InvalidInput.

    A `service` that is not the default replaces `router`.
    """
    apart = any(pool.role != "both" for pool in engines)
    pools = [pool.resolved for pool in engines]
    setups = [setup for pool in engines for setup in [pool.setup()] * pool.replicas]
    settings: Mapping[str, Any] = {"router": router if len(setups) > 1 else None}
    if service != NO_SERVICE:
        settings = dispatch_settings(pools, service)
        setups = [replace(setup, takes=takes_of(pools[0], 0, service)) for setup in setups]
    return simulate(
        workload,
        setups,
        frontend=engine_frontend(pools[0], workload),
        link=kv_link(pools, service) if apart else None,
        check=check,
        **settings,
    )


def evaluate_engines(
    engines: Sequence[EngineGroup],
    workloads: Sequence[Workload],
    goal: Goal,
    *,
    router: str = "round-robin",
    service: Service = NO_SERVICE,
    give_up: bool = True,
    sample: bool = False,
    intervals: bool = False,
    first_draw: bool = False,
    check: Check = None,
    begun: list[SimulationResult] | None = None,
) -> Evaluation:
    """Simulate the deployment on `workloads` (samples of one traffic) and compare all requests with the SLO.

    `give_up`: stop once the requests so far make a miss certain (`cannot_meet_slo`), or in long runs very likely
    (`projected_miss_ratio`). `sample`: in a long run, simulate one replica to represent all if they do not affect each
    other. `first_draw`: in a short run, stop after the first of `workloads` if it meets the SLO. A deployment that
    stalls misses the SLO. `begun`: existing runs of the first workloads; runs that a later evaluation can reuse are
    added to it. `check` is called repeatedly; an exception that it raises ends the evaluation.
    """
    first, total = workloads[0], sum(len(workload) for workload in workloads)
    # number of independent replicas, each with the same number of requests
    affected = router != "round-robin" or service != NO_SERVICE
    shared = affected or first.is_closed_loop or first.session is not None
    alike = 1 if shared or len(engines) > 1 else engines[0].replicas
    # of the replica that represents all
    part = first if alike == 1 else first.select(np.arange(0, len(first), alike))
    one = [replace(engines[0], replicas=1)] if alike > 1 else engines
    is_long, users = total >= LONG_RUN, first.think_s is not None
    sampled = sample and is_long and len(part) >= MIN_SAMPLE_REQUESTS

    def run(engines: Sequence[EngineGroup], workload: Workload) -> SimulationResult:
        return run_engines(engines, workload, router=router, service=service, check=check)

    if give_up and is_long and not first.is_closed_loop and len(part) >= MAX_STRETCHES * MIN_STRETCH_REQUESTS:
        looks = _stretches_that_miss(part, partial(run, one), goal, total, alone=sampled)
        if looks is not None:
            return evaluate_slos(looks, goal, seen="given up")
    if sampled and alike * len(workloads) > 1:
        return evaluate_slos([run(one, part)], goal, seen="sample", replicas=alike, users=users)
    begun = [] if begun is None else begun
    runs, begun[:] = list(begun), []
    for number, workload in enumerate(workloads, 1):
        if number > len(runs):
            runs.append(run(engines, workload))
        if number == len(workloads):
            break
        seen = runs[:number]
        if first_draw and sample:
            trial = evaluate_slos(seen, goal, seen="sample", users=users)
            if trial.met:
                begun.extend(seen)
                return trial
        share = number / len(workloads) if is_long else 1.0
        if give_up and cannot_meet_slo(seen, goal, total, share=share, parts=number):
            return evaluate_slos(seen, goal, seen="given up", users=users)
    return evaluate_slos(runs, goal, seen="all", intervals=intervals, users=users)


def _stretches_that_miss(
    part: Workload,
    simulate_part: Callable[[Workload], SimulationResult],
    goal: Goal,
    total: int,
    *,
    alone: bool,
) -> list[SimulationResult] | None:
    """Simulate the busiest stretches (consecutive requests) of `part`, the requests of one replica or of all.

    Return the results once a miss of the SLO is very likely, else None. `total`: number of requests of the whole
    traffic. `alone`: the requests of `part` alone must meet the SLO.
    """
    looks: list[SimulationResult] = []
    for stretch in _busiest_first(part)[:MAX_STRETCHES]:
        looks.append(simulate_part(stretch))
        ahead = projected_miss_ratio(looks, goal, total, share=len(part) / total, alone=alone)
        if ahead > 1:
            return looks
        if ahead * len(part) <= sum(len(look.records) for look in looks):
            break  # at this rate it may meet the SLO
    return None


def _busiest_first(workload: Workload) -> list[Workload]:
    """Split the requests into consecutive stretches and return them, the busiest first.

    A stretch has about 1/`STRETCH_DIVISOR` of the requests, at least `MIN_STRETCH_REQUESTS`. Its latencies are no
    worse when it is simulated alone, on an empty engine, than within the whole run.
    """
    total = len(workload)
    count = min(max(total // STRETCH_DIVISOR, MIN_STRETCH_REQUESTS), total)
    spans_s = workload.arrival_s[count - 1 :] - workload.arrival_s[: total - count + 1]
    first = int(np.argmin(spans_s))
    places = [np.arange(first, first + count)]
    for begin, end in ((0, first), (first + count, total)):
        pieces = max(round((end - begin) / count), 1)
        places += [piece for piece in np.array_split(np.arange(begin, end), pieces) if len(piece)]
    others = sorted(places[1:], key=lambda at: workload.arrival_s[at[-1]] - workload.arrival_s[at[0]])
    return [workload.select(at) for at in (places[0], *others)]


def served_load_of(
    pools: Pools,
    trial: Evaluation,
    workload: Workload,
    *,
    offered_per_s: float | None,
    capacity_per_s: float | None = None,
) -> ServedLoad | None:
    """Return the load that `pools` serve in steady state; None if the simulation `trial` completed no request.

    `offered_per_s` is the request rate of an open loop; the served rate is at most `capacity_per_s` (None: estimated
    from step times). If `offered_per_s` is None, the loop is closed and the served rate is that of `trial`. For
    generated open-loop requests, mean lengths are those of the length distributions.
    """
    if not trial.requests_per_s:
        return None
    load = ServedLoad(
        requests_per_s=offered_per_s or trial.requests_per_s,
        input_tokens=trial.input_tokens_per_s / trial.requests_per_s,
        output_tokens=trial.output_tokens_per_s / trial.requests_per_s,
        in_flight=None if workload.concurrency is None else float(workload.concurrency),
        hit_fraction=trial.hit_fraction,
    )
    if offered_per_s is None:
        return load
    load = load.limited_to_rate(capacity_per_s or max(max_requests_per_s(pools, load), trial.requests_per_s))
    if workload.expected_over_mean is None:
        return load
    input_tokens, output_tokens = workload.long_run_tokens
    return replace(load, input_tokens=input_tokens, output_tokens=output_tokens)


TOLERANCE = 0.02  # relative tolerance of the bisection
MAX_DOUBLINGS = 12


def highest_rate(guess: float) -> Generator[float, bool, float]:
    """Find the highest rate that meets the SLO, within `TOLERANCE`: double or halve to bracket it, then bisect.

    A generator that yields rates and receives whether each meets the SLO. Returns 0 if the SLO is still missed after
    halving the guess `MAX_DOUBLINGS` times, and infinity if the SLO is still met after doubling the guess as often.
    """
    low, high, rate = 0.0, math.inf, guess
    for _ in range(MAX_DOUBLINGS):
        if (yield rate):
            low = rate
            rate *= 2
        else:
            high = rate
            rate /= 2
        if low > 0 and high < math.inf:
            break
    if low == 0.0 or high == math.inf:
        return math.inf if low else 0.0
    while high - low > TOLERANCE * low:
        middle = (low + high) / 2
        low, high = (middle, high) if (yield middle) else (low, middle)
    return low
