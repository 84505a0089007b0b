"""Serving techniques in the usual order of adding them, each with the settings that turn it off and on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from capacity.answers.engine_setup import policy_name
from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment.drafts import DRAFT_FIELDS
from capacity.model import Attention
from capacity.planning.variations.changes import NO_DRAFTS, Fields, best_drafts, needed_context
from capacity.planning.variations.prefix_hit_rate import ideal_hits
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Workload

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
# techniques that reduce memory
SAVE_MEMORY = ("flash-attention", "bf16", "quantized-weights", "tensor-parallelism")
BATCHING_NEEDS = ("kv-cache", "static-batching")


@dataclass(frozen=True, slots=True)
class TechniqueStep:
    """Serving technique: settings without it (`off`) and with it (`on`), and the techniques it requires (`needs`).

    `continuous`: the technique turns on continuous batching. `drafting`: function that returns the settings of a
    draft method for a pool, its batch size and its context length. `refused`: why the technique does not apply to
    this deployment.
    """

    name: str
    title: str
    off: Fields = field(default_factory=dict)
    on: Fields = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    continuous: bool = False
    drafting: Callable[[ResolvedPool, int, int], Fields] | None = None
    refused: str | None = None


def techniques_by_name(resolved: ResolvedPool, workload: Workload) -> dict[str, TechniqueStep]:
    """Return all techniques for this deployment and traffic, by name; `refused` is set for those that do not apply."""
    ranks = resolved.pool.tensor_parallel_size
    found = (
        *_kernels(resolved),
        *_batching(resolved),
        *_kv_cache(resolved, workload),
        *_formats(resolved),
        _drafts(resolved),
        TechniqueStep(
            "tensor-parallelism",
            "tensor parallelism" + (f" over {ranks} GPUs" if ranks > 1 else ""),
            off={"tensor_parallel_size": 1},
            on={"tensor_parallel_size": ranks},
            refused="the deployment has one GPU; -tp 2 adds this technique" if ranks == 1 else None,
        ),
    )
    return {step.name: step for step in found}


def ordered_techniques(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the techniques to add, in order. Raises UnknownName, and InvalidInput for duplicates or no name."""
    if names is None:
        return ORDER
    for name in names:
        if name not in ORDER:
            raise UnknownName("technique", name, ORDER)
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise InvalidInput(f"--order contains {twice[0]} twice: name each technique once")
    if not names:
        raise InvalidInput(f"--order is empty: name at least one of {', '.join(ORDER)}")
    return tuple(names)


def naive_fields(
    resolved: ResolvedPool, techniques: Mapping[str, TechniqueStep], workload: Workload
) -> dict[str, object]:
    """Return the settings of the deployment with every serving technique (KV cache, batching, quantization ...) turned
    off; an unset context length is set to what the traffic needs."""
    fields: dict[str, object] = dict(resolved.pool.model_dump())
    if resolved.pool.max_model_len is None:
        fields["max_model_len"] = needed_context(resolved, workload)
    for technique in techniques.values():
        fields |= technique.off
    return fields


def _first_reason(*reasons: tuple[bool, str]) -> str | None:
    return next((reason for holds, reason in reasons if holds), None)


def _kernels(resolved: ResolvedPool) -> Iterator[TechniqueStep]:
    """Yield the techniques of arithmetic and kernels; the deployment without them uses FP32 and no KV cache."""
    pool, model, stored = resolved.pool, resolved.model, resolved.model.checkpoint
    other = next((g.mixer.kind for g in model.layer_groups if not isinstance(g.mixer, Attention)), None)
    yield TechniqueStep(
        "bf16",
        f"{resolved.profile.compute_type_16_bit.upper()} instead of FP32",
        off={} if stored.quantized else {"dtype": "float32"},
        on={"dtype": pool.dtype},
        refused=_first_reason(
            (stored.quantized, f"the checkpoint is stored in {stored.name}, not in FP32"),
            (model.dtype == "fp32", "turned off by --dtype float32"),
        ),
    )
    yield TechniqueStep("kv-cache", "KV cache", off={"use_cache": False}, on={"use_cache": True})
    yield TechniqueStep(
        "flash-attention",
        "FlashAttention",
        off={} if other is not None else {"attn_implementation": "eager"},
        on={"attn_implementation": pool.attn_implementation},
        refused=_first_reason(
            (other is not None, f"{model.name} has {other} layers, for which no other kernel is modelled"),
            (pool.attn_implementation == "eager", "turned off by --attn-implementation eager"),
        ),
    )
    yield TechniqueStep(
        "cuda-graphs",
        "CUDA graphs",
        off={} if "enforce_eager" in resolved.engine.lacks else {"enforce_eager": True},
        on={"enforce_eager": False},
        needs=("kv-cache",),
        refused=_first_reason(
            (pool.enforce_eager, "turned off by --enforce-eager"),
            (not resolved.engine.cuda_graphs, f"not supported by {resolved.engine.label}"),
        ),
    )


def _batching(resolved: ResolvedPool) -> Iterator[TechniqueStep]:
    one, label = resolved.max_num_seqs == 1, resolved.engine.label
    yield TechniqueStep(
        "static-batching",
        "static batching",
        off={"max_num_seqs": 1},
        on={"max_num_seqs": resolved.pool.max_num_seqs},
        refused=_first_reason((one, "turned off by --max-num-seqs 1")),
    )
    yield TechniqueStep(
        "continuous-batching",
        "continuous batching",
        needs=BATCHING_NEEDS,
        continuous=True,
        refused=_first_reason((policy_name(resolved) == "static", f"{label} uses static batching")),
    )


def _kv_cache(resolved: ResolvedPool, workload: Workload) -> Iterator[TechniqueStep]:
    """Yield the techniques by which requests share the KV cache and the token budget of a step."""
    pool, budget = resolved.pool, "max_num_batched_tokens"
    in_turn = (*BATCHING_NEEDS, "continuous-batching")
    yield TechniqueStep(
        "paged-kv",
        "paged KV cache",
        off={"kv_layout": "contiguous"},
        on={"kv_layout": "paged"},
        needs=in_turn,
        refused=_first_reason((pool.kv_layout == "contiguous", "turned off by --kv-layout contiguous")),
    )
    whole = pool.enable_chunked_prefill is False
    yield TechniqueStep(
        "chunked-prefill",
        "chunked prefill",
        off={"enable_chunked_prefill": False, budget: None},
        on={"enable_chunked_prefill": True, budget: pool.max_num_batched_tokens},
        needs=in_turn,
        refused=_first_reason((whole, "turned off by --no-enable-chunked-prefill")),
    )
    yield TechniqueStep(
        "prefix-caching",
        "prefix caching",
        off={"enable_prefix_caching": False},
        on={"enable_prefix_caching": True},
        needs=(*in_turn, "paged-kv"),
        refused=_first_reason(
            (pool.enable_prefix_caching is False, "turned off by --no-enable-prefix-caching"),
            (not ideal_hits(workload).any(), "no prompt of this traffic shares a prefix with an earlier one"),
        ),
    )


def _formats(resolved: ResolvedPool) -> Iterator[TechniqueStep]:
    """Yield the techniques that store weights and KV cache in fewer bits."""
    pool, stored = resolved.pool, resolved.model.checkpoint
    native = "fp8" in resolved.profile.dense_flops_per_s
    weights = pool.quantization or ("fp8" if native else "int4")
    without = "" if native or pool.quantization else f" ({resolved.profile.name} has no FP8 tensor cores)"
    yield TechniqueStep(
        "quantized-weights",
        f"weights in {weights}{without}",
        off={"quantization": None},
        on={"quantization": weights},
        refused=_first_reason((stored.quantized, f"the checkpoint is already stored in {stored.name}")),
    )
    is_default, stored_kv = pool.kv_cache_dtype == "auto", stored.kv_cache_dtype
    chosen = "fp8" if is_default else pool.kv_cache_dtype
    yield TechniqueStep(
        "fp8-kv",
        f"KV cache in {chosen}",
        off={"kv_cache_dtype": "auto"},
        on={"kv_cache_dtype": chosen},
        needs=("kv-cache",),
        refused=_first_reason(
            (is_default and stored_kv not in (None, "auto"), f"set by the checkpoint: {stored_kv}")
        ),
    )


def _drafts(resolved: ResolvedPool) -> TechniqueStep:
    pool = resolved.pool
    name = pool.speculator or ("mtp" if resolved.model.mtp is not None else "eagle3")

    def choose(where: ResolvedPool, in_flight: int, context: int) -> Fields:
        if pool.speculator is not None:
            return {field: getattr(pool, field) for field in DRAFT_FIELDS}
        return best_drafts(where, name, in_flight, context)

    return TechniqueStep(
        "speculation",
        f"speculative decoding ({name})",
        off=NO_DRAFTS,
        needs=(*BATCHING_NEEDS, "continuous-batching"),
        drafting=choose,
    )
