"""From names to objects: a model and a pool, as a user writes them, become everything that a question needs."""

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
from capacity.model import ModelSpec, load_model
from capacity.model.quantization import QuantizationScheme, bits_per_weight, find_kv_cache_format, scheme_for
from capacity.pool.defaults import kv_format, longest_request, step_limits
from capacity.pool.kv_eviction import evicting, eviction_notes, keeps_whole_prompts
from capacity.pool.memory import GIB, MemoryPlan, memory_plan, states_of
from capacity.pool.offload import check_offload, host_weight_share, offload_notes
from capacity.pool.parallelism import largest_tensor_parallel_size, shares_contexts, tensor_parallel_sizes
from capacity.pool.settings import PoolSettings, with_grammars
from capacity.pool.supported import (
    check_attention,
    check_experts,
    check_formats,
    check_runs,
    check_scheduled_tokens,
    check_settings,
    loaded_of,
    served_in,
    what_ifs,
)
from capacity.pool.why_not import Change, shortfall, ways_out, why_not
from capacity.step.closed_form import EngineLimits, prefill_steps
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting
from capacity.step.split import longer_when_split, over_fewer

SIXTEEN_BIT_KV = ("fp32", "bf16", "fp16")
NARROW_WEIGHT_BITS = 5  # int4, NVFP4 and MXFP4 with their scales: nothing narrower is usual
FIRST_STEPS = 16  # of a prefill: the others are as long


@dataclass(frozen=True, kw_only=True)
class ResolvedPool(PoolSettings):
    """One engine of a pool, its defaults filled in, with what follows from them: memory, limits, step times.

    `draft`: the model that drafts for it, as a pool on some of the same GPUs; its memory is not in `memory`.
    """

    draft: "ResolvedPool | None" = None

    def __getstate__(self) -> dict[str, object]:
        """What follows is worked out anew by another process: step models do not travel."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def memory(self) -> MemoryPlan:
        """What the weights leave for the KV cache. Raises InvalidInput for parallelism that cannot be."""
        plan = self.memory_in_short
        return plan if plan.fits else replace(plan, reason=why_not(self, plan, self.changed))

    @cached_property
    def memory_in_short(self) -> MemoryPlan:
        """The same without ways out where it does not fit, which take some fifty plans."""
        plan = memory_plan(self)
        return plan if plan.fits else replace(plan, reason=shortfall(self, plan))

    @property
    def ways_out(self) -> tuple[Change, ...]:
        """Changes of pool fields with which this fits, the smallest of each kind; none where it fits as it is."""
        return () if self.memory.fits else ways_out(self, self.memory, self.changed)

    def changed(self, fields: Mapping[str, object]) -> "ResolvedPool":
        """The same with other fields of the pool, defaults filled in anew. Raises InvalidInput for what cannot be."""
        pool = build(Pool, {**self.pool.model_dump(), **fields})
        scheme = scheme_for(self.model, pool.quantization) if "quantization" in fields else self.scheme
        other = with_defaults(
            pool, self.model, profile=self.profile, engine=self.engine, scheme=scheme, host_cpu=self.host_cpu
        )
        if {"quantization", "kv_cache_dtype"} & set(fields):
            check_formats(other)
        return other

    def adjusted_by(self, adjustment: Adjustment | None) -> "ResolvedPool":
        """The same on a GPU with another adjustment in place of its own."""
        profile = self.profile.adjusted_by(adjustment)
        known = _engine(self.pool, profile)
        latencies = {name: getattr(known, name) for name in ("request_latency_s", "response_latency_s")}
        return replace(
            self,
            profile=profile,
            engine=self.engine.model_copy(update=latencies),
            draft=None if self.draft is None else self.draft.adjusted_by(adjustment),
        )

    def concurrent_requests(self, tokens: int) -> int:
        """Requests of `tokens` tokens that the KV cache holds at once."""
        plan = self.memory
        return math.floor(plan.layout.requests_held(plan.usable_blocks, tokens))

    def largest_batch(self, tokens: int) -> int:
        """Requests of `tokens` tokens that one engine, or one data-parallel rank, runs at once: held, and in a step."""
        return min(self.concurrent_requests(tokens), self.max_num_seqs)

    @property
    def more_memory(self) -> str:
        """The ways out of a KV cache that is too small, without those that are taken or closed to the engine."""
        kept = find_kv_cache_format(self.kv_cache_dtype, model_dtype=self.model.dtype)
        ways = ["more GPUs (--tensor-parallel-size)"]
        if kept.name in SIXTEEN_BIT_KV and self.engine.caches_in("fp8"):
            ways.append("--kv-cache-dtype fp8")
        if bits_per_weight(self.model, self.scheme) > NARROW_WEIGHT_BITS:
            ways.append("smaller weights (--quantization)")
        return f"use {' or '.join(ways)}"

    @property
    def more_seats(self) -> str:
        """The ways out of too few requests at once."""
        states = self.memory_in_short.states
        if states is None or states.requests > self.max_num_seqs:
            return "raise --max-num-seqs"
        return "recurrent states have no place for more: use more GPUs (--tensor-parallel-size)"

    @property
    def ridge_flops_per_byte(self) -> float:
        """Where compute takes over from HBM, at the rate that the layers' weights multiply in."""
        dtype = self.scheme.format_of("dense_ffn").execution(self.profile.dense_flops_per_s).compute_dtype
        rates = self.profile.dense_flops_per_s
        return rates.get(dtype, rates[self.profile.sixteen_bit]) / self.profile.hbm_bytes_per_s

    @property
    def smallest_tensor_parallel_size(self) -> int | None:
        """The least TP, within the scale-up domain or the node, at which this fits, all else equal; None: none."""
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
        """What the step model is made of."""
        return make_from(
            StepSetting,
            self,
            self.pool,
            data_parallel_size=self.lockstep_ranks,
            max_graph_rows=self.pool.max_cudagraph_capture_size,
            host_weight_share=host_weight_share(self),
            gpu_layers=self.pool.n_gpu_layers,
            max_loras=self.pool.max_loras or 0,
        )

    @cached_property
    def step_model(self) -> StepModel:
        """What each step costs."""
        return StepModel(self.step_setting)

    @cached_property
    def _step_model_over_fewer(self) -> StepModel | None:
        return over_fewer(self.step_setting)

    def split_notes(self, prompt_tokens: float, prompts: int = 1) -> tuple[str, ...]:
        """What to tell of a prefill of such prompts that tensor parallelism makes longer; nothing where it does not."""
        less = self._step_model_over_fewer
        if less is None or prompt_tokens < 1:
            return ()
        steps = tuple(islice(prefill_steps(prompts, max(round(prompt_tokens), 1), self.limits), FIRST_STEPS))
        note = longer_when_split(self.step_model, self.pool.tensor_parallel_size, less, steps)
        return () if note is None else (note,)

    @property
    def limits(self) -> EngineLimits:
        """What bounds the composition of a step, for the closed forms."""
        return EngineLimits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_scheduled_tokens,
            chunked_prefill=self.chunked_prefill,
            mixes_prefill_with_decode=self.engine.mixes_prefill_with_decode,
            window_tokens=self.model.window_tokens,
            request_latency_s=self.engine.request_latency_s + self.engine.response_latency_s,
        )

    def limits_from(self, client_latency_s: float = USUAL_S) -> EngineLimits:
        """The same as a client sees it that is so far away, in seconds there and back together."""
        limits = self.limits
        return replace(limits, request_latency_s=limits.request_latency_s + client_latency_s)


def resolve(
    model: str | Path | ModelSpec, pool: Pool, *, profiles: str | Path | None = None, download: bool = False
) -> ResolvedPool:
    """Look up every name of a pool and fill in the engine's defaults.

    `profiles`: a folder of further GPU profiles. Raises UnknownName, UnsupportedModel, MalformedFile or
    InvalidInput, each in one line.
    """
    spec = model if isinstance(model, ModelSpec) else load_model(model, download=download)
    if pool.max_model_len == "auto":
        return _longest_that_fits(spec, pool, profiles)
    profile = load_profile(pool.gpu, [profiles] if profiles else [])
    engine = _engine(pool, profile)
    check_settings(pool, engine)
    served = served_in(loaded_of(spec, pool), pool.dtype, profile)
    resolved = with_defaults(
        pool,
        served,
        profile=profile,
        engine=engine,
        scheme=scheme_for(served, pool.quantization),
        host_cpu=None if pool.n_gpu_layers is None else _host_cpu(pool.host_cpu, profiles),
    )
    check_runs(resolved)
    check_formats(resolved)
    check_offload(resolved)
    check_attention(resolved)
    check_experts(resolved)
    check_scheduled_tokens(resolved)
    return resolved if pool.draft is None else replace(resolved, draft=_draft(resolved, profiles, download))


DRAFT_MODEL_SHARES = (
    *("gpu", "engine", "dtype", "kv_cache_dtype", "gpu_memory_utilization", "kv_cache_memory_bytes"),
    *("block_size", "max_num_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens", "use_cache"),
    *("enable_chunked_prefill", "enforce_eager", "max_cudagraph_capture_size", "structured_output"),
    "num_gpu_blocks_override",
)
"""Settings of a pool that hold for the model that drafts too; a new one does not, unless it is added here."""


def _draft(target: ResolvedPool, profiles: str | Path | None, download: bool) -> ResolvedPool:
    """The model that drafts, at 16 bit or as its checkpoint, on the target's GPUs or on one of them.

    vLLM 0.33.0, config/speculative.py: its tensor parallelism is 1 or the target's, which is the default; requests of
    more tokens than it was made for are not drafted.
    """
    pool = target.pool
    assert pool.draft is not None
    ranks = pool.draft_tensor_parallel_size or pool.tensor_parallel_size
    if ranks not in (1, pool.tensor_parallel_size):
        raise InvalidInput(
            f"--draft-tensor-parallel-size {ranks}: must be 1 or the target's {pool.tensor_parallel_size}"
        )
    spec = load_model(pool.draft, download=download)
    shared = {name: getattr(pool, name) for name in DRAFT_MODEL_SHARES}
    shared["tensor_parallel_size"] = ranks
    shared["max_model_len"] = min(target.max_model_len, spec.max_position_embeddings)
    return resolve(spec, Pool(**shared), profiles=profiles)


def _host_cpu(name: str, profiles: str | Path | None) -> HardwareProfile:
    cpu = load_profile(name, [profiles] if profiles else [])
    if cpu.platform != "cpu":
        raise InvalidInput(f"--host-cpu {name}: {cpu.name} is no CPU; `capacity gpus` lists profiles")
    return cpu


def _engine(pool: Pool, profile: HardwareProfile) -> EngineSpec:
    """The engine's release with its measured front end, and with what grammars cost where answers follow them."""
    engine = find_engine(pool.engine)
    if profile.adjustment is not None:
        there_s, back_s = profile.adjustment.latencies(engine.request_latency_s, engine.response_latency_s)
        engine = engine.model_copy(update={"request_latency_s": there_s, "response_latency_s": back_s})
    if pool.structured_output == "none":
        return engine
    return with_grammars(engine, compiled_each=pool.structured_output == "each")


def with_defaults(
    pool: Pool,
    model: ModelSpec,
    *,
    profile: HardwareProfile,
    engine: EngineSpec,
    scheme: QuantizationScheme | None = None,
    host_cpu: HardwareProfile | None = None,
) -> ResolvedPool:
    """The pool with what it leaves to the engine and the checkpoint filled in: the only place that does.

    `scheme`: how the weights are stored; None: as the checkpoint. Raises InvalidInput for limits that exclude each
    other.
    """
    scheme = scheme or model.checkpoint
    model = evicting(model, pool)
    max_model_len = longest_request(model, pool)
    chunked = pool.enable_chunked_prefill
    if chunked is None:  # tokens are dropped of whole prompts only
        chunked = engine.chunked_prefill and not keeps_whole_prompts(model)
    ranks = pool.data_parallel_size if model.is_moe and engine.data_parallel_divides_limits else 1
    defaults = engine.default_limits(profile.memory_engine_bytes, profile.architecture)
    max_num_seqs, max_num_batched_tokens = step_limits(
        pool,
        max_num_seqs=max(defaults.max_num_seqs // ranks, 1),
        token_budget=max(defaults.max_num_batched_tokens // ranks, 1),
        longest_prefill=1 if chunked else max_model_len,
    )
    caching = pool.enable_prefix_caching
    if caching is None:
        caching = engine.prefix_caching and pool.kv_eviction is None
    own, converted = model.checkpoint, list[str]()
    if own.quantized and scheme.name != own.name:  # no engine does that while loading
        converted.append(
            f"{model.name} is published in {own.name}: {scheme.name} means a copy converted beforehand"
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
        prefix_caching=caching and pool.use_cache,
        notes=(
            *engine.notes,
            *model.notes,
            *converted,
            *what_ifs(pool, engine),
            *eviction_notes(pool, engine.name),
            *drafting_notes(engine.name, pool.speculator),
        ),
        host_cpu=host_cpu,
    )
    resolved = _within_states(resolved)
    learnt = () if profile.adjustment is None else profile.adjustment.remarks(model.name, engine.label)
    remarks = (*resolved.step_setting.remarks, *offload_notes(resolved))
    return replace(resolved, notes=(*resolved.notes, *remarks, *learnt))


def _within_states(resolved: ResolvedPool) -> ResolvedPool:
    """The same with no more requests at once than its pool of recurrent states has places for."""
    try:
        states = states_of(resolved)
    except InvalidInput:  # which its memory says
        return resolved
    if states is None or states.requests >= resolved.max_num_seqs:
        return resolved
    most = max(states.requests, 1)
    note = (
        f"at most {most:,} requests run at once: {resolved.engine.name} keeps recurrent states apart from KV, here "
        f"{states.slots:,} in {states.used_bytes / GIB:.1f} GiB per GPU; a request takes {states.states_per_request}"
    )
    return replace(resolved, max_num_seqs=most, notes=(*resolved.notes, note))


def _longest_that_fits(model: ModelSpec, pool: Pool, profiles: str | Path | None) -> ResolvedPool:
    """`--max-model-len auto`: the model's own length, or the longest request that the KV cache holds."""
    whole = resolve(model, pool.model_copy(update={"max_model_len": None}), profiles=profiles)
    longest = whole.memory.max_context_tokens
    if whole.memory.fits or longest < 1:
        return whole
    note = f"--max-model-len auto: {longest} of the model's {whole.max_model_len} tokens"
    shorter = resolve(model, pool.model_copy(update={"max_model_len": longest}), profiles=profiles)
    return replace(shorter, notes=(*shorter.notes, note))
