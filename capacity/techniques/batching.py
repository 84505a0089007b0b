"""Comparison of batching methods on the same arrivals: a simulation of each, with the tokens and KV that it wastes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from capacity.answers.deployment_run import run_service
from capacity.answers.engine_setup import engine_frontend, policy_name, requests_of, setup_of
from capacity.base.checked import validate_arguments
from capacity.base.clock import check_time
from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.flags import ENGINE_LOOP, with_flags
from capacity.base.keywords import document_options, split
from capacity.deployment import DeploymentFile, Pool, Service, Traffic, make_deployment
from capacity.model import ModelSpec
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.techniques.batch_waste import (
    contiguous_kv_waste,
    gamma_lengths,
    paged_kv_waste,
    slot_gain,
    static_slot_waste,
)
from capacity.techniques.one_pool import PoolAnswer, pool_notes, shared_fields
from capacity.techniques.waste import Waste
from capacity.workload import Workload

SPREADS = (0.0, 0.25, 0.5, 1.0, 2.0)  # coefficients of variation of output lengths
SPREAD_BATCH = 64  # at most, for the simulated gains by spread: four batches of it
QUANTILES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOption:
    """Results of one batching method. `gain`: its output tokens per second and GPU, relative to the first method.

    `slot_waste_fraction`: fraction of decode tokens computed for ended requests. `padding_waste_fraction`: fraction of
    prefill tokens that are padding. `kv_waste_fraction`: fraction of reserved KV slots, over time, that are empty or
    belong to ended requests. All three are None for methods with two engines.
    """

    name: str
    num_gpus: int
    completed: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    mean_ttft_s: float | None
    p95_ttft_s: float | None
    p99_ttft_s: float | None
    mean_tpot_s: float | None
    p95_e2e_s: float | None
    mean_batch_size: float
    slot_waste_fraction: float | None
    padding_waste_fraction: float | None
    kv_waste_fraction: float | None
    prefix_cache_hit_fraction: float | None
    preemptions: int
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadGain:
    """Speedup of continuous over static batching for one coefficient of variation of output lengths: from the number of
    decode steps (`slot_gain`), and simulated.

    Output lengths are gamma distributed with the mean of the traffic, and prompts are equal.
    """

    coefficient_of_variation: float
    batch_size: int
    slot_waste_fraction: float
    slot_gain: float
    simulated_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching(PoolAnswer):
    """Results of every batching method on the same arrivals, and the KV waste that follows from the lengths alone.

    `contiguous_kv_waste_fraction` and `paged_kv_waste_fraction` are for requests at their final length.
    """

    SCHEMA: ClassVar[str] = "capacity/batching/v1"

    workload: str
    requests: int
    max_model_len: int
    batch_size: int
    slot_waste_fraction: float
    padding_waste_fraction: float
    contiguous_kv_waste_fraction: float
    paged_kv_waste_fraction: float
    slot_gain: float
    rows: tuple[BatchingOption, ...]
    spread: tuple[SpreadGain, ...]
    warnings: tuple[str, ...]


def batching_comparison(
    resolved: ResolvedPool,
    workload: Workload,
    *,
    batch_size: int | None = None,
    batching_window_s: float = 0.1,
    spread: bool = True,
    engine_loop: str = "auto",
) -> Batching:
    """Return the results of every batching method on the same arrivals.

    The methods are static batches (full, or after a time window), continuous batching (with contiguous KV, whole
    prompts, chunked prefill or a prefix cache) and disaggregated prefill.

    `batch_size` limits all methods (None: the pool's max_num_seqs). Waste is measured step by step by the Python
    engines, which is practical for thousands of requests. `engine_loop` applies to the other simulations: disaggregated
    prefill, which needs two engines and is compared with two mixed engines, and with `spread` the gains for several
    coefficients of variation of the output lengths. Raises InvalidInput.
    """
    resolved = _limit_batch(resolved, workload, batch_size)
    options = [
        _make_option(
            name,
            resolved.pool.num_gpus,
            simulate(workload, setup, observer=waste, frontend=engine_frontend(resolved, workload)),
            waste,
        )
        for name, setup in _batching_setups(resolved, workload, batching_window_s)
        for waste in (Waste(),)
    ]
    pairs, notes = _two_engine_options(resolved, workload, engine_loop)
    members = min(resolved.max_num_seqs, len(workload))
    first = options[0].output_tokens_per_s_per_gpu
    final = workload.prompt_tokens + workload.output_tokens
    return Batching(
        **shared_fields(resolved),
        workload=workload.name,
        requests=len(workload),
        max_model_len=resolved.max_model_len,
        batch_size=members,
        slot_waste_fraction=static_slot_waste(workload.output_tokens, members),
        padding_waste_fraction=static_slot_waste(workload.prompt_tokens, members),
        contiguous_kv_waste_fraction=contiguous_kv_waste(final, resolved.max_model_len),
        paged_kv_waste_fraction=paged_kv_waste(final, resolved.memory.kv_block_tokens),
        slot_gain=slot_gain(workload.output_tokens, members),
        rows=tuple(replace(o, gain=o.output_tokens_per_s_per_gpu / first) for o in (*options, *pairs)),
        spread=spread_gains(resolved, workload, engine_loop=engine_loop) if spread else (),
        warnings=(*pool_notes(resolved), *workload.notices, *notes),
    )


def _limit_batch(resolved: ResolvedPool, workload: Workload, batch_size: int | None) -> ResolvedPool:
    """Return the pool with at most this batch size. Raises DoesNotFit, or InvalidInput for an unsupported pool."""
    pool = resolved.pool
    left_out = {
        "--speculator": pool.speculator is not None,
        "--kv-offloading-size": pool.kv_offloading_size is not None,
        "--preemption-mode swap": pool.preemption_mode == "swap",
        "--data-parallel-size": pool.data_parallel_size > 1,
    }
    if flags := [flag for flag, is_set in left_out.items() if is_set]:
        raise InvalidInput(
            f"batching methods are compared on one plain engine: leave out {', '.join(flags)} (`capacity "
            "simulate` accepts them)"
        )
    resolved.memory.require_fit()
    if batch_size is not None:
        if batch_size < 1:
            raise InvalidInput(f"a batch of {batch_size}: must be at least 1")
        resolved = replace(resolved, max_num_seqs=batch_size)
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    if longest > resolved.max_model_len:
        raise InvalidInput(
            f"the longest request has {longest} tokens, max_model_len is {resolved.max_model_len}: raise the limit"
        )
    return resolved


def _two_engine_options(
    resolved: ResolvedPool, workload: Workload, engine_loop: str
) -> tuple[list[BatchingOption], tuple[str, ...]]:
    """Return the results of two mixed engines and of a prefill plus a decode engine, and notes on failures."""
    pair = replace(resolved, pool=resolved.pool.model_copy(update={"replicas": 2}))
    options, notes = [], []
    for name, prefill in (("continuous, 2 engines", None), ("disaggregated, 1 prefill + 1 decode", 1)):
        try:
            run = run_service([pair], Service(prefill_replicas=prefill), workload, engine_loop=engine_loop)
        except CapacityError as error:
            notes.append(f"{name}: {error}")
        else:
            options.append(_make_option(name, 2 * resolved.pool.num_gpus, run, None))
    return options, tuple(notes)


def _batching_setups(
    resolved: ResolvedPool, workload: Workload, batching_window_s: float
) -> Iterator[tuple[str, EngineSetup]]:
    """Yield the name and the engine setup of each batching method that needs only one engine."""
    base = _plain_setup(resolved)
    static = replace(base, policy="static", kv_windows=(None,))
    if not workload.is_closed_loop:  # where batches may never fill
        starts = np.arange(0, len(workload), resolved.max_num_seqs)
        ends = np.minimum(starts + resolved.max_num_seqs, len(workload)) - 1
        full = {"batching_window_s": float((workload.arrival_s[ends] - workload.arrival_s[starts]).max())}
        yield "static, full batches", replace(static, policy_options=full)
    window = {"batching_window_s": batching_window_s}
    yield f"dynamic, window of {batching_window_s:g} s", replace(static, policy_options=window)
    limits = base.limits
    whole = replace(
        limits,
        enable_chunked_prefill=False,
        max_num_batched_tokens=max(limits.max_num_batched_tokens, limits.max_model_len),
    )
    contiguous = replace(base, kv_contiguous_tokens=limits.max_model_len, kv_windows=(None,))
    yield "continuous, contiguous KV", contiguous
    yield "continuous, whole prompts", replace(base, limits=whole)
    yield "continuous, chunked prompts", base
    yield "continuous, prefix cache", replace(base, enable_prefix_caching=True)


def _plain_setup(resolved: ResolvedPool) -> EngineSetup:
    """Return the engine setup of plain continuous batching, with vLLM V1's scheduler if the engine has another one."""
    name = policy_name(resolved)
    plain = replace(
        resolved, pool=resolved.pool.model_copy(update={"speculator": None, "kv_layout": "paged"})
    )
    setup = setup_of(plain)
    return replace(
        setup,
        policy=name if name.startswith("vllm-v1") else "vllm-v1",
        policy_options={},
        limits=replace(setup.limits, enable_chunked_prefill=True),
        enable_prefix_caching=False,
    )


def _make_option(name: str, gpus: int, result: SimulationResult, waste: Waste | None) -> BatchingOption:
    values: Mapping[str, Any] = result.to_dict()
    return BatchingOption(
        name=name,
        num_gpus=gpus,
        completed=values["completed"],
        duration_s=values["duration"],
        requests_per_s=values["request_throughput"],
        output_tokens_per_s=values["output_throughput"],
        output_tokens_per_s_per_gpu=values["output_throughput"] / gpus,
        mean_ttft_s=_seconds(values["mean_ttft_ms"]),
        p95_ttft_s=_seconds(values["p95_ttft_ms"]),
        p99_ttft_s=_seconds(values["p99_ttft_ms"]),
        mean_tpot_s=_seconds(values["mean_tpot_ms"]),
        p95_e2e_s=_seconds(values["p95_e2el_ms"]),
        mean_batch_size=result.mean_batch_size,
        slot_waste_fraction=None if waste is None else waste.slots,
        padding_waste_fraction=None if waste is None else waste.padding,
        kv_waste_fraction=None if waste is None else waste.kv,
        prefix_cache_hit_fraction=result.prefix_cache_hit_fraction,
        preemptions=result.preemptions,
        gain=1.0,
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def spread_gains(
    resolved: ResolvedPool,
    workload: Workload,
    spreads: tuple[float, ...] = SPREADS,
    *,
    engine_loop: str = "auto",
) -> tuple[SpreadGain, ...]:
    """Return the gain of continuous over static batching at the workload's mean lengths, for each coefficient of
    variation of the output lengths.

    All requests wait at the start, so only the lengths make a difference. Outputs are truncated at max_model_len.
    """
    batch = min(resolved.max_num_seqs, SPREAD_BATCH)
    prompt = min(round(float(workload.prompt_tokens.mean())), resolved.max_model_len - 1)
    mean = float(workload.output_tokens.mean())
    pool = replace(resolved, max_num_seqs=batch)
    rng = np.random.default_rng(0)
    rows = []
    for spread in spreads:
        most = resolved.max_model_len - prompt
        fine = np.minimum(gamma_lengths(mean, spread, QUANTILES), most)
        outputs = rng.permutation(np.minimum(gamma_lengths(mean, spread, 4 * batch), most))
        requests = Workload(
            arrival_s=np.zeros(len(outputs)),
            prompt_tokens=np.full(len(outputs), prompt),
            output_tokens=outputs,
        )
        setup = _plain_setup(pool)
        waiting = replace(setup, policy="static", kv_windows=(None,))
        static = simulate(requests, waiting, engine_loop=engine_loop).summary.output_throughput
        continuous = simulate(requests, setup, engine_loop=engine_loop).summary.output_throughput
        rows.append(
            SpreadGain(
                coefficient_of_variation=spread,
                batch_size=batch,
                slot_waste_fraction=static_slot_waste(fine, batch),
                slot_gain=slot_gain(fine, batch),
                simulated_gain=continuous / static,
            )
        )
    return tuple(rows)


@document_options(Pool, Traffic)
@validate_arguments
@with_flags
def compare_batching(
    model: str | ModelSpec | DeploymentFile,
    *,
    workload: Workload | None = None,
    max_batch: int | None = None,
    batching_window_s: float = 0.1,
    spread: bool = True,
    engine_loop: Annotated[str, ENGINE_LOOP] = "auto",
    **options: Any,
) -> Batching:
    """Compare static, windowed, continuous, chunked and disaggregated batching of the same arrivals.

    `max_batch` limits all methods (None: the engine's limit). Waste is measured step by step by the Python engines,
    which is practical for thousands of requests; `engine_loop` applies to the other simulations. Raises DoesNotFit or
    InvalidInput.
    """
    check_time("batching window (--batching-window)", batching_window_s)
    pool, traffic = split(options, Pool, Traffic)
    deployment = make_deployment(model, pool=pool, traffic=traffic, question="batching")
    resolved = resolve(deployment.model, deployment.pool)
    resolved.memory.require_fit()
    requests = requests_of(deployment.traffic, workload, resolved.max_model_len)
    return batching_comparison(
        resolved,
        requests,
        batch_size=max_batch,
        batching_window_s=batching_window_s,
        spread=spread,
        engine_loop=engine_loop,
    )
