"""The techniques of serving in the order that they are taught, each as what a deployment is without it and with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from capacity.answers.engine_setup import policy_name
from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Pool
from capacity.deployment.drafts import DRAFT_FIELDS
from capacity.model import Attention
from capacity.planning.space import rounded_context
from capacity.planning.variations.prefix_hit_rate import ideal_hits
from capacity.pool.drafting import Speculation, find_speculator
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Workload

Fields = Mapping[str, object]
ORDER = (
    "bf16",
    "kv-cache",
    "flash-attention",
    "cuda-graphs",
    "static-batching",
    "continuous-batching",
    "paged-kv",
    "chunked-prefill",
    "prefix-caching",
    "quantized-weights",
    "fp8-kv",
    "speculation",
    "tensor-parallelism",
)
SAVE_MEMORY = ("flash-attention", "bf16", "quantized-weights", "tensor-parallelism")  # what makes a model fit
BATCHED = ("kv-cache", "static-batching")


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniqueStep:
    """A technique: fields of the pool without it (`off`) and with it (`on`), and what it rests upon.

    `continuous`: it changes how requests are batched. `drafting`: `on` is chosen for the batch and context that it
    meets. `refused`: why it cannot be taken here.
    """

    name: str
    title: str
    off: Fields = field(default_factory=dict)
    on: Fields = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    continuous: bool = False
    drafting: Callable[[ResolvedPool, int, int], Fields] | None = None
    refused: str | None = None


def rungs_of(resolved: ResolvedPool, workload: Workload) -> dict[str, TechniqueStep]:
    """All techniques by name, for this deployment on this traffic; those that it cannot take say why."""
    found = (
        _sixteen_bit(resolved),
        TechniqueStep(name="kv-cache", title="KV cache", off={"use_cache": False}, on={"use_cache": True}),
        _flash_attention(resolved),
        _graphs(resolved),
        TechniqueStep(
            name="static-batching",
            title="static batching",
            off={"max_num_seqs": 1},
            on={"max_num_seqs": resolved.pool.max_num_seqs},
            refused="a batch of one was asked for: --max-num-seqs 1" if resolved.max_num_seqs == 1 else None,
        ),
        _continuous(resolved),
        _paged(resolved),
        _chunked(resolved),
        _prefix_caching(resolved, workload),
        _weights(resolved),
        _kv_format(resolved),
        _drafts(resolved),
        _tensor_parallelism(resolved),
    )
    return {rung.name: rung for rung in found}


def in_order(names: Sequence[str] | None) -> tuple[str, ...]:
    """The techniques that are asked for, each once. Raises UnknownName, and InvalidInput for one that comes twice."""
    if names is None:
        return ORDER
    for name in names:
        if name not in ORDER:
            raise UnknownName("technique", name, ORDER)
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise InvalidInput(f"--order has {twice[0]} twice: name each technique once")
    if not names:
        raise InvalidInput(f"--order is empty: name some of {', '.join(ORDER)}")
    return tuple(names)


def naive_fields(
    resolved: ResolvedPool, rungs: Mapping[str, TechniqueStep], workload: Workload
) -> dict[str, object]:
    """The pool without any of them; contexts as long as this traffic needs where the pool does not say."""
    fields: dict[str, object] = dict(resolved.pool.model_dump())
    if resolved.pool.max_model_len is None:
        longest = int((workload.prompt_tokens + workload.output_tokens).max())
        fields["max_model_len"] = min(rounded_context(longest), resolved.max_model_len)
    for rung in rungs.values():
        fields |= rung.off
    return fields


def _sixteen_bit(resolved: ResolvedPool) -> TechniqueStep:
    name, refused = resolved.profile.sixteen_bit.upper(), None
    stored = resolved.model.checkpoint
    if stored.quantized:
        refused = f"the checkpoint is stored in {stored.name}: no FP32 to come from"
    elif resolved.model.dtype == "fp32":
        refused = "FP32 was asked for: --dtype float32"
    return TechniqueStep(
        name="bf16",
        title=f"{name} in place of FP32",
        off={} if stored.quantized else {"dtype": "float32"},
        on={"dtype": resolved.pool.dtype},
        refused=refused,
    )


def _flash_attention(resolved: ResolvedPool) -> TechniqueStep:
    other = next(
        (g.mixer.kind for g in resolved.model.layer_groups if not isinstance(g.mixer, Attention)), None
    )
    asked, refused = resolved.pool.attn_implementation, None
    if other is not None:
        refused = f"{resolved.model.name} has {other} layers: no kernel of theirs without it is known here"
    elif asked == "eager":
        refused = "it was turned off: --attn-implementation eager"
    return TechniqueStep(
        name="flash-attention",
        title="FlashAttention",
        off={} if other is not None else {"attn_implementation": "eager"},
        on={"attn_implementation": asked},
        refused=refused,
    )


def _graphs(resolved: ResolvedPool) -> TechniqueStep:
    refused = None
    if resolved.pool.enforce_eager:
        refused = "they were turned off: --enforce-eager"
    elif not resolved.engine.cuda_graphs:
        refused = f"{resolved.engine.label} captures none"
    return TechniqueStep(
        name="cuda-graphs",
        title="CUDA graphs",
        off={} if "enforce_eager" in resolved.engine.lacks else {"enforce_eager": True},
        on={"enforce_eager": False},
        needs=("kv-cache",),
        refused=refused,
    )


def _continuous(resolved: ResolvedPool) -> TechniqueStep:
    refused = f"{resolved.engine.label} batches statically" if policy_name(resolved) == "static" else None
    return TechniqueStep(
        name="continuous-batching",
        title="continuous batching",
        needs=BATCHED,
        continuous=True,
        refused=refused,
    )


def _paged(resolved: ResolvedPool) -> TechniqueStep:
    kept = resolved.pool.kv_layout == "contiguous"
    return TechniqueStep(
        name="paged-kv",
        title="paged KV cache",
        off={"kv_layout": "contiguous"},
        on={"kv_layout": "paged"},
        needs=(*BATCHED, "continuous-batching"),
        refused="it was turned off: --kv-layout contiguous" if kept else None,
    )


def _chunked(resolved: ResolvedPool) -> TechniqueStep:
    pool, refused = resolved.pool, None
    if pool.enable_chunked_prefill is False:
        refused = "it was turned off: --no-enable-chunked-prefill"
    return TechniqueStep(
        name="chunked-prefill",
        title="chunked prefill",
        off={"enable_chunked_prefill": False, "max_num_batched_tokens": None},
        on={"enable_chunked_prefill": True, "max_num_batched_tokens": pool.max_num_batched_tokens},
        needs=(*BATCHED, "continuous-batching"),
        refused=refused,
    )


def _prefix_caching(resolved: ResolvedPool, workload: Workload) -> TechniqueStep:
    refused = None
    if resolved.pool.enable_prefix_caching is False:
        refused = "it was turned off: --no-enable-prefix-caching"
    elif workload.content is None or not ideal_hits(workload).any():
        refused = "no prompt of this traffic begins as an earlier one did"
    return TechniqueStep(
        name="prefix-caching",
        title="prefix caching",
        off={"enable_prefix_caching": False},
        on={"enable_prefix_caching": True},
        needs=(*BATCHED, "continuous-batching", "paged-kv"),
        refused=refused,
    )


def _weights(resolved: ResolvedPool) -> TechniqueStep:
    asked, stored = resolved.pool.quantization, resolved.model.checkpoint
    native = "fp8" in resolved.profile.dense_flops_per_s
    chosen = asked or ("fp8" if native else "int4")
    without = "" if native or asked else f" ({resolved.profile.name} has no FP8 tensor cores)"
    return TechniqueStep(
        name="quantized-weights",
        title=f"weights in {chosen}{without}",
        off={"quantization": None},
        on={"quantization": chosen},
        refused=f"they are: the checkpoint is stored in {stored.name}" if stored.quantized else None,
    )


def _kv_format(resolved: ResolvedPool) -> TechniqueStep:
    asked = resolved.pool.kv_cache_dtype
    stored = resolved.model.checkpoint.kv_cache_dtype
    chosen = "fp8" if asked == "auto" else asked
    return TechniqueStep(
        name="fp8-kv",
        title=f"KV cache in {chosen}",
        off={"kv_cache_dtype": "auto"},
        on={"kv_cache_dtype": chosen},
        needs=("kv-cache",),
        refused=f"it is: the checkpoint says {stored}"
        if stored not in (None, "auto") and asked == "auto"
        else None,
    )


def _drafts(resolved: ResolvedPool) -> TechniqueStep:
    pool = resolved.pool
    none = {name: Pool.model_fields[name].default for name in DRAFT_FIELDS}
    name = pool.speculator or ("mtp" if resolved.model.mtp is not None else "eagle3")

    def best(where: ResolvedPool, in_flight: int, context: int) -> Fields:
        if pool.speculator is not None:
            return {field: getattr(pool, field) for field in DRAFT_FIELDS}
        drafts = (
            Speculation(where, find_speculator(name, where.model))
            .best(max(in_flight, 1), max(context, 1))
            .draft_tokens
        )
        return {"speculator": name, "num_speculative_tokens": max(drafts, 1)}

    return TechniqueStep(
        name="speculation",
        title=f"speculative decoding ({name})",
        off=none,
        needs=(*BATCHED, "continuous-batching"),
        drafting=best,
    )


def _tensor_parallelism(resolved: ResolvedPool) -> TechniqueStep:
    ranks = resolved.pool.tensor_parallel_size
    return TechniqueStep(
        name="tensor-parallelism",
        title="tensor parallelism" + (f" over {ranks} GPUs" if ranks > 1 else ""),
        off={"tensor_parallel_size": 1},
        on={"tensor_parallel_size": ranks},
        refused="one GPU was asked for: -tp 2 adds the step" if ranks == 1 else None,
    )
