"""From a model on a group of GPUs to the operators of its step: shapes of matrices, bytes of caches, messages.

One builder for each kind of layer; equal operators of different layer groups are merged, so that a step evaluates
a dozen of them whatever the depth. Tensor parallelism divides heads and widths; KV heads beyond it replicate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from capacity.hardware.coefficients import AttentionCoefficients, Fit, Lookup
from capacity.model.quantization import KvCacheFormat, WeightFormat
from capacity.model.spec import Attention as GroupedAttention
from capacity.model.spec import (
    DenseFeedForward,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    ModelSpec,
    MoEFeedForward,
)
from capacity.step import StepShape
from capacity.step.collectives import AllReduce, Interconnect, Transfer
from capacity.step.operators import (
    ACTIVATION_BYTES,
    Attention,
    Device,
    Experts,
    Gemm,
    Operator,
    RowCount,
    Traffic,
    all_tokens,
    expanded_tokens,
    sampled_tokens,
)

# Small kernels of one layer, as vLLM 0.2x and SGLang 0.5 launch them in decode (read off their model code): two
# norms with the residual, rope with the cache write; and what some layers have besides.
KERNELS_PER_LAYER = 3.0
KERNELS_OF_QK_NORM = 1.0
KERNELS_OF_MLA = 2.0  # norms of the two latents, joining rope and nope parts
KERNELS_OF_LINEAR_ATTENTION = 6.0  # convolution, gates, norm of keys, gated norm, state bookkeeping
KERNELS_OF_MOE = 2.0  # top-k of the router, sum with the shared experts or padding of the batch
EXCHANGE = "expert exchange"
SHARED = ("experts", EXCHANGE)  # what data-parallel ranks do together
SAMPLING_KERNELS = 8.0  # cast, penalties, temperature, softmax, argmax, gather: assumed, 2026-11-21
SAMPLING_BYTES_PER_LOGIT = (
    16.0  # 16-bit logits read, 32-bit ones written and read three times: assumed, 2026-11-21
)

_RECURRENCE = AttentionCoefficients(
    compute_fraction=0.2,
    bandwidth_fraction=0.6,
    sharpness=1.0,
    fixed_s=12e-6,
    fit=Fit(
        basis="assumed",
        source="chunked delta rule in Triton, three kernels; no table at hand",
        date="2026-11-21",
    ),
)
_INDEXER = AttentionCoefficients(
    compute_fraction=0.35,
    bandwidth_fraction=0.6,
    sharpness=1.0,
    fixed_s=15e-6,
    fit=Fit(
        basis="assumed", source="index logits and top-k, two kernels; no table at hand", date="2026-11-21"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the builders need to know besides the model."""

    model: ModelSpec
    device: Device
    flops_per_s: dict[str, float]
    matrix_format: Callable[[str, int], WeightFormat]  # by kind of parameters and layer
    kv_cache: KvCacheFormat
    tensor_ranks: int
    pipeline_ranks: int
    data_ranks: int
    expert_parallel: bool
    link: Interconnect
    pipeline_link: Interconnect
    expert_link: Interconnect
    lookup: Lookup

    @property
    def joint(self) -> bool:
        """Whether data-parallel ranks meet at experts; those of a dense model have nothing to do with each other."""
        return self.data_ranks > 1 and self.model.is_moe


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """The operators of a step, by what they depend on.

    `per_token`: the number of rows alone, padded to a CUDA graph's. `per_sample`: the number of sampled rows alone.
    `per_context`: the contexts too. `shared`: the rows of all data-parallel ranks, given as their mean: experts and
    the exchange of tokens before and after them; empty without such ranks.
    """

    per_token: tuple[Operator, ...]
    shared: tuple[Operator, ...]
    per_sample: tuple[Operator, ...]
    per_context: tuple[Operator, ...]
    notes: tuple[str, ...]


def build_operators(setting: Setting) -> Operators:
    """All operators of one step of `setting.model`."""
    notes: list[str] = []
    per_token: list[Operator] = [*_embedding(setting)]
    per_context: list[Operator] = []
    for group in setting.model.layer_groups:
        layers, attention = _mixer(setting, group, notes)
        per_token += layers
        per_context += attention
        per_token += _feed_forward(setting, group, notes)
    per_token += _communication(setting)
    shared = [op for op in per_token if setting.joint and op.name in SHARED]
    return Operators(
        per_token=_merged(op for op in per_token if op not in shared),
        shared=_merged(shared),
        per_sample=_merged(_head(setting, notes)),
        per_context=_merged(per_context),
        notes=tuple(dict.fromkeys(notes)),
    )


def _merged(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Equal operators once, with their counts added; traffic of one name once, with its bytes added."""
    merged: dict[object, Operator] = {}
    for operator in operators:
        if isinstance(operator, Traffic):
            key: object = (operator.name, operator.rows)
            found = merged.get(key)
            merged[key] = operator if not isinstance(found, Traffic) else _added(found, operator)
        elif isinstance(operator, Gemm | Attention | Experts | AllReduce | Transfer):
            key = replace(operator, count=0)
            found = merged.get(key)
            count = getattr(found, "count", 0)
            merged[key] = replace(operator, count=operator.count + count)
    return tuple(merged.values())


def _added(first: Traffic, second: Traffic) -> Traffic:
    return replace(
        first,
        kernels=first.kernels + second.kernels,
        bytes_per_row=first.bytes_per_row + second.bytes_per_row,
        flops_per_row=first.flops_per_row + second.flops_per_row,
    )


# products


def _gemm(
    setting: Setting,
    name: str,
    kind: str,
    group: LayerGroup | None,
    *,
    k: float,
    n: float,
    notes: list[str],
    count: int | None = None,
    rows: RowCount = all_tokens,
) -> Gemm:
    weights = setting.matrix_format(kind, group.layers[0] if group else 0)
    execution = weights.execution(setting.flops_per_s)
    if execution.note:
        notes.append(execution.note)
    return Gemm(
        name=name,
        count=(group.num_layers if group else 1) if count is None else count,
        k=k,
        n=n,
        weight_bytes=k * n * weights.bytes_per_weight,
        activation_bits=activation_bits(execution.compute_dtype),
        flops_per_s=peak(setting, execution.compute_dtype),
        device=setting.device,
        constants=setting.lookup.kernel("gemm", execution.kernel),
        rows=rows,
    )


def activation_bits(compute_dtype: str) -> float:
    """Bits of an activation as a product reads it; a group's scales are included."""
    return {"fp32": 32.0, "fp8": 8.0, "int8": 8.0, "fp4": 4.5}.get(compute_dtype, 16.0)


def peak(setting: Setting, compute_dtype: str) -> float:
    """Dense FLOP/s of the tensor cores; fp32 runs as TF32 where there is one."""
    if compute_dtype == "fp32":
        return setting.flops_per_s.get("tf32", setting.flops_per_s.get("fp32", setting.flops_per_s["bf16"]))
    return setting.flops_per_s[compute_dtype]


# mixers


def _mixer(setting: Setting, group: LayerGroup, notes: list[str]) -> tuple[list[Operator], list[Operator]]:
    """Products and norms of a layer's token mixer, and its attention proper."""
    mixer = group.mixer
    if isinstance(mixer, GroupedAttention):
        return _grouped(setting, group, mixer, notes)
    if isinstance(mixer, LatentAttention):
        return _latent(setting, group, mixer, notes)
    return _linear(setting, group, mixer, notes)


def _shard(count: float, ranks: int) -> float:
    """Heads on the busiest rank: at least one, for what cannot be divided is replicated."""
    return max(1.0, math.ceil(count / ranks))


def _grouped(
    setting: Setting, group: LayerGroup, mixer: GroupedAttention, notes: list[str]
) -> tuple[list[Operator], list[Operator]]:
    hidden = setting.model.hidden_size
    heads, kv_heads = (
        _shard(mixer.num_heads, setting.tensor_ranks),
        _shard(mixer.num_kv_heads, setting.tensor_ranks),
    )
    width, kv_width = heads * mixer.head_dim, kv_heads * mixer.head_dim
    query_width = width * (2 if mixer.output_gate else 1)
    products: list[Operator] = [
        _gemm(setting, "qkv", "attention", group, k=hidden, n=query_width + 2 * kv_width, notes=notes),
        _gemm(setting, "attention output", "attention", group, k=width, n=hidden, notes=notes),
        _elementwise(
            setting,
            group,
            rope_values=width + kv_width,
            cache_bytes=kv_width * setting.kv_cache.value_bits / 4,
            kernels=0.0 if mixer.qk_norm == "none" else KERNELS_OF_QK_NORM,
        ),
    ]
    kv_bytes = mixer.kv_bytes_per_token(setting.kv_cache) * kv_heads / mixer.num_kv_heads
    windowed = mixer.window_tokens is not None
    suffix = " (window)" if windowed else ""
    common = {
        "heads": heads,
        "kv_heads": kv_heads,
        "flops_per_pair": 4.0 * width,
        "kv_bytes": kv_bytes,
        "row_bytes": 2 * width * ACTIVATION_BYTES,
    }
    attention: list[Operator] = [
        _attention(
            setting,
            group,
            "attention prefill" + suffix,
            "prefill_attention",
            _prefill_work(windowed=windowed, **common),
        ),
        _attention(
            setting,
            group,
            "attention decode" + suffix,
            "decode_attention",
            _decode_work(windowed=windowed, **common),
        ),
    ]
    return products, attention


_NO_WORK = (0.0, 0.0, 0.0, 0.0)
AttentionWork = Callable[[StepShape], tuple[float, float, float, float]]
_WORK: dict[object, AttentionWork] = {}  # equal work, one function: so that equal operators merge


def _prefill_work(
    *, windowed: bool, heads: float, kv_heads: float, flops_per_pair: float, kv_bytes: float, row_bytes: float
) -> AttentionWork:
    """FLOPs, bytes and rows of prefill: pairs attended, KV of the whole context once, queries and outputs."""
    pairs, context = (4, 5) if windowed else (2, 3)

    def work(shape: StepShape) -> tuple[float, float, float, float]:
        moved = shape[context] * kv_bytes + shape[1] * row_bytes
        return shape[pairs] * flops_per_pair, moved, shape[0] * kv_heads, 0.0

    return _WORK.setdefault(("prefill", windowed, heads, kv_heads, flops_per_pair, kv_bytes, row_bytes), work)


def _decode_work(
    *, windowed: bool, heads: float, kv_heads: float, flops_per_pair: float, kv_bytes: float, row_bytes: float
) -> AttentionWork:
    """FLOPs, bytes and rows of decode: each row's KV once, however many drafts it verifies."""
    context = 10 if windowed else 9

    def work(shape: StepShape) -> tuple[float, float, float, float]:
        sequences, drafts = shape[7], shape[8]
        if sequences <= 0:
            return _NO_WORK
        queries = 1.0 + drafts / sequences
        moved = shape[context] * kv_bytes + (sequences + drafts) * row_bytes
        return (
            shape[context] * queries * flops_per_pair,
            moved,
            sequences * kv_heads,
            shape[context] / sequences,
        )

    return _WORK.setdefault(("decode", windowed, heads, kv_heads, flops_per_pair, kv_bytes, row_bytes), work)


def _attention(
    setting: Setting, group: LayerGroup, name: str, operator: str, work: AttentionWork
) -> Attention:
    dtype = "8bit" if setting.kv_cache.value_bits <= 8 else "16bit"
    return Attention(
        name=name,
        count=group.num_layers,
        work=work,
        flops_per_s=peak(setting, "fp32" if setting.model.dtype == "fp32" else "bf16"),
        device=setting.device,
        constants=setting.lookup.kernel(operator, dtype),
    )


def _latent(
    setting: Setting, group: LayerGroup, mixer: LatentAttention, notes: list[str]
) -> tuple[list[Operator], list[Operator]]:
    """MLA: prefill expands the latent of its context to heads; decode absorbs the expansion into the query."""
    hidden, latent = setting.model.hidden_size, mixer.kv_lora_rank
    heads = _shard(mixer.num_heads, setting.tensor_ranks)
    rope, nope, value = mixer.qk_rope_head_dim, mixer.qk_nope_head_dim, mixer.v_head_dim
    products: list[Operator] = []
    if mixer.q_lora_rank is None:
        products.append(
            _gemm(setting, "q", "attention", group, k=hidden, n=heads * mixer.qk_head_dim, notes=notes)
        )
        products.append(_gemm(setting, "kv_a", "attention", group, k=hidden, n=latent + rope, notes=notes))
    else:
        down = mixer.q_lora_rank + latent + rope
        products.append(_gemm(setting, "qkv_a", "attention", group, k=hidden, n=down, notes=notes))
        n = heads * mixer.qk_head_dim
        products.append(_gemm(setting, "q_b", "attention", group, k=mixer.q_lora_rank, n=n, notes=notes))
    products.append(
        _gemm(setting, "attention output", "attention", group, k=heads * value, n=hidden, notes=notes)
    )
    products.append(
        _elementwise(
            setting,
            group,
            rope_values=heads * rope + rope + latent,
            cache_bytes=mixer.kv_bytes_per_token(setting.kv_cache),
            kernels=KERNELS_OF_MLA,
        )
    )
    expansion = _gemm(  # of keys, and of values: in decode two kernels, before and after attention
        setting,
        "kv_b",
        "attention",
        group,
        k=latent,
        n=heads * (nope + value) / 2,
        count=2 * group.num_layers,
        notes=notes,
        rows=expanded_tokens,
    )
    cache_bytes = mixer.kv_bytes_per_token(setting.kv_cache)
    top_k = mixer.indexer.top_k if mixer.indexer else None
    prefill = _latent_prefill_work(
        flops_per_pair=2.0 * heads * (mixer.qk_head_dim + value),
        context_bytes=heads * (mixer.qk_head_dim + value) * ACTIVATION_BYTES,
        row_bytes=heads * (mixer.qk_head_dim + value) * ACTIVATION_BYTES,
        top_k=top_k,
    )
    decode = _latent_decode_work(
        heads=heads,
        flops_per_pair=2.0 * heads * (2 * latent + rope),
        context_bytes=cache_bytes,
        row_bytes=heads * (2 * latent + rope) * ACTIVATION_BYTES,
        top_k=top_k,
    )
    attention: list[Operator] = [
        expansion,
        _attention(setting, group, "attention prefill", "mla_prefill", prefill),
        _attention(setting, group, "attention decode", "mla_decode", decode),
    ]
    if mixer.indexer:
        attention.append(_indexer(setting, group, mixer))
    return products, attention


def _latent_prefill_work(
    *, flops_per_pair: float, context_bytes: float, row_bytes: float, top_k: int | None
) -> AttentionWork:
    def work(shape: StepShape) -> tuple[float, float, float, float]:
        pairs: float = shape[2]
        if top_k is not None and shape[1]:
            pairs = min(pairs, float(shape[1]) * top_k)
        return pairs * flops_per_pair, shape[3] * context_bytes + shape[1] * row_bytes, shape[0], 0.0

    return _WORK.setdefault(("mla prefill", flops_per_pair, context_bytes, row_bytes, top_k), work)


def _latent_decode_work(
    *, heads: float, flops_per_pair: float, context_bytes: float, row_bytes: float, top_k: int | None
) -> AttentionWork:
    """Absorbed decode. Sparse attention reads at most `top_k` tokens a row (of the mean context: a lower bound)."""

    def work(shape: StepShape) -> tuple[float, float, float, float]:
        sequences, drafts = shape[7], shape[8]
        if sequences <= 0:
            return _NO_WORK
        context = shape[9] if top_k is None else min(float(shape[9]), float(sequences) * top_k)
        queries = sequences + drafts
        flops = context * queries / sequences * flops_per_pair
        return flops, context * context_bytes + queries * row_bytes, queries, context / sequences

    return _WORK.setdefault(("mla decode", heads, flops_per_pair, context_bytes, row_bytes, top_k), work)


def _indexer(setting: Setting, group: LayerGroup, mixer: LatentAttention) -> Attention:
    """Sparse attention's indexer: scores every context token for every query in FP8, whole on every rank."""
    assert mixer.indexer is not None
    flops_per_pair = 2.0 * mixer.indexer.num_heads * mixer.indexer.head_dim
    key_bytes = mixer.indexer.cache_bytes_per_token

    def work(shape: StepShape) -> tuple[float, float, float, float]:
        pairs = shape[2] + shape[9] * (1.0 + (shape[8] / shape[7] if shape[7] else 0.0))
        return pairs * flops_per_pair, (shape[3] + shape[9]) * key_bytes, shape[0] + shape[7], 0.0

    dtype = "fp8" if "fp8" in setting.flops_per_s else "bf16"
    return Attention(
        name="sparse indexer",
        count=group.num_layers,
        work=_WORK.setdefault(("indexer", flops_per_pair, key_bytes), work),
        flops_per_s=setting.flops_per_s[dtype],
        device=setting.device,
        constants=_INDEXER,
    )


def _linear(
    setting: Setting, group: LayerGroup, mixer: LinearAttention, notes: list[str]
) -> tuple[list[Operator], list[Operator]]:
    """Gated DeltaNet: products in and out, and the recurrence on a state of fixed size for each sequence."""
    hidden, ranks = setting.model.hidden_size, setting.tensor_ranks
    keys, values = mixer.key_dim / ranks, mixer.value_dim / ranks
    heads = _shard(mixer.num_value_heads, ranks)
    kind = "linear_attention"
    products: list[Operator] = [
        _gemm(
            setting, "linear qkvz", kind, group, k=hidden, n=2 * keys + 2 * values + 2 * heads, notes=notes
        ),
        _gemm(setting, "linear output", kind, group, k=values, n=hidden, notes=notes),
        _elementwise(
            setting,
            group,
            rope_values=2 * keys + 2 * values,
            cache_bytes=0.0,
            kernels=KERNELS_OF_LINEAR_ATTENTION,
        ),
    ]
    flops_per_token = heads * 8.0 * mixer.key_head_dim * mixer.value_head_dim
    row_bytes = (2 * keys + 2 * values) * ACTIVATION_BYTES
    state_bytes = 2.0 * mixer.state_bytes_per_sequence / ranks  # read and written

    def work(shape: StepShape) -> tuple[float, float, float, float]:
        tokens, sequences = all_tokens(shape), shape[0] + shape[7]
        return tokens * flops_per_token, tokens * row_bytes + sequences * state_bytes, sequences, 0.0

    recurrence = Attention(
        name="linear attention",
        count=group.num_layers,
        work=_WORK.setdefault(("linear", flops_per_token, row_bytes, state_bytes), work),
        flops_per_s=setting.flops_per_s["bf16"],
        device=setting.device,
        constants=_RECURRENCE,
    )
    return products, [recurrence]


# feed-forward


def _feed_forward(setting: Setting, group: LayerGroup, notes: list[str]) -> list[Operator]:
    part = group.feed_forward
    if isinstance(part, DenseFeedForward):
        return _gated(setting, group, "", "dense_ffn", part.intermediate_size, notes)
    return _mixture(setting, group, part, notes)


def _gated(
    setting: Setting, group: LayerGroup, prefix: str, kind: str, intermediate: float, notes: list[str]
) -> list[Operator]:
    hidden, width = setting.model.hidden_size, intermediate / setting.tensor_ranks
    return [
        _gemm(setting, f"{prefix}gate_up", kind, group, k=hidden, n=2 * width, notes=notes),
        _gemm(setting, f"{prefix}down", kind, group, k=width, n=hidden, notes=notes),
        Traffic(
            name="norms, rope, activation",
            kernels=float(group.num_layers),
            bytes_per_row=group.num_layers * 3 * width * ACTIVATION_BYTES,
            flops_per_row=group.num_layers * 4.0 * width,
            device=setting.device,
            constants=setting.lookup.elementwise(),
        ),
    ]


def _mixture(setting: Setting, group: LayerGroup, part: MoEFeedForward, notes: list[str]) -> list[Operator]:
    hidden = setting.model.hidden_size
    weights = setting.matrix_format("experts", group.layers[0])
    execution = weights.execution(setting.flops_per_s)
    if execution.note:
        notes.append(execution.note)
    ranks = setting.tensor_ranks * (setting.data_ranks if setting.joint else 1)
    operators: list[Operator] = [
        _gemm(setting, "router", "router", group, k=hidden, n=part.num_experts, notes=notes),
        Experts(
            name="experts",
            count=group.num_layers,
            hidden=hidden,
            intermediate=part.expert_intermediate_size / (1 if setting.expert_parallel else ranks),
            matrices=3,
            num_experts=part.num_experts,
            experts_per_token=part.experts_per_token,
            expert_ranks=ranks if setting.expert_parallel else 1,
            weight_bits=weights.bits_per_weight,
            activation_bits=activation_bits(execution.compute_dtype),
            flops_per_s=peak(setting, execution.compute_dtype),
            device=setting.device,
            constants=setting.lookup.kernel("moe", execution.kernel),
            token_groups=setting.data_ranks if setting.joint else 1,
        ),
    ]
    if part.shared_intermediate_size:
        operators += _gated(setting, group, "shared ", "shared_expert", part.shared_intermediate_size, notes)
    if setting.joint:
        operators.append(_exchange(setting, group, part, ranks))
    return operators


def _exchange(setting: Setting, group: LayerGroup, part: MoEFeedForward, ranks: int) -> Transfer:
    """Tokens to the experts' GPUs and back: in direct reach of each other all of them to all (all-gather, then
    reduce-scatter: vLLM's default), beyond that each to the GPUs of its experts (all-to-all).

    A GPU of a tensor-parallel rank sends its share of the rank's tokens.
    """
    everywhere = setting.expert_link.direct or not setting.expert_parallel
    copies = ranks - 1.0 if everywhere else min(part.experts_per_token, ranks) * (ranks - 1) / ranks
    kind: Literal["all_gather", "all_to_all"] = "all_gather" if everywhere else "all_to_all"
    return Transfer(
        name=EXCHANGE,
        kind=kind,
        count=2 * group.num_layers,
        ranks=ranks,
        bytes_per_row=setting.model.hidden_size * copies * ACTIVATION_BYTES / setting.tensor_ranks,
        link=setting.expert_link,
        constants=setting.lookup.nccl(kind),
    )


def _elementwise(
    setting: Setting, group: LayerGroup, *, rope_values: float, cache_bytes: float, kernels: float = 0.0
) -> Traffic:
    """Two norms with the residual (read and write both), rope in place, and the write of the KV cache."""
    norms = setting.model.norms_per_layer
    routing = KERNELS_OF_MOE if isinstance(group.feed_forward, MoEFeedForward) else 0.0
    per_layer = norms * 4 * setting.model.hidden_size * ACTIVATION_BYTES + 2 * rope_values * ACTIVATION_BYTES
    return Traffic(
        name="norms, rope, activation",
        kernels=group.num_layers * (KERNELS_PER_LAYER + norms - 2 + kernels + routing),
        bytes_per_row=group.num_layers * (per_layer + cache_bytes),
        flops_per_row=group.num_layers * 6.0 * norms * setting.model.hidden_size,
        device=setting.device,
        constants=setting.lookup.elementwise(),
    )


# outside of the layers


def _embedding(setting: Setting) -> Iterator[Operator]:
    yield Traffic(
        name="embedding",
        kernels=1.0,
        bytes_per_row=2 * setting.model.hidden_size * ACTIVATION_BYTES,
        device=setting.device,
        constants=setting.lookup.elementwise(),
    )


def _head(setting: Setting, notes: list[str]) -> Iterator[Operator]:
    model, ranks = setting.model, setting.tensor_ranks
    vocabulary = math.ceil(model.vocab_size / ranks)
    kind = "embedding" if model.tie_word_embeddings else "lm_head"
    yield _gemm(
        setting, "lm_head", kind, None, k=model.hidden_size, n=vocabulary, notes=notes, rows=sampled_tokens
    )
    if ranks > 1:
        yield Transfer(
            name="logits all-gather",
            kind="all_gather",
            count=1,
            ranks=ranks,
            bytes_per_row=(ranks - 1) * vocabulary * ACTIVATION_BYTES,
            link=setting.link,
            constants=setting.lookup.nccl("all_gather"),
            rows=sampled_tokens,
        )
    yield Traffic(
        name="sampling",
        kernels=SAMPLING_KERNELS,
        bytes_per_row=SAMPLING_BYTES_PER_LOGIT * model.vocab_size,
        device=setting.device,
        constants=setting.lookup.elementwise(),
        rows=sampled_tokens,
    )


def _communication(setting: Setting) -> Iterator[Operator]:
    model = setting.model
    if setting.tensor_ranks > 1:
        per_layer = [
            1 if setting.joint and isinstance(g.feed_forward, MoEFeedForward) else 2
            for g in model.layer_groups
        ]
        layers = sum(
            count * group.num_layers for count, group in zip(per_layer, model.layer_groups, strict=True)
        )
        yield AllReduce(
            name="all-reduce",
            count=layers + 1,  # and one for the vocabulary-parallel embedding
            ranks=setting.tensor_ranks,
            values_per_row=model.hidden_size,
            link=setting.link,
            constants=setting.lookup.all_reduce(),
            nccl=setting.lookup.nccl("all_reduce"),
        )
    if setting.pipeline_ranks > 1:
        yield Transfer(
            name="pipeline send",
            kind="send_recv",
            count=setting.pipeline_ranks - 1,
            ranks=2,
            bytes_per_row=2 * model.hidden_size * ACTIVATION_BYTES,  # hidden state and residual
            link=setting.pipeline_link,
            constants=setting.lookup.nccl("send_recv"),
        )
