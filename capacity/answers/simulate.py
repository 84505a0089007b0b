"""`simulate`: the latencies that users of a deployment see, from a step-by-step simulation of its engines."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
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
from capacity.deployment import Cost, DeploymentFile, Pool, Service, Traffic, make_deployment
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
from capacity.simulator.replications import replication_seeds, summarize_runs
from capacity.simulator.schedulers import Policy
from capacity.simulator.time_parts import time_parts
from capacity.simulator.timeline import Timeline
from capacity.workload import Workload, parse_slos, write_for_client


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

    `workload` replays your own Workload. `goodput` gives SLOs as `vllm bench serve` does ("ttft:500", in ms). `slo`
    gives the SLOs that the run must meet ("ttft:p95:500ms"), in the worst `slo_window` of a longer run; without `slo`
    and `goodput`, those of the use case. `other_pools` are further pools behind the router. `save_trace` writes the
    requests as a file that a benchmark client replays, and notes how: `save_trace_for` vllm (`vllm bench serve`),
    aiperf, sglang or guidellm. `replications` repeats the run with seeds that depend on `seed` alone, and returns
    every metric's mean over the runs with its interval; the rest of the answer is the first run's. `sample_interval_s`
    adds the time series `run.series`.

    `router` and `policy` (of all pools) are names or your own classes, and `admission` your own rules. `observer` sees
    every step of every engine (`simulator.Timeline` stores those of one engine). An own policy or an observer requires
    the Python engines, `engine_loop` "events"; "core" are the compiled ones, which give the same results faster, and
    "auto" uses those if possible. `scheduler` lets the scheduler of a vLLM on this machine decide: "installed" in this
    environment, the folder of an unpacked wheel or of a checkout, or a Python that has it. `progress(done, total)` is
    called as requests complete.

    An interrupt ends the run early: `run.status` reports it, and the results so far are kept. Raises DoesNotFit, or
    InvalidInput and its subclasses.
    """
    if isinstance(router, str):
        options["router"] = router
    if isinstance(observer, type):
        raise InvalidInput(f"observer is the class {observer.__name__}: pass an object of it")
    if policy is not None and scheduler is not None:
        raise InvalidInput("policy and scheduler both choose the scheduler: leave out one of them")
    pool, traffic_fields, service_fields, cost_fields = split(options, Pool, Traffic, Service, Cost)
    deployment = make_deployment(
        model,
        pool=pool,
        traffic=traffic_fields,
        service=service_fields,
        cost=cost_fields,
        question="simulate",
        trace=workload,
        **{"replicas": 1 + len(other_pools)} if other_pools else {},
    )
    traffic, service = deployment.traffic, deployment.service
    if isinstance(router, type):  # not a value of a deployment file, so it is not validated as one
        service = service.model_copy(update={"router": router})
    pools = [
        replace(
            resolve(pool.model or deployment.model, pool, profiles=profiles, download=download),
            vllm_scheduler=scheduler,
            policy=policy,
        )
        for pool in (*deployment.pools, *other_pools)
    ]
    _check(pools, None if workload is not None else traffic)
    levels = parse_slos(() if goodput and not slo else service_levels(slo or (), traffic))
    check_window(slo_window, levels)
    prices = deployment_prices(pools, service, deployment.cost)
    requests = requests_of(traffic, workload, _longest_request(pools))
    for each in pools:
        check_output_len(each, int(requests.output_tokens.max(initial=1)))
    saved = []
    if save_trace is not None:
        saved = [f"replay with: {write_for_client(requests, save_trace, save_trace_for)}"]
    seeds = _replication_seeds(traffic, service, replications, drawn=workload is None)
    run_again = partial(
        run_service,
        pools,
        service,
        scheduling=traffic.scheduling,
        goodput=goodput or (),
        engine_loop=engine_loop,
        admission=admission,
    )
    run = run_again(
        requests,
        seed=traffic.seed,
        observer=observer,
        sample_interval_s=sample_interval_s,
        keep_work=True,
        keep_interrupted=True,
        progress=progress,
    )

    def further_summary(seed: int) -> LatencySummary:
        drawn = requests_of(traffic.model_copy(update={"seed": seed}), workload, _longest_request(pools))
        return run_again(drawn, seed=seed).summary

    replicated = None
    if len(seeds) > 1 and run.status != "interrupted":
        replicated = summarize_runs(seeds, [run.summary, *map(further_summary, seeds[1:])])
    verdict = verdict_on(
        run, pools, service, requests, scheduling=traffic.scheduling, engine_loop=engine_loop
    )
    if verdict is not None and workload is None:
        verdict = name_longer_run(verdict, run, requests, traffic)
    steady = verdict is not None and verdict.is_stable
    limits, seen = parse_slos(goodput or ()), isinstance(observer, Timeline)
    answer = _simulation_of(pools[0], requests, run)
    counted = [(pool, pool.pool.replicas) for pool in with_roles(pools, service)]
    load = steady_load(run.records, verdict, requests, counted) if run.records.completed.any() else None
    held, window = evaluate_slos_in_windows(
        levels, requests, run.records, run.summary, slo_window, steady=steady
    )
    return replace(
        answer,
        pools=pool_runs(pools, run, prices) if len(pools) > 1 else (),
        predicted_ms=predicted_ms(pools, requests, traffic, run, verdict),
        as_found_ms=predicted_ms(pools, requests, traffic, run, verdict, as_found=True),
        predicted_rates=predicted_rates(pools, requests, run, verdict),
        as_found_rates=predicted_rates(pools, requests, run, verdict, as_found=True),
        cost=None if load is None else cost_of(prices, counted, load),
        drawn_energy=drawn_energy(counted, load) if load is not None and load.requests_per_s else None,
        replications=replicated,
        priorities=priority_classes(requests, run.records),
        verdict=verdict,
        slos=held,
        slo_window=window,
        goodput=goodput_of(limits, run.records, run.summary, steady=steady) if limits else None,
        warnings=(
            *answer.warnings,
            *(() if workload is not None else equal_length_notes(traffic)),
            *_run_notes(run, pools, traffic, service, prices),
            *_scheduler_notes(scheduler, policy, pools),
            *(_loop_notes(run) if engine_loop == "auto" and not seen and scheduler is None else ()),
            *(caution for price in (prices or {}).values() for caution in price_cautions(price)),
            *saved,
        ),
    )


def _check(pools: Sequence[ResolvedPool], traffic: Traffic | None) -> None:
    """Raise DoesNotFit for a model that does not fit, or InvalidInput for requests that the pools cannot serve."""
    for pool in pools:
        pool.memory.require_fit()
    if traffic is not None:
        check_routed_traffic(pools, traffic)
    if traffic is not None and traffic.input_len and traffic.output_len:
        images = traffic.images_per_prompt * (traffic.image_tokens or 0) + (traffic.audio_tokens or 0)
        for pool in pools:
            if pool.pool.route_up_to_tokens is None:  # a pool for short requests gets no others
                check_length(pool, traffic.input_len + images + traffic.output_len)


def _longest_request(pools: Sequence[ResolvedPool]) -> int:
    """Return the tokens of the longest request that every pool accepts. Pools for short requests do not count."""
    limits = [pool.max_model_len for pool in pools if pool.pool.route_up_to_tokens is None]
    return min(limits or [pool.max_model_len for pool in pools])


def _simulation_of(resolved: ResolvedPool, requests: Workload, run: SimulationResult) -> Simulation:
    """Return the answer for a run: the run, its engine, and the time attribution of its steps."""
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


def _replication_seeds(traffic: Traffic, service: Service, count: int, *, drawn: bool) -> tuple[int, ...]:
    """Return the seeds of `count` runs. Raises InvalidInput if all these runs would be identical because nothing is
    random."""
    seeds = replication_seeds(traffic.seed, count)
    chance = (drawn and traffic.trace is None) or service.mean_time_between_failures_s is not None
    if count > 1 and not chance:
        raise InvalidInput(
            "all --replications of a trace are identical: leave --replications out, or generate the requests"
        )
    return seeds


def _run_notes(
    run: SimulationResult,
    pools: Sequence[ResolvedPool],
    traffic: Traffic,
    service: Service,
    prices: Prices | None,
) -> Iterator[str]:
    """Yield notes on limits of the verdict and the cost, on routing, and on settings that the engines ignore."""
    if service.mean_time_between_failures_s is not None:
        yield "The capacity in the verdict assumes that no replica fails; it is lower while a replica is lost."
    if prices is not None and len(prices) > 1:
        yield (
            "The split of the cost into input and output tokens assumes an equal load on every replica of these "
            "different pools; the bill and the cost per request do not depend on it."
        )
    yield from route_notes(pools, run)
    yield from ignored_setting_notes(pools, traffic)


def _scheduler_notes(
    source: str | None, policy: str | type[Policy] | None, pools: Sequence[ResolvedPool]
) -> Iterator[str]:
    if source is None and policy is None:
        return
    label = policy.__name__ if isinstance(policy, type) else policy or scheduler_label(str(source))
    engines = " and ".join(dict.fromkeys(pool.engine.label for pool in pools))
    yield f"Scheduled by {label}; step times, memory and defaults are those of {engines}."


def _loop_notes(run: SimulationResult) -> Iterator[str]:
    if run.readable_because is not None:
        because = run.readable_because
        yield f"Simulated in Python, which is hundreds of times slower than the compiled engines: {because}"
