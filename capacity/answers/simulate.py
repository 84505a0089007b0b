"""`simulate`: the latencies that users of a deployment see, from a step-by-step simulation of its engines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from capacity.answers.attribution import bound_times
from capacity.answers.costs import Prices, cost_of
from capacity.answers.deployment_run import deployment_prices, run_service, verdict_on, with_roles
from capacity.answers.drawn_energy import drawn_energy
from capacity.answers.engine_setup import engine_frontend, ignored_setting_notes, offline_notes, requests_of
from capacity.answers.fit import drafting_notes, gpu_summary, model_summary
from capacity.answers.phases import check_length, check_output_len, equal_length_notes, tower_notes
from capacity.answers.pool_runs import pool_runs, priority_classes
from capacity.answers.records import Simulation
from capacity.answers.routes import check_routed_traffic, route_notes
from capacity.answers.run_intervals import predicted_ms, predicted_rates
from capacity.answers.served import name_longer_run
from capacity.answers.steady_load import steady_load
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.flags import ENGINE_LOOP, SCHEDULER
from capacity.base.keywords import document_options, split
from capacity.deployment import Cost, Deployment, DeploymentFile, Pool, Service, Traffic, make_deployment
from capacity.deployment.routing import Router
from capacity.deployment.use_cases import service_levels
from capacity.hardware.pricing import price_cautions
from capacity.model import ModelSpec
from capacity.pool.drafting import memory_with_draft
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator import SimulationResult, StepObserver
from capacity.simulator.admission import Admission
from capacity.simulator.installed_vllm.policy import scheduler_label
from capacity.simulator.levels import check_window, evaluate_slos_in_windows
from capacity.simulator.levels import goodput as goodput_of
from capacity.simulator.metrics import LatencySummary
from capacity.simulator.replications import Replications, replication_seeds, summarize_runs
from capacity.simulator.schedulers import Policy
from capacity.simulator.time_parts import time_parts
from capacity.simulator.timeline import Timeline
from capacity.workload import Slo, Workload, parse_slos, write_for_client


@document_options(Pool, Traffic, Service, Cost)
@validate_arguments
def simulate(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    goodput: Sequence[str] | None = None,
    slo: Sequence[str] | None = None,
    slo_window: str = "15m",
    save_trace: str | Path | None = None,
    save_trace_for: str = "vllm",
    other_pools: Sequence[Pool] = (),
    workload: Workload | None = None,
    router: str | type[Router] | None = None,
    policy: str | type[Policy] | None = None,
    admission: Admission | Sequence[Admission] = (),
    replications: int = 1,
    sample_interval_s: float | None = None,
    observer: StepObserver | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
    engine_loop: Annotated[str, ENGINE_LOOP] = "auto",
    scheduler: Annotated[str | None, SCHEDULER] = None,
    **options: Any,
) -> Simulation:
    """Replay a trace, or requests generated from `traffic` keywords, through the engine's scheduler step by step.

    `workload`: your own requests to replay. `goodput`: limits per request in the form of `vllm bench serve`
    ("ttft:500", in ms). `slo`: SLOs that the run must meet ("ttft:p95:500ms"), in the worst `slo_window` of a longer
    run; default: without `goodput`, those of the use case. `other_pools`: further pools behind the router.
    `save_trace`: file to which the requests are written for a benchmark client, `save_trace_for` vllm (`vllm bench
    serve`), aiperf, sglang or guidellm; a note has the command that replays it. `replications`: number of runs with
    seeds that depend only on `seed`; the answer then has the mean of every metric over the runs with its interval;
    everything else is from the first run. `sample_interval_s`: interval of the series `run.series`; default: none.

    `router` and `policy` (of all pools) are names or your own classes, and `admission` your own rules. `observer`
    receives every step of every engine (`simulator.Timeline` stores the steps of one engine). `engine_loop`: "events"
    are the engines in Python, which your own policy or an observer requires; "core" are the compiled engines, which
    give the same results faster; "auto" uses "core" if possible. `scheduler`: schedule with the code of a vLLM on this
    machine: "installed" (in this environment), the folder of an unpacked wheel or of a checkout, or a Python that has
    vLLM. `progress(done, total)` is called as requests complete.

    An interrupt ends the run early: `run.status` is then "interrupted", and the answer has the results so far. Raises
    DoesNotFit, or InvalidInput and its subclasses.
    """
    _check_keywords(observer, policy, scheduler)
    deployment = _deployment_of(model, options, router, workload, num_pools=1 + len(other_pools))
    pools = [
        replace(
            resolve(pool.model or deployment.model, pool, profiles=profiles, download=download),
            vllm_scheduler=scheduler,
            policy=policy,
        )
        for pool in (*deployment.pools, *other_pools)
    ]
    levels = parse_slos(() if goodput and not slo else service_levels(slo or (), deployment.traffic))
    inputs = _inputs_of(
        deployment,
        pools,
        workload,
        levels,
        slo_window=slo_window,
        goodput=goodput or (),
        engine_loop=engine_loop,
        admission=admission,
    )
    saved = []
    if save_trace is not None:
        saved = [f"replay with: {write_for_client(inputs.requests, save_trace, save_trace_for)}"]
    seeds = _replication_seeds(inputs, replications)
    run = inputs.run(
        inputs.requests,
        inputs.traffic.seed,
        observer=observer,
        sample_interval_s=sample_interval_s,
        keep_work=True,
        keep_interrupted=True,
        progress=progress,
    )
    replicated = _replicate(inputs, run, seeds)
    answer = _answer_of(inputs, run)
    readable = engine_loop == "auto" and scheduler is None and not isinstance(observer, Timeline)
    notes = (*(_loop_notes(run) if readable else ()), *_price_notes(inputs.prices), *saved)
    return replace(answer, replications=replicated, warnings=(*answer.warnings, *notes))


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """Validated inputs of a simulation. `generated`: the caller gave no requests, only traffic settings or a trace."""

    pools: Sequence[ResolvedPool]
    traffic: Traffic
    service: Service
    prices: Prices | None
    requests: Workload
    generated: bool
    levels: tuple[Slo, ...]
    slo_window: str
    goodput: Sequence[str]
    engine_loop: str
    admission: Admission | Sequence[Admission]

    def run(self, requests: Workload, seed: int, **keywords: Any) -> SimulationResult:
        """Simulate `requests` on the deployment; `keywords` are those of `run_service`."""
        return run_service(
            self.pools,
            self.service,
            requests,
            seed=seed,
            scheduling=self.traffic.scheduling,
            goodput=self.goodput,
            engine_loop=self.engine_loop,
            admission=self.admission,
            **keywords,
        )


def _check_keywords(observer: object, policy: object, scheduler: str | None) -> None:
    if isinstance(observer, type):
        raise InvalidInput(f"observer is the class {observer.__name__}: pass an object of it")
    if policy is not None and scheduler is not None:
        raise InvalidInput("policy and scheduler both choose the scheduler: leave out one of them")


def _deployment_of(
    model: str | Path | ModelSpec | DeploymentFile,
    options: Mapping[str, object],
    router: str | type[Router] | None,
    workload: Workload | None,
    *,
    num_pools: int,
) -> Deployment:
    named = {"router": router} if isinstance(router, str) else {}
    pool, traffic, service, cost = split({**options, **named}, Pool, Traffic, Service, Cost)
    deployment = make_deployment(
        model,
        pool=pool,
        traffic=traffic,
        service=service,
        cost=cost,
        question="simulate",
        trace=workload,
        **{"replicas": num_pools} if num_pools > 1 else {},
    )
    if isinstance(router, type):  # not a value of a deployment file, so it is not validated as one
        return replace(deployment, service=deployment.service.model_copy(update={"router": router}))
    return deployment


def _inputs_of(
    deployment: Deployment,
    pools: Sequence[ResolvedPool],
    workload: Workload | None,
    levels: tuple[Slo, ...],
    **settings: Any,
) -> _Inputs:
    """Return the inputs to simulate `workload` (None: the deployment's traffic); `settings`: fields of `_Inputs`.

    Raises DoesNotFit for a model that does not fit, or InvalidInput for requests that the pools cannot serve.
    """
    traffic = deployment.traffic
    _check(pools, None if workload is not None else traffic)
    check_window(settings["slo_window"], levels)
    prices = deployment_prices(pools, deployment.service, deployment.cost)
    requests = requests_of(traffic, workload, _longest_request(pools))
    for pool in pools:
        check_output_len(pool, int(requests.output_tokens.max(initial=1)))
    return _Inputs(
        pools=pools,
        traffic=traffic,
        service=deployment.service,
        prices=prices,
        requests=requests,
        generated=workload is None,
        levels=levels,
        **settings,
    )


def _replicate(inputs: _Inputs, run: SimulationResult, seeds: Sequence[int]) -> Replications | None:
    """Return the summary of `run` and of runs with the other `seeds`; None for one seed or an interrupted run."""
    if len(seeds) < 2 or run.status == "interrupted":
        return None

    def summary_of(seed: int) -> LatencySummary:
        if not inputs.generated:
            return inputs.run(inputs.requests, seed).summary
        traffic = inputs.traffic.model_copy(update={"seed": seed})
        return inputs.run(requests_of(traffic, None, _longest_request(inputs.pools)), seed).summary

    return summarize_runs(seeds, [run.summary, *map(summary_of, seeds[1:])])


def _answer_of(inputs: _Inputs, run: SimulationResult) -> Simulation:
    pools, traffic, requests, prices = inputs.pools, inputs.traffic, inputs.requests, inputs.prices
    verdict = verdict_on(
        run, pools, inputs.service, requests, scheduling=traffic.scheduling, engine_loop=inputs.engine_loop
    )
    if verdict is not None and inputs.generated:
        verdict = name_longer_run(verdict, run, requests, traffic)
    steady = verdict is not None and verdict.is_stable
    answer = _simulation_of(pools[0], requests, run)
    counted = [(pool, pool.pool.replicas) for pool in with_roles(pools, inputs.service)]
    load = steady_load(run.records, verdict, requests, counted) if run.records.completed.any() else None
    held, window = evaluate_slos_in_windows(
        inputs.levels, requests, run.records, run.summary, inputs.slo_window, steady=steady
    )
    limits = parse_slos(inputs.goodput)
    return replace(
        answer,
        pools=pool_runs(pools, run, prices) if len(pools) > 1 else (),
        predicted_ms=predicted_ms(pools, requests, traffic, run, verdict),
        as_found_ms=predicted_ms(pools, requests, traffic, run, verdict, as_found=True),
        predicted_rates=predicted_rates(pools, requests, run, verdict),
        as_found_rates=predicted_rates(pools, requests, run, verdict, as_found=True),
        cost=None if load is None else cost_of(prices, counted, load),
        drawn_energy=drawn_energy(counted, load) if load is not None and load.requests_per_s else None,
        priorities=priority_classes(requests, run.records),
        verdict=verdict,
        slos=held,
        slo_window=window,
        goodput=goodput_of(limits, run.records, run.summary, steady=steady) if limits else None,
        warnings=(
            *answer.warnings,
            *(equal_length_notes(traffic) if inputs.generated else ()),
            *_run_notes(inputs, run),
            *_scheduler_notes(pools),
        ),
    )


def _check(pools: Sequence[ResolvedPool], traffic: Traffic | None) -> None:
    """Raise DoesNotFit for a model that does not fit, or InvalidInput for requests that the pools cannot serve."""
    for pool in pools:
        pool.memory.require_fit()
    if traffic is not None:
        check_routed_traffic(pools, traffic)
    if traffic is not None and traffic.input_len and traffic.output_len:
        tokens = traffic.input_len + traffic.encoded_tokens + traffic.output_len
        for pool in pools:
            if pool.pool.route_up_to_tokens is None:  # a pool for short requests gets no others
                check_length(pool, tokens)


def _longest_request(pools: Sequence[ResolvedPool]) -> int:
    """Return the tokens of the longest request that every pool accepts; pools for short requests are ignored."""
    limits = [pool.max_model_len for pool in pools if pool.pool.route_up_to_tokens is None]
    return min(limits or [pool.max_model_len for pool in pools])


def _simulation_of(resolved: ResolvedPool, requests: Workload, run: SimulationResult) -> Simulation:
    plan = memory_with_draft(resolved)
    return Simulation(
        model=model_summary(resolved),
        gpu=gpu_summary(resolved),
        engine=resolved.engine.label,
        kv_capacity_tokens=plan.kv_capacity_tokens,
        kv_capacity_blocks=plan.kv_capacity_blocks,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        workload=requests.name,
        run=replace(run, step_work=()),  # summarised in `step_bounds`; the work cannot be pickled
        step_bounds=bound_times(run.step_work),
        time_parts=time_parts(
            run.records,
            run.transfer_ps,
            api_server=engine_frontend(resolved, requests),
            client_latency_s=requests.client_latency_s,
            cascade=run.cascade,
        ).to_dict(),
        warnings=(
            *resolved.notes,
            *resolved.memory.warnings,
            *requests.notices,
            *offline_notes([resolved], requests),
            *resolved.step_model.notes,
            *resolved.split_notes(requests.mean_prompt_tokens),
            *tower_notes(resolved, pictured=requests.images is not None),
            *drafting_notes(resolved),
        ),
    )


def _replication_seeds(inputs: _Inputs, count: int) -> tuple[int, ...]:
    """Return the seeds of `count` runs. Raises InvalidInput if nothing is random, so that all runs are identical."""
    seeds = replication_seeds(inputs.traffic.seed, count)
    drawn = inputs.generated and inputs.traffic.trace is None
    if count > 1 and not drawn and inputs.service.mean_time_between_failures_s is None:
        raise InvalidInput(
            "all --replications of a trace are identical: leave --replications out, or generate the requests"
        )
    return seeds


def _run_notes(inputs: _Inputs, run: SimulationResult) -> Iterator[str]:
    if inputs.service.mean_time_between_failures_s is not None:
        yield "The capacity in the verdict assumes that no replica fails; it is lower while a replica is lost."
    if inputs.prices is not None and len(inputs.prices) > 1:
        yield (
            "The split of the cost into input and output tokens assumes an equal load on every replica of these "
            "different pools; the bill and the cost per request do not depend on it."
        )
    yield from route_notes(inputs.pools, run)
    yield from ignored_setting_notes(inputs.pools, inputs.traffic)


def _scheduler_notes(pools: Sequence[ResolvedPool]) -> Iterator[str]:
    source, policy = pools[0].vllm_scheduler, pools[0].policy
    if source is None and policy is None:
        return
    label = policy.__name__ if isinstance(policy, type) else policy or scheduler_label(str(source))
    engines = " and ".join(dict.fromkeys(pool.engine.label for pool in pools))
    yield f"Scheduled by {label}; step times, memory and defaults are those of {engines}."


def _price_notes(prices: Prices | None) -> Iterator[str]:
    for price in (prices or {}).values():
        yield from price_cautions(price)


def _loop_notes(run: SimulationResult) -> Iterator[str]:
    if run.readable_because is not None:
        because = run.readable_because
        yield f"Simulated in Python, which is hundreds of times slower than the compiled engines: {because}"
