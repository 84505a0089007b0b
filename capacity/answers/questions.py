"""The three questions as functions: `fit`, `estimate`, `simulate`; and the lists behind them.

Keywords are the fields of `Pool`, `Traffic` and `Cost` (capacity/deployment/specs.py), the same words as the command
line's flags; results are frozen records whose `to_dict()` is the command line's JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from capacity.answers.attribution import bound_times, responses, shares
from capacity.answers.records import (
    Attribution,
    Bounds,
    Breakdown,
    Energy,
    Estimate,
    Fit,
    GpuSummary,
    Intensity,
    MemorySummary,
    ModelSummary,
    OperatorTime,
    Quantity,
    Simulation,
)
from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.base.keywords import documented, split
from capacity.deployment import Cost, Pool, Service, Traffic, build
from capacity.hardware import load_profile, profile_names
from capacity.hardware.pricing import CostEstimate, Price, cost_estimate, joules_per_token, price_of
from capacity.model import ModelSpec, load_model, model_names
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import StepCost
from capacity.step.closed_form import PhaseTimes, batch_times, closed_loop_times, main_bound

if TYPE_CHECKING:
    from capacity.simulator import StepObserver
    from capacity.simulator.distribution import Distribution
    from capacity.workload import Workload

ESTIMATE_TRAFFIC = ("input_len", "output_len", "batch_size", "concurrency")


@documented(Pool)
def fit(
    model: str | Path | ModelSpec,
    *,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Fit:
    """Whether `model` fits the pool, and what its KV cache then holds. Does not raise where it does not fit.

    Raises InvalidInput (and its kinds) for a name, value or combination that cannot be.
    """
    (pool,) = split(options, Pool)
    return fit_of(resolve(model, build(Pool, pool), profiles=profiles, download=download))


def fit_of(resolved: ResolvedPool) -> Fit:
    """`fit` of what was looked up before. Raises InvalidInput where it drafts."""
    fields = _fit_fields(_without_drafts(resolved))
    return Fit(**fields | {"warnings": (*fields["warnings"], *_beside_the_gpu(resolved))})


def _beside_the_gpu(resolved: ResolvedPool) -> tuple[str, ...]:
    """What host memory holds of KV that leaves the GPU."""
    pool, plan = resolved.pool, resolved.memory
    size = pool.kv_offloading_size
    if size is None or plan.layout.kv_windows != (None,):
        return ()
    engine_gpus = pool.tensor_parallel_size * pool.pipeline_parallel_size
    tokens = int(size * 2**30 // (plan.kv_block_bytes * engine_gpus)) * plan.kv_block_tokens
    what = "engine" if pool.data_parallel_size == 1 else "data-parallel rank"
    return (
        f"{size:g} GiB of host memory hold {tokens:,} tokens of KV beside the GPU's, of each {what}: to be read back "
        "by later requests, not for running ones",
    )


@documented(Pool, Traffic, Cost)
def estimate(
    model: str | Path | ModelSpec,
    *,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Estimate:
    """TTFT, TPOT, throughput, cost and energy at a `batch_size` or a closed loop's `concurrency`.

    Raises DoesNotFit where the model, or that many requests, exceed the memory; InvalidInput for what cannot be.
    """
    pool_fields, traffic_fields, cost_fields = split(options, Pool, Traffic, Cost)
    traffic = traffic_of(traffic_fields)
    resolved = resolve(model, build(Pool, pool_fields), profiles=profiles, download=download)
    return estimate_of(resolved, traffic, price_of(resolved.profile.name, build(Cost, cost_fields)))


@documented(Pool, Traffic)
def explain(
    model: str | Path | ModelSpec,
    *,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Attribution:
    """Which share of an estimate is compute, HBM, communication, launch and host, and what +10 % of each would do.

    Keywords and errors are those of `estimate`, without the price: cost per token follows throughput.
    """
    pool_fields, traffic_fields = split(options, Pool, Traffic)
    traffic: Traffic = build(Traffic, _of_estimate(traffic_fields))
    resolved = _without_drafts(resolve(model, build(Pool, pool_fields), profiles=profiles, download=download))
    input_len, output_len = _lengths(resolved, traffic)
    resolved.memory.require_fit()
    _served(resolved, traffic, input_len + output_len)
    times, warnings = _phase_times(resolved, traffic, input_len, output_len)
    field = "batch_size" if traffic.batch_size is not None else "concurrency"

    def timed(pool: ResolvedPool, load: int) -> PhaseTimes:
        formula = _batch_over_ranks if field == "batch_size" else _loop_over_ranks
        return formula(pool, load, input_len=input_len, output_len=output_len)

    steps = resolved.step_model
    prefill = steps.step_cost(times.prefill_shape)
    decode = steps.step_cost(times.decode_shape) if times.tpot_s is not None else None
    return Attribution(
        model=_model_summary(resolved),
        gpu=GpuSummary(name=resolved.profile.name, count=resolved.pool.num_gpus),
        engine=resolved.engine.label,
        input_len=input_len,
        output_len=output_len,
        batch_size=traffic.batch_size,
        concurrency=traffic.concurrency,
        ttft_s=times.ttft_s,
        tpot_s=times.tpot_s,
        prefill=shares(prefill),
        decode=None if decode is None else shares(decode),
        breakdown=_breakdown(prefill, decode),
        responses=responses(resolved, _served(resolved, traffic, input_len + output_len), timed),
        warnings=(*resolved.notes, *resolved.memory.warnings, *steps.notes, *warnings),
    )


def models() -> list[dict[str, Any]]:
    """Every model preset: name, Hugging Face id, parameters, KV bytes per token at 16 bit."""
    return [
        {
            "name": spec.name,
            "hf_id": spec.hf_id,
            "total_params": spec.total_params,
            "active_params": spec.active_params,
            "kv_bytes_per_token": int(spec.kv_bytes_per_token("bf16")),
        }
        for spec in map(load_model, model_names())
    ]


def gpus(*, profiles: str | Path | None = None) -> list[dict[str, Any]]:
    """Every GPU profile: memory as the engine sees it, HBM bandwidth, dense rates, link per direction, power."""
    directories = [profiles] if profiles else []
    return [
        {
            "name": profile.name,
            "memory_bytes": profile.memory_engine_bytes,
            "hbm_bytes_per_s": profile.hbm_bytes_per_s,
            "dense_flops_per_s": profile.dense_flops_per_s,
            "link_bytes_per_s": profile.scale_up.bytes_per_s,
            "tdp_watts": profile.tdp_watts,
        }
        for profile in (load_profile(name, directories) for name in profile_names(directories))
    ]


def _without_drafts(resolved: ResolvedPool) -> ResolvedPool:
    """The pool as it is, unless it drafts, which these formulas leave out. Raises InvalidInput."""
    if resolved.pool.speculator is not None:
        raise InvalidInput(
            "--speculator is for `simulate`; `capacity speculate` gives its formulas and memory"
        )
    return resolved


# fit


def _fit_fields(resolved: ResolvedPool) -> dict[str, Any]:
    plan, pool = resolved.memory, resolved.pool
    return {
        "fits": plan.fits,
        "reason": plan.reason,
        "model": _model_summary(resolved),
        "gpu": GpuSummary(name=resolved.profile.name, count=pool.num_gpus),
        "engine": resolved.engine.label,
        "weight_format": resolved.scheme.name,
        "kv_cache_dtype": resolved.model.dtype if plan.kv_cache_dtype == "auto" else plan.kv_cache_dtype,
        "max_model_len": plan.max_model_len,
        "memory": MemorySummary(
            total_bytes=plan.total_bytes,
            usable_bytes=plan.usable_bytes,
            weights_bytes=plan.weights_bytes,
            activations_bytes=plan.activations_bytes,
            overhead_bytes=plan.overhead_bytes,
            kv_cache_bytes=max(plan.kv_cache_bytes, 0),
        ),
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "kv_window_bytes_per_token": plan.kv_window_bytes_per_token,
        "linear_state_bytes_per_request": plan.linear_state_bytes_per_request,
        "kv_block_tokens": plan.kv_block_tokens,
        "kv_capacity_blocks": plan.kv_capacity_blocks,
        "kv_capacity_tokens": plan.kv_capacity_tokens,
        "max_context_tokens": plan.max_context_tokens,
        "max_concurrency": plan.max_concurrency,
        "smallest_tensor_parallel_size": resolved.smallest_tensor_parallel_size,
        "warnings": (*resolved.notes, *_of_one_replica(resolved), *plan.warnings),
    }


def _of_one_replica(resolved: ResolvedPool) -> tuple[str, ...]:
    """That a question about an engine was answered for one of several."""
    replicas, ranks = resolved.pool.replicas, resolved.pool.data_parallel_size
    notes: tuple[str, ...] = (
        () if replicas == 1 else (f"of one of the {replicas} replicas; `capacity simulate` answers for all",)
    )
    if ranks > 1:
        what = (
            "share the experts and take every step together"
            if resolved.model.is_moe
            else "are independent engines"
        )
        notes += (
            f"memory and KV cache are of one of the {ranks} data-parallel ranks, which {what}; all of them hold "
            f"{ranks * resolved.memory.kv_capacity_tokens:,} tokens",
        )
    return notes


def _model_summary(resolved: ResolvedPool) -> ModelSummary:
    model = resolved.model
    return ModelSummary(name=model.name, total_params=model.total_params, active_params=model.active_params)


# estimate


def traffic_of(fields: dict[str, Any]) -> Traffic:
    """The traffic of an estimate. Raises InvalidInput for what only a simulation takes."""
    traffic: Traffic = build(Traffic, _of_estimate(fields))
    return traffic


def estimate_of(resolved: ResolvedPool, traffic: Traffic, price: Price | None) -> Estimate:
    """`estimate` of what was looked up before: of many points, the pool's once. Raises as `estimate`."""
    _without_drafts(resolved)
    input_len, output_len = _lengths(resolved, traffic)
    resolved.memory.require_fit()
    times, warnings = _phase_times(resolved, traffic, input_len, output_len)
    steps = resolved.step_model
    prefill = steps.step_cost(times.prefill_shape)
    decode = steps.step_cost(times.decode_shape) if times.tpot_s is not None else None
    num_gpus = resolved.pool.num_gpus
    ttft = _with_interval(times.ttft_s, *_band(resolved, "prefill"))
    tpot = None if times.tpot_s is None else _with_interval(times.tpot_s, *_band(resolved, "decode"))
    e2e = _sum_interval(times.e2e_s, ttft, tpot, output_len - 1)
    requests_per_s = e2e.inverse(times.requests_per_s * e2e.value)
    output_rate = requests_per_s.scaled(output_len)
    bill = _cost(resolved, price, times, input_len, output_len)
    users = traffic.batch_size or traffic.concurrency or 1
    return Estimate(
        **{
            **_fit_fields(resolved),
            "warnings": (
                *resolved.notes,
                *_of_one_replica(resolved),
                *resolved.memory.warnings,
                *steps.notes,
                *warnings,
            ),
        },
        input_len=input_len,
        output_len=output_len,
        batch_size=traffic.batch_size,
        concurrency=traffic.concurrency,
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        output_tokens_per_s=output_rate,
        output_tokens_per_s_per_gpu=output_rate.scaled(1 / num_gpus),
        output_tokens_per_s_per_user=output_rate.scaled(1 / users),
        requests_per_s=requests_per_s,
        bound=Bounds(prefill=main_bound(prefill), decode=None if decode is None else main_bound(decode)),
        arithmetic_intensity=_intensity(resolved, prefill, decode),
        breakdown=_breakdown(prefill, decode),
        cost=bill,
        usd_per_million_input_tokens=_price(bill, "usd_per_million_input_tokens", requests_per_s),
        usd_per_million_output_tokens=_price(bill, "usd_per_million_output_tokens", requests_per_s),
        energy=_energy(resolved, output_rate.value),
        basis=steps.basis,
    )


def _of_estimate(traffic_fields: dict[str, Any]) -> dict[str, Any]:
    for name in traffic_fields:
        if name not in ESTIMATE_TRAFFIC:
            raise InvalidInput(f"estimate takes no {name!r}: `simulate` does")
    return traffic_fields


def _lengths(resolved: ResolvedPool, traffic: Traffic) -> tuple[int, int]:
    if traffic.input_len is None or traffic.output_len is None:
        missing = "--input-len" if traffic.input_len is None else "--output-len"
        raise InvalidInput(f"no {missing}: give the tokens of a typical request")
    if (traffic.batch_size is None) == (traffic.concurrency is None):
        raise InvalidInput("give one of --batch-size (a batch alone) and --concurrency (a closed loop)")
    _check_length(resolved, traffic.input_len + traffic.output_len)
    return traffic.input_len, traffic.output_len


def _check_length(resolved: ResolvedPool, tokens: int) -> None:
    if tokens > resolved.max_model_len:
        raise InvalidInput(
            f"a request of {tokens} tokens exceeds max_model_len {resolved.max_model_len}: "
            "shorten --input-len or --output-len, or raise --max-model-len"
        )


def _served(resolved: ResolvedPool, traffic: Traffic, tokens: int) -> int:
    """Requests of `tokens` tokens that run at a time; a batch that cannot raises, a closed loop waits."""
    plan, ranks = resolved.memory, resolved.pool.data_parallel_size
    held, seats = ranks * resolved.concurrent_requests(tokens), ranks * resolved.max_num_seqs
    wanted = traffic.batch_size or traffic.concurrency or 1
    if traffic.batch_size is not None and traffic.batch_size > seats:
        raise InvalidInput(
            f"--batch-size {traffic.batch_size} exceeds max_num_seqs {seats}: raise --max-num-seqs"
        )
    if held < 1 or (traffic.batch_size is not None and held < traffic.batch_size):
        needed = 1 if held < 1 else wanted
        raise DoesNotFit(
            f"{needed} x {tokens} tokens exceed the KV cache of {ranks * plan.kv_capacity_tokens} tokens, which holds "
            f"{held} such requests; {resolved.more_memory}",
            needed_bytes=needed * tokens * plan.kv_bytes_per_token,
            usable_bytes=plan.kv_cache_bytes,
        )
    return min(wanted, held, seats)


def _phase_times(
    resolved: ResolvedPool, traffic: Traffic, input_len: int, output_len: int
) -> tuple[PhaseTimes, tuple[str, ...]]:
    served = _served(resolved, traffic, input_len + output_len)
    lengths = {"input_len": input_len, "output_len": output_len}
    if traffic.batch_size is not None:
        return _batch_over_ranks(resolved, served, **lengths), ()
    times = _loop_over_ranks(resolved, served, **lengths)
    warnings = [
        "ttft_s is without queueing behind other requests; `capacity simulate` gives it with queueing"
    ]
    if traffic.concurrency is not None and served < traffic.concurrency:
        seats = resolved.pool.data_parallel_size * resolved.max_num_seqs
        bound = "max_num_seqs" if served == seats else "the KV cache"
        warnings.append(
            f"{bound} holds {served} of the {traffic.concurrency} requests at a time; the others wait"
        )
    if resolved.lockstep_ranks > 1:
        warnings.append("the prefill step shown is one in which every data-parallel rank prefills")
    return times, tuple(warnings)


def _batch_over_ranks(resolved: ResolvedPool, batch_size: int, **lengths: int) -> PhaseTimes:
    """A batch spread over the data-parallel ranks; the fullest takes as long as all."""
    share = math.ceil(batch_size / resolved.pool.data_parallel_size)
    times = batch_times(resolved.step_model, resolved.limits, share, **lengths)
    return replace(times, requests_per_s=times.requests_per_s * batch_size / share)


def _loop_over_ranks(resolved: ResolvedPool, concurrency: int, **lengths: int) -> PhaseTimes:
    """A closed loop spread over the data-parallel ranks: in lock-step, or each on its own."""
    share = math.ceil(concurrency / resolved.independent_ranks)
    times = closed_loop_times(
        resolved.step_model, resolved.limits, share, ranks=resolved.lockstep_ranks, **lengths
    )
    return replace(times, requests_per_s=times.requests_per_s * concurrency / share)


def _simulated(
    found: Distribution | None, metric: Literal["ttft", "tpot"], resolved: ResolvedPool
) -> Quantity | None:
    """A simulated mean with the band that such means earned against served runs."""
    from capacity.hardware.served_bands import served_band

    if found is None:
        return None
    band = served_band(metric, is_moe=resolved.model.is_moe)
    return _with_interval(found.mean, band.low, band.high)


def _with_interval(value: float, low: float | None, high: float | None) -> Quantity:
    return Quantity(
        value=value,
        low=None if low is None else value * (1 + low),
        high=None if high is None else value * (1 + high),
    )


def _band(resolved: ResolvedPool, regime: Literal["prefill", "decode"]) -> tuple[float | None, float | None]:
    """The 90 % band of measured over predicted, minus one, of one regime."""
    residuals = resolved.step_model.residuals(regime)
    return (residuals.low, residuals.high)


def _sum_interval(value: float, ttft: Quantity, tpot: Quantity | None, decode_steps: int) -> Quantity:
    """E2E from its parts: their errors may coincide, so their bounds add."""
    if tpot is None:
        return ttft
    if ttft.low is None or ttft.high is None or tpot.low is None or tpot.high is None:
        return Quantity(value=value)
    return Quantity(
        value=value, low=ttft.low + decode_steps * tpot.low, high=ttft.high + decode_steps * tpot.high
    )


def _breakdown(prefill: StepCost, decode: StepCost | None) -> Breakdown:
    return Breakdown(prefill=_operators(prefill), decode=() if decode is None else _operators(decode))


def _operators(cost: StepCost) -> tuple[OperatorTime, ...]:
    return tuple(
        OperatorTime(name=op.name, seconds=op.seconds, flops=op.flops, bytes=op.bytes, bound=op.bound)
        for op in cost.operators
    )


def _intensity(resolved: ResolvedPool, prefill: StepCost, decode: StepCost | None) -> Intensity:
    return Intensity(
        prefill_flops_per_byte=prefill.flops / prefill.bytes,
        decode_flops_per_byte=None if decode is None else decode.flops / decode.bytes,
        ridge_flops_per_byte=resolved.ridge_flops_per_byte,
    )


def _cost(
    resolved: ResolvedPool, price: Price | None, times: PhaseTimes, input_len: int, output_len: int
) -> CostEstimate | None:
    if price is None:
        return None
    return cost_estimate(
        price,
        num_gpus=resolved.pool.num_gpus,
        requests_per_s=times.requests_per_s,
        input_tokens=input_len,
        output_tokens=output_len,
        prefill_share=times.prefill_share,
    )


def _price(bill: CostEstimate | None, name: str, requests_per_s: Quantity) -> Quantity | None:
    """A price per token with the interval of the throughput that it divides by."""
    if bill is None:
        return None
    return requests_per_s.inverse(getattr(bill, name) * requests_per_s.value)


def _energy(resolved: ResolvedPool, output_tokens_per_s: float) -> Energy:
    watts = resolved.profile.system_watts_per_gpu
    return Energy(
        watts_per_gpu=watts,
        joules_per_output_token=joules_per_token(watts, resolved.pool.num_gpus, output_tokens_per_s),
    )


# simulate


@documented(Pool, Traffic, Service)
def simulate(
    model: str | Path | ModelSpec,
    *,
    goodput: Sequence[str] | None = None,
    slo: Sequence[str] | None = None,
    save_trace: str | Path | None = None,
    other_pools: Sequence[Pool] = (),
    workload: Workload | None = None,
    replications: int = 1,
    sample_interval_s: float | None = None,
    observer: StepObserver | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Simulation:
    """Replay a trace, or requests generated from `traffic` keywords, through the engine's scheduler step by step.

    `workload` replays a Workload of your own; `goodput` gives SLOs as `vllm bench serve` does ("ttft:500", in ms),
    `slo` those that the run is held against ("ttft:p95:500ms"); `other_pools` stand behind the router as well;
    `save_trace` writes the requests as a file that `vllm bench serve` replays, and notes how;
    `replications` runs it that often, with seeds that depend on `seed` alone, and gives every metric's mean over them
    with its interval (the rest of the answer is the first run's);
    `sample_interval_s` asks for the time series `run.series`; `observer` sees every step (`simulator.Timeline` keeps
    them), which then are taken one at a time; `progress(done, total)` is called as requests complete.
    An interrupt ends the run early: `run.status` says so, and what was simulated so far is kept. Raises
    DoesNotFit, or InvalidInput and its kinds.
    """
    from capacity.answers.deployment_run import (  # SimPy and numpy: not for `fit` and `estimate`
        run_service,
        verdict_on,
    )
    from capacity.answers.engine_setup import drafting_notes, make_workload
    from capacity.simulator.levels import goodput as goodput_of
    from capacity.simulator.levels import hold
    from capacity.simulator.replications import over_runs
    from capacity.simulator.time_parts import time_parts
    from capacity.workload import parse_slos, write_timed_trace

    pool_fields, traffic_fields, service_fields = split(options, Pool, Traffic, Service)
    pools = [
        resolve(model, pool, profiles=profiles, download=download)
        for pool in (build(Pool, pool_fields), *other_pools)
    ]
    resolved = pools[0]
    for pool in pools:
        pool.memory.require_fit()
    traffic: Traffic = build(Traffic, traffic_fields)
    if workload is None and traffic.input_len and traffic.output_len:
        for pool in pools:
            _check_length(pool, traffic.input_len + traffic.output_len)
    service: Service = build(Service, service_fields)
    levels = parse_slos(slo or ())
    requests = workload if workload is not None else make_workload(traffic)
    saved = (
        ()
        if save_trace is None
        else (f"replay with: vllm bench serve {write_timed_trace(requests, save_trace)}",)
    )
    seeds = _replication_seeds(traffic, service, replications, drawn=workload is None)
    run = run_service(
        pools,
        service,
        requests,
        scheduling=traffic.scheduling,
        goodput=goodput or (),
        seed=traffic.seed,
        sample_interval_s=sample_interval_s,
        keep_work=True,
        keep_interrupted=True,
        observer=observer,
        progress=progress,
    )
    if run.status == "interrupted":
        seeds = seeds[:1]
    summaries = [run.summary]
    for seed in seeds[1:]:
        again = traffic.model_copy(update={"seed": seed})
        other = make_workload(again) if workload is None else requests
        rerun = run_service(
            pools, service, other, scheduling=traffic.scheduling, goodput=goodput or (), seed=seed
        )
        summaries.append(rerun.summary)
    verdict = verdict_on(run, pools, service, requests, scheduling=traffic.scheduling)
    steady = verdict is not None and verdict.verdict == "stable"
    limits = parse_slos(goodput or ())
    return Simulation(
        model=_model_summary(resolved),
        gpu=GpuSummary(name=resolved.profile.name, count=resolved.pool.num_gpus),
        engine=resolved.engine.label,
        kv_capacity_tokens=resolved.memory.kv_capacity_tokens,
        kv_capacity_blocks=resolved.memory.kv_capacity_blocks,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        workload=requests.name,
        run=replace(run, step_work=()),  # `step_bounds` says it; the work itself holds what cannot be pickled
        replications=over_runs(seeds, summaries) if len(seeds) > 1 else None,
        verdict=verdict,
        slos=hold(levels, run.records, run.summary, steady=steady),
        goodput=goodput_of(limits, run.records, run.summary, steady=steady) if limits else None,
        step_bounds=bound_times(run.step_work),
        time_parts=time_parts(run.records, getattr(run, "transfer_ps", None)).to_dict(),
        mean_ttft_ms=_simulated(run.summary.ttft_ms, "ttft", resolved),
        mean_tpot_ms=_simulated(run.summary.tpot_ms, "tpot", resolved),
        warnings=(
            *resolved.notes,
            *resolved.memory.warnings,
            *requests.notices,
            *resolved.step_model.notes,
            *drafting_notes(resolved),
            *_of_failures(service),
            *saved,
        ),
    )


def _replication_seeds(traffic: Traffic, service: Service, count: int, *, drawn: bool) -> tuple[int, ...]:
    """The seeds of `count` runs. Raises InvalidInput where nothing is drawn: all runs would be the same."""
    from capacity.simulator.replications import replication_seeds

    seeds = replication_seeds(traffic.seed, count)
    chance = (drawn and traffic.trace is None) or service.mean_time_between_failures_s is not None
    if count > 1 and not chance:
        raise InvalidInput(
            "--replications of a trace are all the same run: leave it out, or generate requests "
            "(--input-len, --output-len, --request-rate)"
        )
    return seeds


def _of_failures(service: Service) -> tuple[str, ...]:
    """What the verdict's capacity leaves out."""
    if service.mean_time_between_failures_s is None:
        return ()
    return ("the verdict's capacity is that of replicas that never fail: while one is lost there is less",)
