"""Resolve names to objects: turn a user's model and pool into the settings, memory and step model of an engine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from capacity.base.errors import InvalidInput
from capacity.base.record import make_from
from capacity.deployment import Pool, build
from capacity.deployment.client_latency import USUAL_S
from capacity.deployment.drafts import drafting_notes
from capacity.deployment.engines import EngineSpec, find_engine
from capacity.hardware import HardwareProfile, load_profile
from capacity.hardware.adjustment import Adjustment
from capacity.hardware.kernel_lookup import measured_release_notes
from capacity.hardware.power_cap import power_cap_notes, with_power_cap
from capacity.model import ModelSpec, load_model
from capacity.model.quantization import QuantizationScheme, bits_per_weight, find_kv_cache_format, scheme_for
from capacity.pool.defaults import (
    caches_prefixes,
    chunks_prefill,
    conversion_notes,
    kv_format,
    longest_request,
    step_limits,
)
from capacity.pool.kv_eviction import evict_to_budget, eviction_notes
from capacity.pool.memory import GIB, MemoryPlan, limiting_states, memory_plan
from capacity.pool.offload import check_offload, host_weight_share, offload_notes
from capacity.pool.parallelism import largest_tensor_parallel_size, shares_contexts, tensor_parallel_sizes
from capacity.pool.settings import PoolSettings, add_grammar_cost, add_penalty_cost, select_model_runner
from capacity.pool.shortfall import Change, explain_shortfall, shortfall, suggest_changes
from capacity.pool.support_checks import (
    aiter_notes,
    apply_dtype,
    check_attention,
    check_experts,
    check_formats,
    check_runs,
    check_scheduled_tokens,
    check_settings,
    loaded_model,
    no_cache_notes,
)
from capacity.step.closed_form import EngineLimits, prefill_steps
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting
from capacity.step.split import describe_split_slowdown, halve_ranks

SIXTEEN_BIT_KV = ("fp32", "bf16", "fp16")
NARROW_WEIGHT_BITS = 5  # int4, NVFP4 and MXFP4 with scales; narrower weights are unusual
FIRST_STEPS = 16  # of a prefill; later ones take as long


@dataclass(frozen=True, kw_only=True)
class ResolvedPool(PoolSettings):
    """One engine of a pool with defaults filled in, and the memory, limits and step times that result.

    `draft`: the draft model, as a pool on some of the same GPUs; `memory` does not include the draft model's memory.
    `vllm_scheduler`: path of an installed vLLM whose scheduler is used in simulations; None: the simulator's own.
    `policy`: name or class of the scheduling policy in simulations; None: the policy of the engine's release.
    """

    draft: "ResolvedPool | None" = None
    vllm_scheduler: str | None = None
    policy: str | type | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle, without cached properties, because step models cannot be pickled."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def memory(self) -> MemoryPlan:
        """Return the memory plan, including the KV cache. Raises InvalidInput for invalid parallelism."""
        plan = self.memory_without_advice
        return plan if plan.fits else replace(plan, reason=explain_shortfall(self, plan, self.change))

    @cached_property
    def memory_without_advice(self) -> MemoryPlan:
        """Return the memory plan without suggested changes, which would require about fifty more plans."""
        plan = memory_plan(self)
        return plan if plan.fits else replace(plan, reason=shortfall(self, plan))

    @property
    def suggested_changes(self) -> tuple[Change, ...]:
        """Return the smallest change of settings of each type that makes the model fit; empty if it already fits."""
        return () if self.memory.fits else suggest_changes(self, self.memory, self.change)

    def change(self, fields: Mapping[str, object]) -> "ResolvedPool":
        """Return a copy with changed `Pool` fields and new defaults. Raises InvalidInput for invalid fields."""
        pool = build(Pool, {**self.pool.model_dump(), **fields})
        scheme = scheme_for(self.model, pool.quantization) if "quantization" in fields else self.scheme
        other = with_defaults(
            pool, self.model, profile=self.profile, engine=self.engine, scheme=scheme, host_cpu=self.host_cpu
        )
        if {"quantization", "kv_cache_dtype"} & set(fields):
            check_formats(other)
        return other

    @property
    def deployment_name(self) -> str:
        """Return a name with the settings, such as model and limits, that identify a deployment in calibrations."""
        pool = self.pool
        ranks = (pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.data_parallel_size)
        formats = (pool.quantization or "checkpoint", pool.kv_cache_dtype)
        limits = (self.max_num_seqs, self.max_num_batched_tokens)
        switches = (pool.enforce_eager, self.prefix_caching, pool.speculator)
        settings = (*formats, "x".join(map(str, ranks)), *limits, *switches)
        return " ".join(map(str, (self.model.name, self.engine.label, *settings)))

    def adjusted_by(self, adjustment: Adjustment | None) -> "ResolvedPool":
        """Return a copy whose GPU profile has this calibration adjustment in place of its own."""
        profile = self.profile.with_adjustment(adjustment)
        known = _engine(self.pool, profile, self.model)
        latencies = {name: getattr(known, name) for name in ("request_latency_s", "response_latency_s")}
        return replace(
            self,
            profile=profile,
            engine=self.engine.model_copy(update=latencies),
            draft=None if self.draft is None else self.draft.adjusted_by(adjustment),
        )

    def concurrent_requests(self, tokens: int) -> int:
        """Return how many requests of `tokens` tokens the KV cache holds at once."""
        plan = self.memory
        return math.floor(plan.layout.requests_held(plan.usable_blocks, tokens))

    def largest_batch(self, tokens: int) -> int:
        """Return how many requests of `tokens` tokens a rank runs at once (KV cache, `max_num_seqs`)."""
        return min(self.concurrent_requests(tokens), self.max_num_seqs)

    @property
    def memory_advice(self) -> str:
        """Return text with changes that enlarge the KV cache, without those that are unsupported or already made."""
        kept = find_kv_cache_format(self.kv_cache_dtype, model_dtype=self.model.dtype)
        ways = ["more GPUs (--tensor-parallel-size)"]
        if kept.name in SIXTEEN_BIT_KV and self.engine.supports_kv_format("fp8"):
            ways.append("--kv-cache-dtype fp8")
        if bits_per_weight(self.model, self.scheme) > NARROW_WEIGHT_BITS:
            ways.append("smaller weights (--quantization)")
        return f"use {' or '.join(ways)}"

    @property
    def concurrency_advice(self) -> str:
        """Return text with changes that allow more concurrent requests."""
        states = self.memory_without_advice.states
        if states is None or states.requests > self.max_num_seqs:
            return "raise --max-num-seqs"
        return "recurrent states leave no memory for more requests: use more GPUs (--tensor-parallel-size)"

    @property
    def ridge_flops_per_byte(self) -> float:
        """Return the FLOPs per byte above which compute, not memory, limits multiplication by weights."""
        dtype = self.scheme.format_of("dense_ffn").execution(self.profile.dense_flops_per_s).compute_dtype
        rates = self.profile.dense_flops_per_s
        return rates.get(dtype, rates[self.profile.compute_type_16_bit]) / self.profile.hbm_bytes_per_s

    @property
    def smallest_tensor_parallel_size(self) -> int | None:
        """Return the smallest TP size at which the model fits in one scale-up domain or node, or None."""
        for size in tensor_parallel_sizes(self.model, largest_tensor_parallel_size(self.profile)):
            own = size == self.pool.tensor_parallel_size
            if not own and not shares_contexts(self, size):
                continue
            plan = self.memory if own else memory_plan(self.with_tensor_parallel_size(size))
            if plan.fits:
                return size
        return None

    @property
    def step_setting(self) -> StepSetting:
        return make_from(
            StepSetting,
            self,
            self.pool,
            data_parallel_size=self.lockstep_ranks,
            max_graph_rows=self.pool.max_cudagraph_capture_size,
            graph_padding=self.pool.cudagraph_padding,
            host_weight_share=host_weight_share(self),
            gpu_layers=self.pool.n_gpu_layers,
            max_loras=self.pool.max_loras or 0,
        )

    @cached_property
    def step_model(self) -> StepModel:
        return StepModel(self.step_setting)

    @cached_property
    def _step_model_over_fewer(self) -> StepModel | None:
        return halve_ranks(self.step_setting)

    def split_notes(self, prompt_tokens: float, prompts: int = 1) -> tuple[str, ...]:
        """Return a note if a smaller TP size would prefill `prompts` prompts of `prompt_tokens` tokens faster."""
        less = self._step_model_over_fewer
        if less is None or prompt_tokens < 1:
            return ()
        steps = tuple(islice(prefill_steps(prompts, max(round(prompt_tokens), 1), self.limits), FIRST_STEPS))
        note = describe_split_slowdown(self.step_model, self.pool.tensor_parallel_size, less, steps)
        return () if note is None else (note,)

    @property
    def limits(self) -> EngineLimits:
        """Return the limits on the contents of one step, for the closed-form estimates."""
        return EngineLimits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_scheduled_tokens,
            chunked_prefill=self.chunked_prefill,
            mixes_prefill_with_decode=self.engine.mixes_prefill_with_decode,
            window_tokens=self.model.window_tokens,
            request_latency_s=self.engine.request_latency_s
            + self.engine.request_s
            + self.engine.response_latency_s,
            input_token_s=self.engine.input_token_s,
        )

    def limits_from(self, client_latency_s: float = USUAL_S) -> EngineLimits:
        """Return `limits` with the client's round-trip latency (in seconds) added to the latency of a request."""
        limits = self.limits
        return replace(limits, request_latency_s=limits.request_latency_s + client_latency_s)


def resolve(
    model: str | Path | ModelSpec, pool: Pool, *, profiles: str | Path | None = None, download: bool = False
) -> ResolvedPool:
    """Look up all names of a pool and fill in the engine's defaults.

    `profiles`: a folder with more GPU profiles. Raises UnknownName, UnsupportedModel, MalformedFile or InvalidInput,
    each with a one-line message.
    """
    spec = model if isinstance(model, ModelSpec) else load_model(model, download=download)
    auto = pool.max_model_len == "auto"
    if auto:
        pool = pool.model_copy(update={"max_model_len": None})
    profile = with_power_cap(load_profile(pool.gpu, [profiles] if profiles else []), pool.power_cap)
    engine = _engine(pool, profile, spec)
    check_settings(pool, engine)
    cpu = None if pool.n_gpu_layers is None else load_profile(pool.host_cpu, [profiles] if profiles else [])
    if cpu is not None and cpu.platform != "cpu":
        raise InvalidInput(
            f"--host-cpu {pool.host_cpu}: {cpu.name} is not a CPU; `capacity gpus` lists profiles"
        )
    served = apply_dtype(loaded_model(spec, pool), pool.dtype, profile)
    resolved = with_defaults(
        pool,
        served,
        profile=profile,
        engine=engine,
        scheme=scheme_for(served, pool.quantization),
        host_cpu=cpu,
    )
    check_runs(resolved)
    check_formats(resolved)
    check_offload(resolved)
    check_attention(resolved)
    check_experts(resolved)
    check_scheduled_tokens(resolved)
    if auto or (pool.max_model_len is None and engine.limits_requests_to_kv):
        longest = resolved.memory_without_advice.max_context_tokens
        if not resolved.memory_without_advice.fits and longest > 0:
            shorter = resolve(
                spec, pool.model_copy(update={"max_model_len": longest}), profiles=profiles, download=download
            )
            why = "--max-model-len auto" if auto else f"{engine.name} limits requests to its KV cache"
            note = f"{why}: set to {longest:,} of the model's {resolved.max_model_len:,} tokens"
            return replace(shorter, notes=(*shorter.notes, note))
    return (
        resolved
        if pool.draft is None
        else replace(resolved, draft=_resolve_draft(resolved, profiles, download))
    )


DRAFT_MODEL_FIELDS = (
    *(
        "gpu",
        "power_cap",
        "engine",
        "dtype",
        "kv_cache_dtype",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
    ),
    *("block_size", "max_num_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens", "use_cache"),
    *("enable_chunked_prefill", "enforce_eager", "max_cudagraph_capture_size", "cudagraph_padding"),
    "structured_output",
    "num_gpu_blocks_override",
)
"""Pool settings that also apply to the draft model; a new setting applies to it only if it is added here."""


def _resolve_draft(target: ResolvedPool, profiles: str | Path | None, download: bool) -> ResolvedPool:
    """Return the draft model at 16 bits or in its checkpoint's format, on all of the target's GPUs or one of them.

    vLLM 0.33.0, config/speculative.py: the draft's tensor parallelism is 1 or the target's (the default). Requests
    longer than the draft model's context are not drafted.
    """
    pool = target.pool
    assert pool.draft is not None
    ranks = pool.draft_tensor_parallel_size or pool.tensor_parallel_size
    if ranks not in (1, pool.tensor_parallel_size):
        raise InvalidInput(
            f"--draft-tensor-parallel-size {ranks}: must be 1 or the target's {pool.tensor_parallel_size}"
        )
    spec = load_model(pool.draft, download=download)
    shared = {name: getattr(pool, name) for name in DRAFT_MODEL_FIELDS}
    shared["tensor_parallel_size"] = ranks
    shared["max_model_len"] = min(target.max_model_len, spec.max_position_embeddings)
    return resolve(spec, Pool(**shared), profiles=profiles)


def _engine(pool: Pool, profile: HardwareProfile, model: ModelSpec) -> EngineSpec:
    """Return the engine release with the model's runner, calibrated latencies, and the host time of sampling."""
    engine = select_model_runner(find_engine(pool.engine), model, pool.quantization, profile.platform)
    cached_states = model.state_bytes_per_sequence() and caches_prefixes(pool, model, engine)
    if cached_states and not engine.overlaps_cached_states:
        engine = engine.model_copy(update={"host_overlapped": False})
    if profile.adjustment is not None:
        there_s, back_s = profile.adjustment.adjust_latencies(
            engine.request_latency_s, engine.response_latency_s
        )
        engine = engine.model_copy(update={"request_latency_s": there_s, "response_latency_s": back_s})
    if pool.repetition_penalty != 1:
        engine = add_penalty_cost(engine)
    grammar = pool.structured_output
    return engine if grammar == "none" else add_grammar_cost(engine, compiled_each=grammar == "each")


def with_defaults(
    pool: Pool,
    model: ModelSpec,
    *,
    profile: HardwareProfile,
    engine: EngineSpec,
    scheme: QuantizationScheme | None = None,
    host_cpu: HardwareProfile | None = None,
) -> ResolvedPool:
    """Return the pool with the defaults of the engine and the checkpoint; no other function fills in defaults.

    `scheme`: format of the weights; None: the checkpoint's. Raises InvalidInput for contradictory limits.
    """
    scheme = scheme or model.checkpoint
    model = evict_to_budget(model, pool)
    max_model_len = longest_request(model, pool)
    chunked = chunks_prefill(pool, model, engine)
    ranks = pool.data_parallel_size if model.is_moe and engine.data_parallel_divides_limits else 1
    defaults = engine.default_limits(profile.memory_engine_bytes, profile.architecture)
    max_num_seqs, max_num_batched_tokens = step_limits(
        pool,
        max_num_seqs=max(defaults.max_num_seqs // ranks, 1),
        token_budget=max(defaults.max_num_batched_tokens // ranks, 1),
        longest_prefill=1 if chunked else max_model_len,
    )
    resolved = ResolvedPool(
        pool=pool,
        model=model,
        profile=profile,
        engine=engine,
        scheme=scheme,
        kv_cache_dtype=kv_format(pool, scheme, model, engine, profile.architecture),
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        chunked_prefill=chunked,
        prefix_caching=caches_prefixes(pool, model, engine),
        notes=(
            *engine.notes,
            *model.notes,
            *conversion_notes(model, scheme),
            *no_cache_notes(pool, engine),
            *eviction_notes(pool, engine.name),
            *drafting_notes(engine.name, pool.speculator),
            *aiter_notes(engine, profile.platform),
        ),
        host_cpu=host_cpu,
    )
    resolved = _limit_by_states(resolved)
    notes = [*resolved.step_setting.remarks, *power_cap_notes(profile), *offload_notes(resolved)]
    notes += measured_release_notes(profile.step_time, engine.label)
    if profile.adjustment is not None:
        notes += profile.adjustment.calibration_notes(model.name, engine.label)
    return replace(resolved, notes=(*resolved.notes, *notes))


def _limit_by_states(resolved: ResolvedPool) -> ResolvedPool:
    """Return the pool with concurrent requests limited to those whose recurrent states fit in memory."""
    try:
        states = limiting_states(resolved)
    except InvalidInput:  # the memory plan reports it
        return resolved
    if states is None or states.requests >= resolved.max_num_seqs:
        return resolved
    most = max(states.requests, 1)
    note = (
        f"at most {most:,} requests run concurrently: {resolved.engine.name} keeps recurrent states in separate "
        f"memory, here {states.slots:,} states in {states.used_bytes / GIB:.1f} GiB per GPU; a request takes "
        f"{states.states_per_request}"
    )
    return replace(resolved, max_num_seqs=most, notes=(*resolved.notes, note))
