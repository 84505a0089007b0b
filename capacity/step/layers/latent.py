"""Multi-head latent attention (DeepSeek's MLA), and the indexer of its sparse form."""

from dataclasses import dataclass, replace
from typing import Literal

from capacity.hardware.coefficients import AttentionCoefficients, Fit
from capacity.model.layers import LatentAttention, LayerGroup, SparseIndexer
from capacity.step import StepShape
from capacity.step.collectives import Transfer
from capacity.step.layers.builder import NO_WORK, Builder, MixerOperators
from capacity.step.layers.grouped import shard
from capacity.step.operators import ACTIVATION_BYTES, Attention, Gemm, Operator
from capacity.step.row_counts import expanded_tokens

_Product = tuple[str, float, float, tuple[str, ...]]  # name, inputs, outputs and weights of a GEMM
# Kernels in addition to products, scores and top-k: key norm, rope, two copies back, two Hadamard transforms,
# quantization of both, cache write, head gates (SGLang 0.5.9 nsa_indexer.py, decode). Kernels of the keys run in
# parallel with those of the queries.
KERNELS_OF_INDEXER = 8.0
KERNELS_OF_MLA = 2.0  # norms of the two latents, joining of rope and nope parts
_INDEXER = AttentionCoefficients(
    compute_fraction=0.35,
    bandwidth_fraction=0.6,
    sharpness=1.0,
    fixed_s=15e-6,
    fit=Fit(
        basis="assumed",
        source="index logits and top-k, two kernels; no measurements available",
        date="2026-11-21",
    ),
)


# Sparse prefill gathers a separate top-k of latents for every query, so it runs absorbed, on the decode kernels, where
# each new token is a query (SGLang 0.5.9 nsa_backend.py `_forward_trtllm`, FlashMLA's sparse prefill). Prompts of at
# most top-k tokens run dense and expanded (`use_mha` there). FlashMLA pads the heads of a rank to 64 on Hopper and
# reaches 640 of 989 TFLOP/s (its README, 2025-09); TensorRT-LLM's kernels on Blackwell do not pad.
PADDED_HEADS = {"hopper": 64}
SPARSE_COMPUTE_FRACTION = 0.65

# With an FP8 cache and fewer than 32 heads per rank, vLLM runs new tokens on the decode kernel
# (MIN_HEADS_FOR_BF16_PREFILL, `_forward_fp8_kv_mixed_batch` of v1/attention/backends/mla/flashmla_sparse.py, the same
# in 0.13, 0.19 and 0.27.1), which reaches 410 of 989 TFLOP/s (FlashMLA's README, 2025-09). Both kernels multiply a
# tile of 64 heads with every slot of the top-k, including masked empty slots of a short context (index -1).
HEADS_OF_PREFILL_KERNEL = 32
SPARSE_DECODE_COMPUTE_FRACTION = 0.41


def operators(mixer: LatentAttention, group: LayerGroup, build: Builder) -> MixerOperators:
    """Build MLA: prefill expands the latents of its context to heads; decode absorbs the expansion into the query."""
    heads, hidden = shard(mixer.num_heads, build.setting.tensor_parallel_size), build.model.hidden_size
    latent, rope, value = mixer.kv_lora_rank, mixer.qk_rope_head_dim, mixer.v_head_dim
    indexer = mixer.indexer
    products: list[Operator] = [
        *_query_products(mixer, group, build, heads),
        *build.projections(
            group, "attention", "self_attn", ("attention output", heads * value, hidden, ("o_proj",))
        ),
        build.elementwise(
            group,
            rope_values=heads * rope + rope + latent,
            cache_bytes=mixer.kv_bytes_per_token(build.kv_cache),
            kernels=KERNELS_OF_MLA,
        ),
        *(_indexer_products(mixer, indexer, group, build) if indexer and not indexer.shared else ()),
    ]
    expansion = build.gemm(  # keys and values: in decode two kernels, before and after attention
        "kv_b",
        "attention",
        k=latent,
        n=heads * (mixer.qk_nope_head_dim + value) / 2,
        parts=("self_attn.kv_b_proj",),
        group=group,
        repeats=2,
        rows=expanded_tokens,
    )
    return MixerOperators(products=products, attention=[*expansion, *_attention(mixer, group, build, heads)])


def _attention(
    mixer: LatentAttention, group: LayerGroup, build: Builder, heads: float
) -> list[Attention | Transfer]:
    """Build prefill attention over expanded heads, decode attention over the latents, and the sparse indexer."""
    expanded, absorbed = mixer.qk_head_dim + mixer.v_head_dim, 2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim
    top_k = mixer.indexer.top_k if mixer.indexer else None
    shared = build.setting.decode_context_parallel_size
    prefill = PrefillWork(
        flops_per_pair=2.0 * heads * expanded,
        context_bytes=heads * expanded * ACTIVATION_BYTES,
        row_bytes=heads * expanded * ACTIVATION_BYTES,
        top_k=top_k,
        short_dense=_short_prompts_dense(build),
    )
    engine, architecture = build.setting.engine, build.setting.profile.architecture
    fills = top_k is not None and engine is not None and architecture in engine.sparse_kernels_fill_top_k
    decode = DecodeWork(
        flops_per_pair=2.0 * heads * absorbed * (_head_padding(heads, build) if fills else 1.0),
        context_bytes=mixer.kv_bytes_per_token(build.kv_cache) / shared,
        row_bytes=heads * absorbed * ACTIVATION_BYTES * shared,
        top_k=top_k,
        fills=fills,
    )
    latent, rope = mixer.kv_lora_rank, mixer.qk_rope_head_dim
    exchange = build.context_exchange(
        group.num_layers, query_values=heads * (latent + rope), output_values=heads * latent
    )
    decodes = build.attention("attention decode", "mla_decode", decode, count=group.num_layers)
    attention: list[Attention | Transfer] = [
        build.attention("attention prefill", "mla_prefill", prefill, count=group.num_layers),
        _limit_compute_fraction(SPARSE_DECODE_COMPUTE_FRACTION, decodes) if fills else decodes,
        *exchange,
    ]
    if mixer.indexer is None:
        _note_backend(build)
        return attention
    attention.append(sparse_prefill(decode, heads, group, build))
    return attention if mixer.indexer.shared else [*attention, indexer_operator(mixer.indexer, group, build)]


def _note_backend(build: Builder) -> None:
    """Add a note if the engine reads FP8 latents fast only with an attention backend that is not its default."""
    engine, architecture = build.setting.engine, build.setting.profile.architecture
    backend = None if engine is None else engine.fp8_latent_backend.get(architecture)
    if engine is not None and backend is not None and build.kv_cache.name.startswith("fp8"):
        build.notes.append(
            f"times of FP8 latent attention assume --attention-backend {backend}, because {engine.name}'s default "
            f"on {architecture} is slower than 16-bit KV: it converts the whole KV pool in every step"
        )


def sparse_prefill(decode: "DecodeWork", heads: float, group: LayerGroup, build: Builder) -> Attention:
    """Build sparse attention for prompts longer than `top_k`: each token reads its own `top_k` context tokens."""
    assert decode.top_k is not None
    padding = 1.0 if decode.fills else _head_padding(heads, build)
    work = SparsePrefillWork(
        flops_per_pair=decode.flops_per_pair * padding,
        context_bytes=decode.context_bytes,
        row_bytes=decode.row_bytes,
        top_k=decode.top_k,
        fills=decode.fills,
        short_dense=_short_prompts_dense(build),
    )
    operator = build.attention("attention prefill (sparse)", "mla_decode", work, count=group.num_layers)
    by_decode = decode.fills and heads < HEADS_OF_PREFILL_KERNEL
    return _limit_compute_fraction(
        SPARSE_DECODE_COMPUTE_FRACTION if by_decode else SPARSE_COMPUTE_FRACTION, operator
    )


def _limit_compute_fraction(compute_fraction: float, operator: Attention) -> Attention:
    """Return the operator with its fraction of the peak FLOP/s limited to `compute_fraction`."""
    fraction = min(operator.constants.compute_fraction, compute_fraction)
    return replace(operator, constants=operator.constants.model_copy(update={"compute_fraction": fraction}))


def _head_padding(heads: float, build: Builder) -> float:
    return max(1.0, PADDED_HEADS.get(build.setting.profile.architecture, 0) / heads)


def _short_prompts_dense(build: Builder) -> bool:
    engine = build.setting.engine
    return engine is None or engine.sparse_short_prompts_dense


def _query_products(mixer: LatentAttention, group: LayerGroup, build: Builder, heads: float) -> list[Gemm]:
    """Build the GEMMs from the hidden state to the latents, and the query expansion if queries have a latent."""
    hidden, latent = build.model.hidden_size, mixer.kv_lora_rank + mixer.qk_rope_head_dim
    width, rank, to_latent = heads * mixer.qk_head_dim, mixer.q_lora_rank, "kv_a_proj_with_mqa"
    into: _Product = ("kv_a", hidden, latent, (to_latent,))
    if rank is None:
        return build.projections(group, "attention", "self_attn", ("q", hidden, width, ("q_proj",)), into)
    shared: list[_Product] = [("qkv_a", hidden, rank + latent, ("q_a_proj", to_latent))]
    if _runs_separately("qkv_a", build):
        shared = [("q_a", hidden, rank, ("q_a_proj",)), into]
    return build.projections(group, "attention", "self_attn", *shared, ("q_b", rank, width, ("q_b_proj",)))


def _runs_separately(product: Literal["qkv_a", "indexer k"], build: Builder) -> bool:
    setting = build.setting
    if setting.engine is None:
        return False
    places = {"any", build.model.model_type, setting.profile.platform}
    return not places.isdisjoint(setting.engine.separate_products.get(product, ()))


def _indexer_products(
    mixer: LatentAttention, indexer: SparseIndexer, group: LayerGroup, build: Builder
) -> list[Operator]:
    """Build the indexer's GEMMs: queries from the query latent, keys and head gates from the hidden state.

    All of them are replicated on every rank. Keys in parallel with the queries take no time, because they are smaller.
    """
    hidden, width, heads = build.model.hidden_size, indexer.head_dim, indexer.num_heads
    queries = ("indexer q", mixer.q_lora_rank or hidden, heads * width, ("wq_b",))
    keys: list[_Product] = [("indexer k", hidden, width + heads, ("wk",))]
    if _runs_separately("indexer k", build):
        keys = [("indexer k", hidden, width, ("wk",)), ("indexer gates", hidden, heads, ("weights_proj",))]
    engine, platform = build.setting.engine, build.setting.profile.platform
    hidden_rows = 0 if engine is None or platform != "cuda" else engine.parallel_indexer_rows
    return [
        *(
            replace(gemm, from_rows=max(gemm.from_rows, hidden_rows + 1))
            if gemm.name == "indexer k"
            else gemm
            for gemm in build.projections(group, "attention", "self_attn.indexer", queries, *keys)
        ),
        build.traffic(
            "indexer norms, rope, quantization",
            kernels=group.num_layers * KERNELS_OF_INDEXER,
            bytes_per_row=group.num_layers * 4 * (heads + 1) * width * ACTIVATION_BYTES,
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    flops_per_pair: float
    context_bytes: float
    row_bytes: float
    top_k: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillWork(_Work):
    """FLOPs and bytes (see `AttentionWork`) of prefill attention over heads that are expanded from latents.

    With `top_k` (sparse attention), it applies only to prompts of at most `top_k` tokens, or to no prompts if
    `short_dense` is False.
    """

    short_dense: bool = True

    def __call__(self, shape: StepShape) -> tuple[float, float, float, float]:
        if self.top_k is not None and not (self.short_dense and shape[3] <= shape[0] * self.top_k):
            return NO_WORK
        moved = shape[3] * self.context_bytes + shape[1] * self.row_bytes
        return shape[2] * self.flops_per_pair, moved, shape[0], 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsePrefillWork(_Work):
    """FLOPs and bytes (see `AttentionWork`) of sparse prefill attention.

    Each row reads its own latents and absorbs their expansion. It applies to prompts with a mean context above `top_k`,
    and to all prompts if `short_dense` is False. `fills`: whether the kernel also multiplies empty slots of the top-k.
    """

    top_k: int
    fills: bool = False
    short_dense: bool = True

    def __call__(self, shape: StepShape) -> tuple[float, float, float, float]:
        if shape[1] <= 0 or (self.short_dense and shape[3] <= shape[0] * self.top_k):
            return NO_WORK
        slots = float(shape[1]) * self.top_k
        pairs = min(float(shape[2]), slots)
        moved = pairs * self.context_bytes + shape[1] * self.row_bytes
        return (slots if self.fills else pairs) * self.flops_per_pair, moved, shape[1], pairs / shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWork(_Work):
    """FLOPs and bytes (see `AttentionWork`) of decode over latents, with the expansion absorbed into the query.

    With sparse attention, each row reads at most `top_k` tokens; this is applied to the mean context, so the result is
    an upper bound for requests of different lengths. `fills`: whether the kernel also multiplies empty slots of the
    top-k.
    """

    fills: bool = False

    def __call__(self, shape: StepShape) -> tuple[float, float, float, float]:
        sequences, drafts = shape[7], shape[8]
        if sequences <= 0:
            return NO_WORK
        context = shape[9] if self.top_k is None else min(float(shape[9]), float(sequences) * self.top_k)
        queries = sequences + drafts
        slots = float(sequences) * self.top_k if self.fills and self.top_k is not None else context
        flops = slots * queries / sequences * self.flops_per_pair
        moved = context * self.context_bytes + queries * self.row_bytes
        return flops, moved, queries, context / sequences


def indexer_operator(
    indexer: SparseIndexer, group: LayerGroup, build: Builder, *, rate: int = 1
) -> Attention:
    """Build the indexer, which scores every context token for every query in FP8.

    `rate`: number of tokens that share one key. The indexer is replicated on every rank.
    """
    return build.attention_with(
        "sparse indexer",
        IndexerWork(
            flops_per_pair=2.0 * indexer.num_heads * indexer.head_dim / rate,
            context_bytes=indexer.cache_bytes_per_token / rate,
        ),
        count=group.num_layers,
        flops_per_s=build.peak("fp8" if "fp8" in build.flops_per_s else "bf16"),
        constants=_INDEXER,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerWork:
    """FLOPs and bytes (see `AttentionWork`) of the indexer, which reads all keys of the context for every query."""

    flops_per_pair: float
    context_bytes: float  # key of one token

    def __call__(self, shape: StepShape) -> tuple[float, float, float, float]:
        pairs = shape[2] + shape[9] * (1.0 + (shape[8] / shape[7] if shape[7] else 0.0))
        moved = (shape[3] + shape[9]) * self.context_bytes
        return pairs * self.flops_per_pair, moved, shape[0] + shape[7], 0.0
