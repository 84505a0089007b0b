"""Whether a model fits, and what is left for its KV cache: vLLM's own accounting, per GPU.

    requested = ceil(total x gpu_memory_utilization)
    KV cache  = requested - weights - activation peak - non-torch [- CUDA-graph estimate]
    blocks    = KV cache // bytes of one block, the fewest over all GPUs; one of them is the null block

`kv_capacity_tokens` is what the engine's log prints. Blocks are laid out by `kv_layout`, weights counted by
`weights`. Source: vLLM 0.33.0, v1/worker/gpu_worker.py, 2026-11; constants stand in
`capacity/deployment/engines/*.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment.engines import EngineSpec
from capacity.hardware import HardwareProfile
from capacity.model.feed_forward import DenseFeedForward, MoEFeedForward
from capacity.model.quantization import QuantizationScheme, scheme_for
from capacity.model.spec import ModelSpec
from capacity.pool.kv_layout import KvLayout, default_block_size, kv_layout
from capacity.pool.weights import pipeline_layers, weights_bytes_of_stage

GIB = 2**30
MIB = 2**20
HALF_BYTES = 2  # of an activation, 16 bit
MOE_CHUNK_TOKENS = (
    16 * 1024
)  # tokens that vLLM's fused experts take at a time: VLLM_FUSED_MOE_CHUNK_SIZE, envs.py


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of the fullest GPU, in bytes, and what its KV cache holds.

    usable = weights + activations + overhead + KV cache. `kv_capacity_blocks` counts the null block, as the
    engine's log does; `max_concurrency` is at `max_model_len`; `max_context_tokens` is the longest request that
    fits alone, at most the model's. `reason` says why it does not fit, with a way out.
    """

    total_bytes: int
    usable_bytes: int
    weights_bytes: int
    activations_bytes: int
    nontorch_bytes: int
    graph_bytes: int
    overhead_bytes: int
    kv_cache_bytes: int
    kv_bytes_per_token: int
    kv_window_bytes_per_token: int
    linear_state_bytes_per_request: int
    kv_block_tokens: int
    kv_block_bytes: int
    kv_groups: int
    kv_capacity_blocks: int
    kv_capacity_tokens: int
    max_context_tokens: int
    max_concurrency: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int  # ranks, each with a KV cache of its own: all figures are of one of them
    layout: KvLayout  # of the GPU with the fewest blocks
    fits: bool
    reason: str | None
    warnings: tuple[str, ...]

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def needed_bytes(self) -> int:
        """Of the fullest GPU, without any KV cache."""
        return self.weights_bytes + self.activations_bytes + self.overhead_bytes

    def require_fit(self) -> MemoryPlan:
        """This plan, or DoesNotFit with its reason."""
        if not self.fits:
            raise DoesNotFit(
                self.reason or "does not fit", needed_bytes=self.needed_bytes, usable_bytes=self.usable_bytes
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    """A memory question with every default filled in."""

    model: ModelSpec
    profile: HardwareProfile
    engine: EngineSpec
    scheme: QuantizationScheme
    kv_cache_dtype: str
    tp: int
    pp: int
    dp: int
    expert_parallel: bool
    max_model_len: int
    utilization: float
    utilization_is_default: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    enforce_eager: bool
    weights_bytes: int | None
    activations_bytes: int | None
    nontorch_bytes: int | None
    num_gpu_blocks_override: int | None
    kv_cache_memory_bytes: int | None

    @property
    def expert_dp(self) -> int:
        """Data-parallel ranks that share experts: none in a dense model."""
        return self.dp if self.model.is_moe else 1


def memory_plan(
    model: ModelSpec,
    profile: HardwareProfile,
    engine: EngineSpec,
    *,
    scheme: QuantizationScheme | None = None,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    enable_expert_parallel: bool = False,
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    block_size: int | None = None,
    enforce_eager: bool = False,
    num_gpu_blocks_override: int | None = None,
    kv_cache_memory_bytes: int | None = None,
    weights_bytes: int | None = None,
    activations_bytes: int | None = None,
    nontorch_bytes: int | None = None,
) -> MemoryPlan:
    """Memory of one engine: fits or not, why, and the KV cache that is left.

    None means the engine's default. `weights_bytes`, `activations_bytes` and `nontorch_bytes` (per GPU) replace
    the computed figures by those of a log. Of a mixture of experts, data-parallel ranks share the experts and repeat
    everything else; of a dense model they are replicas. Raises InvalidInput for parallelism that cannot be (TP that
    does not divide heads, PP above the layers) and for limits that the engine refuses; not fitting is not an error
    here (`fits`, `reason`; `require_fit` raises).
    """
    limits = engine.default_limits(profile.memory_engine_bytes, profile.architecture)
    stored = scheme if scheme is not None else model.checkpoint
    dtype = kv_cache_dtype if kv_cache_dtype != "auto" else (stored.kv_cache_dtype or "auto")
    length = max_model_len if max_model_len is not None else model.max_position_embeddings
    sequences = max_num_seqs
    if sequences is None:
        sequences = min(limits.max_num_seqs, max_num_batched_tokens or limits.max_num_seqs)
    setup = _Setup(
        model=model,
        profile=profile,
        engine=engine,
        scheme=stored,
        kv_cache_dtype=dtype,
        tp=tensor_parallel_size,
        pp=pipeline_parallel_size,
        dp=data_parallel_size,
        expert_parallel=enable_expert_parallel and model.is_moe,
        max_model_len=length,
        utilization=engine.gpu_memory_utilization
        if gpu_memory_utilization is None
        else gpu_memory_utilization,
        utilization_is_default=gpu_memory_utilization is None,
        max_num_seqs=sequences,
        max_num_batched_tokens=_token_budget(
            max_num_batched_tokens, limits.max_num_batched_tokens, sequences, length
        ),
        block_size=block_size or default_block_size(model, engine),
        enforce_eager=enforce_eager,
        weights_bytes=weights_bytes,
        activations_bytes=activations_bytes,
        nontorch_bytes=nontorch_bytes,
        num_gpu_blocks_override=num_gpu_blocks_override,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
    )
    _check(setup)
    return _plan(setup)


def smallest_tensor_parallel_size(
    model: ModelSpec, profile: HardwareProfile, engine: EngineSpec, **settings: Any
) -> int | None:
    """The least TP, within the scale-up domain or the node, at which the model fits; None where none does.

    `settings` are those of `memory_plan`, without `tensor_parallel_size`.
    """
    most = max(profile.scale_up.domain_gpus, profile.gpus_per_node)
    for size in tensor_parallel_sizes(model, most):
        if memory_plan(model, profile, engine, tensor_parallel_size=size, **settings).fits:
            return size
    return None


def tensor_parallel_sizes(model: ModelSpec, most: int) -> tuple[int, ...]:
    """The TP sizes up to `most` that divide the model's heads and widths."""
    return tuple(size for size in range(1, most + 1) if _indivisible(model, size) is None)


def _token_budget(asked: int | None, default: int, sequences: int, length: int) -> int:
    """vLLM caps its default at max_num_seqs x max_model_len, and keeps it at least max_num_seqs."""
    if asked is not None:
        return asked
    return max(min(default, sequences * length), sequences)


# checks


def _check(setup: _Setup) -> None:
    model, tp, pp = setup.model, setup.tp, setup.pp
    if tp < 1 or pp < 1 or setup.dp < 1:
        raise InvalidInput(
            f"parallel sizes are {tp} (tensor), {pp} (pipeline) and {setup.dp} (data); all must be at least 1"
        )
    problem = _indivisible(model, tp)
    if problem is not None:
        fitting = ", ".join(str(size) for size in tensor_parallel_sizes(model, max(tp, 8)))
        raise InvalidInput(
            f"--tensor-parallel-size {tp} does not divide {problem} of {model.name}; use {fitting}"
        )
    if pp > model.num_layers:
        raise InvalidInput(
            f"--pipeline-parallel-size {pp} exceeds the {model.num_layers} layers of {model.name}; "
            f"use at most {model.num_layers}"
        )
    if setup.max_model_len < 1 or setup.max_num_seqs < 1 or setup.block_size < 1:
        raise InvalidInput("max_model_len, max_num_seqs and block_size must be at least 1")
    if setup.max_model_len > model.max_position_embeddings:
        raise InvalidInput(
            f"--max-model-len {setup.max_model_len} exceeds the {model.max_position_embeddings} positions of "
            f"{model.name}; use at most {model.max_position_embeddings}"
        )
    if setup.max_num_batched_tokens < setup.max_num_seqs:
        raise InvalidInput(
            f"--max-num-batched-tokens {setup.max_num_batched_tokens} is less than --max-num-seqs "
            f"{setup.max_num_seqs}; raise the one or lower the other"
        )
    if not 0 < setup.utilization <= 1:
        raise InvalidInput(f"--gpu-memory-utilization {setup.utilization} is not in (0, 1]")


def _indivisible(model: ModelSpec, tp: int) -> str | None:
    """What `tp` does not divide, in words; None where it divides everything that an engine splits."""
    for group in model.layer_groups:
        mixer, feed_forward = group.mixer, group.feed_forward
        heads, kv_heads = mixer.num_heads, mixer.num_kv_heads
        if heads % tp:
            return f"the {heads} attention heads"
        if kv_heads % tp and tp % kv_heads:
            return f"the {kv_heads} KV heads"
        if isinstance(feed_forward, DenseFeedForward) and feed_forward.intermediate_size % tp:
            return f"the feed-forward width {feed_forward.intermediate_size}"
    return None


def _warnings(setup: _Setup) -> tuple[str, ...]:
    profile, tp = setup.profile, setup.tp
    found: list[str] = []
    if tp > profile.scale_up.domain_gpus:
        link = profile.link_for(tp)
        place = "node" if tp > profile.gpus_per_node else f"{profile.scale_up.kind} domain"
        found.append(
            f"tensor parallelism of {tp} leaves the {place}: its collectives cross {link.kind} at "
            f"{link.bytes_per_s / 1e9:.0f} GB/s per direction"
        )
    return tuple(found)


# activations, overhead


def activation_bytes(
    model: ModelSpec,
    engine: EngineSpec,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    tensor_parallel_size: int = 1,
    data_parallel_size: int = 1,
    expert_parallel: bool = False,
) -> float:
    """Peak of vLLM's profile run: sampling `max_num_seqs` rows, or the widest layer for all tokens, if larger.

    Sampling holds max_num_seqs x vocabulary x 38.2 bytes (logits at 32 bit, sorted copies, probabilities) beside
    the hidden states of the batch; within 0.6 % of seven logs of vLLM 0.11 (at 1024 sequences). The widest layer
    holds its gate and up projections and two hidden states; MoE layers one row for each token and expert chosen,
    the tokens of all data-parallel ranks together, up to `MOE_CHUNK_TOKENS` at a time.
    """
    hidden = model.hidden_size
    tokens = max_num_batched_tokens
    logits = max_num_seqs * model.vocab_size * engine.sampler_bytes_per_logit
    sampling = logits + tokens * hidden * HALF_BYTES * engine.activation_hidden_copies
    met = min(tokens * data_parallel_size, max(tokens, MOE_CHUNK_TOKENS))  # at the experts
    values = max(
        _layer_values(
            group.feed_forward,
            engine,
            hidden=hidden,
            tokens=tokens,
            met=met,
            tp=tensor_parallel_size,
            expert_ranks=1 if expert_parallel else tensor_parallel_size * data_parallel_size,
        )
        for group in model.layer_groups
    )
    return max(sampling, values * HALF_BYTES)


def _layer_values(
    feed_forward: DenseFeedForward | MoEFeedForward,
    engine: EngineSpec,
    *,
    hidden: int,
    tokens: int,
    met: int,
    tp: int,
    expert_ranks: int,
) -> float:
    """16-bit values that the widest moment of a layer keeps for `tokens` tokens, of which `met` are at the experts.

    Of a MoE layer those of vLLM's fused kernel: for each chosen expert the larger of gate+up and output, and the
    activated half. Source: vLLM fused_moe workspaces.
    """
    residual = engine.activation_layer_hidden_copies * hidden
    if isinstance(feed_forward, DenseFeedForward):
        return tokens * (residual + engine.activation_layer_ffn_copies * feed_forward.intermediate_size / tp)
    width = feed_forward.expert_intermediate_size / expert_ranks
    return tokens * residual + met * feed_forward.experts_per_token * (max(2 * width, hidden) + width)


def graph_bytes(
    engine: EngineSpec, architecture: str, max_num_seqs: int, *, enforce_eager: bool = False
) -> float:
    """CUDA graphs: a base and so much for each captured batch size; published figures scatter by a factor of 3."""
    limits = () if enforce_eager else engine.graph_batch_sizes(max_num_seqs, architecture)
    return engine.graph_base_bytes + len(limits) * engine.graph_bytes_per_size if limits else 0.0


# the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageMemory:
    weights: int
    usable: int
    activations: int
    nontorch: int
    graphs: int
    overhead: int
    kv_cache: int
    layout: KvLayout
    blocks: int


def _plan(setup: _Setup) -> MemoryPlan:
    stages = [_stage_memory(setup, stage, layers) for stage, layers in _distinct_stages(setup)]
    fullest = min(stages, key=lambda stage: stage.kv_cache)
    scarcest = min(stages, key=lambda stage: stage.blocks)
    layout = scarcest.layout
    blocks = scarcest.blocks if setup.num_gpu_blocks_override is None else setup.num_gpu_blocks_override
    needed = layout.blocks_of_request(setup.max_model_len)
    longest = layout.longest_request(max(blocks - 1, 0), setup.model.max_position_embeddings)
    fits = fullest.kv_cache >= 0 and needed <= blocks - 1
    plan = MemoryPlan(
        total_bytes=setup.profile.memory_engine_bytes,
        usable_bytes=fullest.usable,
        weights_bytes=fullest.weights,
        activations_bytes=fullest.activations,
        nontorch_bytes=fullest.nontorch,
        graph_bytes=fullest.graphs,
        overhead_bytes=fullest.overhead,
        kv_cache_bytes=fullest.kv_cache,
        kv_bytes_per_token=round(setup.model.kv_bytes_per_token(setup.kv_cache_dtype)),
        kv_window_bytes_per_token=round(setup.model.window_kv_bytes_per_token(setup.kv_cache_dtype)),
        linear_state_bytes_per_request=round(setup.model.state_bytes_per_sequence()),
        kv_block_tokens=layout.block_tokens,
        kv_block_bytes=layout.block_bytes,
        kv_groups=layout.groups,
        kv_capacity_blocks=blocks,
        kv_capacity_tokens=layout.capacity_tokens(blocks),
        max_context_tokens=longest,
        max_concurrency=blocks / needed if fits else 0.0,
        max_model_len=setup.max_model_len,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        gpu_memory_utilization=setup.utilization,
        kv_cache_dtype=setup.kv_cache_dtype,
        tensor_parallel_size=setup.tp,
        pipeline_parallel_size=setup.pp,
        data_parallel_size=setup.dp,
        layout=layout,
        fits=fits,
        reason=None,
        warnings=_warnings(setup),
    )
    return plan if fits else replace(plan, reason=_reason(setup, plan, needed * layout.block_bytes))


def _distinct_stages(setup: _Setup) -> list[tuple[int, range]]:
    """All pipeline stages; those in the middle that hold equal layers are not told apart by this module."""
    return list(enumerate(pipeline_layers(setup.model.num_layers, setup.pp)))


def _stage_memory(setup: _Setup, stage: int, layers: range) -> _StageMemory:
    engine = setup.engine
    weights, activations = _stage_weights(setup, stage), _stage_activations(setup, stage)
    graphs = round(
        graph_bytes(engine, setup.profile.architecture, setup.max_num_seqs, enforce_eager=setup.enforce_eager)
    )
    nontorch = setup.nontorch_bytes
    if nontorch is None:
        nontorch = (
            engine.nontorch_bytes_tp1
            if setup.tp * setup.pp * setup.expert_dp == 1
            else engine.nontorch_bytes_tpn
        )
    overhead = nontorch + (graphs if engine.graphs_in_budget else 0)
    if engine.memory_rule == "sglang_static":
        activations, overhead = _sglang_reserve(setup), nontorch
    usable = _usable(setup, weights + activations + overhead)
    layout = _stage_layout(setup, layers)
    kv_cache = usable - weights - activations - overhead
    if setup.kv_cache_memory_bytes is not None and kv_cache < setup.kv_cache_memory_bytes:
        kv_cache -= setup.kv_cache_memory_bytes  # what is too little of what was asked for
    return _StageMemory(
        weights=weights,
        usable=usable,
        activations=activations,
        nontorch=nontorch,
        graphs=graphs,
        overhead=overhead,
        kv_cache=kv_cache,
        layout=layout,
        blocks=max(kv_cache, 0) // layout.block_bytes,
    )


def _stage_weights(setup: _Setup, stage: int) -> int:
    if setup.weights_bytes is not None:
        return setup.weights_bytes
    weights = weights_bytes_of_stage(
        setup.model,
        setup.engine,
        setup.scheme,
        stage=stage,
        tensor_parallel_size=setup.tp,
        pipeline_parallel_size=setup.pp,
        data_parallel_size=setup.expert_dp,
        expert_parallel=setup.expert_parallel,
    )
    return round(weights)


def _stage_activations(setup: _Setup, stage: int) -> int:
    """Only the last stage samples."""
    if setup.activations_bytes is not None:
        return setup.activations_bytes
    activations = activation_bytes(
        setup.model,
        setup.engine,
        max_num_seqs=setup.max_num_seqs if stage == setup.pp - 1 else 0,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        tensor_parallel_size=setup.tp,
        data_parallel_size=setup.expert_dp,
        expert_parallel=setup.expert_parallel,
    )
    return round(activations)


def _stage_layout(setup: _Setup, layers: range) -> KvLayout:
    return kv_layout(
        setup.model,
        setup.engine,
        kv_cache_dtype=setup.kv_cache_dtype,
        layers=layers,
        tensor_parallel_size=setup.tp,
        block_size=setup.block_size,
        max_model_len=setup.max_model_len,
        max_num_batched_tokens=setup.max_num_batched_tokens,
    )


def _usable(setup: _Setup, taken: int) -> int:
    """What weights, activations, overhead and KV may take together, by the engine's rule."""
    total = setup.profile.memory_engine_bytes
    if setup.kv_cache_memory_bytes is not None:
        return min(taken + setup.kv_cache_memory_bytes, total)
    match setup.engine.memory_rule:
        case "fraction_of_total":
            return math.ceil(total * setup.utilization)
        case "fraction_of_free":
            free = total - taken
            return taken + math.floor(free * setup.utilization) if free > 0 else total
        case "sglang_static":
            return total


def _sglang_reserve(setup: _Setup) -> int:
    """What SGLang leaves to activations and graphs: all but the static fraction."""
    fraction = setup.utilization
    if setup.utilization_is_default:
        chunk = setup.max_num_batched_tokens
        fraction = sglang_static_fraction(
            setup.profile, setup.engine, setup.tp, setup.pp, chunk, attention_ranks=setup.expert_dp
        )
    total = setup.profile.memory_engine_bytes
    return total - math.floor(total * fraction)


def sglang_static_fraction(
    profile: HardwareProfile,
    engine: EngineSpec,
    tp: int,
    pp: int,
    chunk_tokens: int,
    *,
    attention_ranks: int = 1,
) -> float:
    """SGLang's default --mem-fraction-static: the share of memory for weights and KV.

    reserved MiB = 512 + 1.5 max(chunk, 2048) + tp·pp/8·1024 + 2·largest graph batch, at least 10 GiB on GPUs of
    more than 60 GiB. With DP attention, chunk and tp are those of all ranks, and 3 MiB (above batches of 300: 4.5) a
    rank and row of the largest graph come on top. Source: SGLang 0.5.23 srt/arg_groups/memory_hook.py, 2026-11.
    """
    total_mib = profile.memory_engine_bytes / MIB
    limits = engine.default_limits(profile.memory_engine_bytes, profile.architecture)
    graph_batch = limits.max_graph_batch or 0
    chunk_tokens, tp = chunk_tokens * attention_ranks, tp * attention_ranks
    reserved_mib = 512 + 1.5 * max(chunk_tokens, 2048) + tp * pp / 8 * 1024 + 2 * graph_batch
    if attention_ranks > 1:
        reserved_mib += graph_batch * attention_ranks * (4.5 if graph_batch > 300 else 3.0)
    if total_mib > 60 * 1024:
        reserved_mib = max(reserved_mib, 10 * 1024)
    return round(max(total_mib - reserved_mib, 0) / total_mib, 3)


# refusals


def _reason(setup: _Setup, plan: MemoryPlan, request_bytes: int) -> str:
    """Thing, need, limit, remedy in one line."""
    model = setup.model
    what = f"{model.name} ({setup.scheme.name})"
    gpu = setup.profile.name
    if plan.kv_cache_bytes < 0:
        text = (
            f"{what} needs {_gb(plan.weights_bytes)} of weights and "
            f"{_gb(plan.activations_bytes + plan.overhead_bytes)} of activations and overhead per GPU; "
            f"{gpu} has {_gb(plan.usable_bytes)} usable"
        )
        if setup.kv_cache_memory_bytes is not None:
            text += f", and --kv-cache-memory-bytes asks for {_gb(setup.kv_cache_memory_bytes)}"
        return f"{text}: {_gb(-plan.kv_cache_bytes)} too little. {_remedy(setup)}"
    if setup.num_gpu_blocks_override is not None:
        blocks = f"--num-gpu-blocks-override {plan.kv_capacity_blocks}"
        needed = plan.layout.blocks_of_request(plan.max_model_len)
        shorter = f", or use --max-model-len {plan.max_context_tokens}" if plan.max_context_tokens else ""
        return (
            f"{blocks} holds no request of {plan.max_model_len:,} tokens: it needs {needed:,} blocks, and one is kept "
            f"free. Raise it{shorter}."
        )
    text = (
        f"{what} leaves {_gb(plan.kv_cache_bytes)} per GPU for the KV cache on {gpu}; "
        f"one request of {plan.max_model_len:,} tokens needs {_gb(request_bytes)}"
    )
    remedies = []
    if plan.max_context_tokens >= 1:
        remedies.append(f"--max-model-len {plan.max_context_tokens}")
    return f"{text}. {_remedy(setup, remedies)}"


def _remedy(setup: _Setup, known: Iterable[str] = ()) -> str:
    """Ways out that were tried and fit, the cheapest first."""
    ways = list(known)
    most = max(setup.profile.scale_up.domain_gpus, setup.profile.gpus_per_node)
    larger = (size for size in tensor_parallel_sizes(setup.model, most) if size > setup.tp)
    size = next((size for size in larger if _fits(replace(setup, tp=size, weights_bytes=None))), None)
    if size is not None:
        ways.append(f"--tensor-parallel-size {size}")
    narrower = _narrower(setup)
    if narrower is not None:
        ways.append(narrower)
    if not ways:
        return f"No tensor parallelism up to {most} on this GPU fits; use GPUs with more memory or a smaller model."
    return f"Use {', or '.join(ways)}."


def _narrower(setup: _Setup) -> str | None:
    """A narrower weight format that would fit here; only for models that are not quantized."""
    if setup.scheme.quantized:
        return None
    for name in ("fp8", "int4"):
        try:
            scheme = scheme_for(setup.model, name)
        except InvalidInput:
            continue
        if _fits(replace(setup, scheme=scheme, weights_bytes=None)):
            return f"--quantization {name}"
    return None


def _fits(setup: _Setup) -> bool:
    for stage, layers in _distinct_stages(setup):
        memory = _stage_memory(setup, stage, layers)
        if memory.layout.blocks_of_request(setup.max_model_len) > memory.blocks - 1:
            return False
    return True


def _gb(value: float) -> str:
    return f"{value / 1e9:.1f} GB"
