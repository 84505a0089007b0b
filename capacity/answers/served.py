"""Simulate a load with queueing on one engine, and return its means.

`estimate`, `explain` and all other callers that need client latencies at a concurrency or a rate use this module, so
that they agree with `simulate`.
"""

import math
from dataclasses import dataclass, replace

from capacity.answers.costs import ServedLoad
from capacity.answers.deployment_run import one_replica, run_service, verdict_on
from capacity.answers.engine_setup import make_workload
from capacity.answers.steady_load import steady_load
from capacity.base.errors import InvalidInput
from capacity.base.latency_metrics import METRICS
from capacity.deployment import Service, Traffic
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import SimulationResult
from capacity.simulator.load_means import LoadMeans, whole_run_means
from capacity.simulator.peaks import MIN_RESIDENCES
from capacity.simulator.verdict import MIN_REQUESTS, TOO_SHORT, Verdict
from capacity.step import PS_PER_S
from capacity.workload import Workload
from capacity.workload.request_generation import MAX_PROMPTS, REQUESTS_PER_SLOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Metrics of a load as its clients see them.

    `steady`: means over the steady part of the run; None if there is none (`verdict` explains why). `whole`: means over
    all `num_prompts` requests, including warm-up and drain, as in `vllm bench serve`; None if fewer concurrent requests
    were simulated than requested. `load`: the load that the cost refers to; None if no request completed.
    """

    verdict: Verdict
    num_prompts: int
    steady: LoadMeans | None
    whole: LoadMeans | None
    load: ServedLoad | None


def serve_load(resolved: ResolvedPool, traffic: Traffic, slots: int) -> Served:
    """Return the simulated load of `traffic` on one engine, which runs about `slots` requests at a time.

    Raises InvalidInput for traffic that cannot be simulated.
    """
    engine = one_replica(resolved)
    wanted, simulated = traffic.concurrency, traffic
    if wanted is not None and wanted > 2 * slots + 16:
        # further ones only wait, and for how long follows from Little's law
        simulated = traffic.model_copy(update={"concurrency": 2 * slots + 16})
    run, verdict, requests = _run(engine, simulated)
    num_prompts, load = len(requests), None
    if run.records.completed.any():
        load = steady_load(run.records, verdict, requests, [(engine, 1)])
    steady, whole = verdict.steady, None
    if wanted is None or wanted == simulated.concurrency:
        whole = whole_run_means(run.summary, run.records)
    else:
        steady = _means_with_queue(steady, wanted)
        reason = f"a closed loop of {wanted:,} requests: about {slots:,} run at a time, the others wait"
        bound = "" if verdict.bound_by is None else f"; {verdict.bound_by}"
        verdict = replace(verdict, reason=reason + bound)
    return Served(verdict=verdict, num_prompts=num_prompts, steady=steady, whole=whole, load=load)


def _means_with_queue(means: LoadMeans | None, in_flight: int) -> LoadMeans | None:
    """Return the means of a full engine with `in_flight` requests; additional requests only wait."""
    if means is None:
        return None
    more_s = in_flight / means.requests_per_s - means.e2e_s
    latencies_s = {
        key: mean_s + more_s if mean_s is not None and METRICS[key].from_arrival else mean_s
        for key, mean_s in means.latencies_s.items()
    }
    return replace(
        means, latencies_s=latencies_s, waiting_s=means.waiting_s + more_s, in_flight=float(in_flight)
    )


def _run(resolved: ResolvedPool, traffic: Traffic) -> tuple[SimulationResult, Verdict, Workload]:
    """Return a run, its verdict, and its requests: enough for a steady state unless the traffic sets their number."""
    num_prompts = traffic.num_prompts
    if num_prompts is not None or traffic.arrivals != "steady":
        return _run_requests(resolved, traffic, num_prompts)
    sample = None
    while True:
        run, verdict, requests = _run_requests(resolved, traffic, num_prompts, sample)
        sample = sample or requests
        needed = prompts_for_steady_state(run, traffic)
        if verdict.verdict != TOO_SHORT or not len(requests) < needed <= MAX_PROMPTS:
            return run, verdict, requests
        num_prompts = needed


def prompts_for_steady_state(run: SimulationResult, traffic: Traffic) -> int:
    """Return the number of requests that a steady state needs: the arrivals within several median E2E latencies."""
    latency = run.summary.e2el_ms
    if latency is None or traffic.request_rate is None or math.isinf(traffic.request_rate):
        return 0
    offered = run.records.arrival_ps
    span_s = int(offered.max() - offered.min()) / PS_PER_S
    # for a peak, the rate of the peak
    rate = max(traffic.request_rate, len(offered) / span_s if span_s else 0.0)
    return math.ceil(1.5 * MIN_RESIDENCES * latency.percentiles[50] / 1e3 * rate)


def name_longer_run(verdict: Verdict, run: SimulationResult, requests: Workload, traffic: Traffic) -> Verdict:
    """Return the verdict on the run. If it was too short, the reason names a sufficient `--num-prompts` or trace."""
    at_once = not requests.is_closed_loop and math.isinf(requests.offered_per_s)
    if verdict.verdict != TOO_SHORT or at_once or run.summary.e2el_ms is None:
        return verdict
    if traffic.trace is not None:
        more = "a longer trace" if traffic.num_prompts is None else "more of the trace, or a longer one"
        return replace(verdict, reason=f"{verdict.reason}: replay {more}")
    loop = REQUESTS_PER_SLOT * (requests.concurrency or 0)
    needed = max(MIN_REQUESTS, loop, prompts_for_steady_state(run, traffic))
    if needed > len(requests):
        unit = 10 ** max(len(str(needed)) - 2, 0)
        return replace(verdict, reason=f"{verdict.reason}: use --num-prompts {-(-needed // unit) * unit}")
    return replace(verdict, reason=f"{verdict.reason}: increase --num-prompts")


def _run_requests(
    resolved: ResolvedPool, traffic: Traffic, num_prompts: int | None, sample: Workload | None = None
) -> tuple[SimulationResult, Verdict, Workload]:
    requests = make_workload(traffic.model_copy(update={"num_prompts": num_prompts}), resolved.max_model_len)
    service = Service()
    run = run_service([resolved], service, requests, scheduling=traffic.scheduling, seed=traffic.seed)
    verdict = verdict_on(run, [resolved], service, requests, scheduling=traffic.scheduling, sample=sample)
    if verdict is None:
        raise InvalidInput(f"the load cannot be served: {run.reason}")
    verdict = name_longer_run(verdict, run, requests, traffic)
    if requests.part is not None:
        verdict = replace(verdict, reason=f"{requests.part}: {verdict.reason}")
    # the steady state of a closed loop needs a longer run
    if verdict.verdict == TOO_SHORT and requests.is_closed_loop:
        verdict = replace(verdict, steady=whole_run_means(run.summary, run.records))
    return run, verdict, requests
