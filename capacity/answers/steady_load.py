"""The load that a run shows for as long as it lasts: what a bill is divided by, without its filling and draining."""

from __future__ import annotations

import math

from capacity.answers.costs import Pools, ServedLoad, most_per_s
from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic
from capacity.simulator import SimulationResult
from capacity.simulator.verdict import Verdict
from capacity.workload import Workload


def steady_load(
    run: SimulationResult,
    verdict: Verdict | None,
    workload: Workload,
    pools: Pools,
    *,
    asked_per_s: float | None = None,
) -> ServedLoad:
    """What `pools` serve of `workload` in the long run.

    Requests that arrive by the clock are served as they come (`asked_per_s` on average, where that is known better
    than from these), as far as the capacity goes; those of a closed loop at the rate of the steady part of the run.
    Raises InvalidInput where nothing was served.
    """
    done = run.records.completed
    if not done.any():
        raise InvalidInput("no request was served: nothing to divide the bill by")
    prompts = run.records.prompt_tokens[done]
    load = ServedLoad(
        requests_per_s=1.0,
        input_tokens=float(prompts.mean()),
        output_tokens=float(run.records.output_tokens[done].mean()),
        in_flight=None if workload.concurrency is None else float(workload.concurrency),
        hit_fraction=float(run.records.cached_tokens[done].sum() / max(prompts.sum(), 1)),
    )
    rate = (
        _of_loop(run, verdict)
        if workload.is_closed_loop
        else _of_arrivals(verdict, asked_per_s or workload.request_rate_per_s, most_per_s(pools, load))
        * float(done.mean())
    )
    return ServedLoad(
        requests_per_s=rate,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        in_flight=load.in_flight,
        hit_fraction=load.hit_fraction,
    )


def asked_rate(traffic: Traffic) -> float | None:
    """Requests per second that the traffic was asked to bring on average; None where its arrivals themselves say it."""
    rate = traffic.request_rate
    if rate is None or math.isinf(rate) or traffic.arrivals not in ("steady", "diurnal"):
        return None
    return rate


def _of_arrivals(verdict: Verdict | None, offered_per_s: float, most_per_s: float) -> float:
    """As they come, or as many as the deployment works off: measured where there was a backlog, else about that."""
    capacity = None if verdict is None else verdict.capacity_requests_per_s
    if capacity is not None:
        return min(offered_per_s, capacity)
    growth = (None if verdict is None else verdict.growth_fraction) or 0.0
    return min(offered_per_s * (1 - growth), most_per_s)


def _of_loop(run: SimulationResult, verdict: Verdict | None) -> float:
    """The rate of the steady part; of the whole run where it has none."""
    steady = None if verdict is None else verdict.steady
    return run.summary.request_throughput if steady is None else steady.requests_per_s
