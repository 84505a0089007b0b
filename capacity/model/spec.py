"""What a model is: layers in groups of equals, each a mixer and a feed-forward, and exact parameter counts.

Formulas are those of the models' public implementations (Hugging Face transformers 5.23 modules); counts equal
them to the parameter. Buffers are not parameters: DeepSeek's and GLM's expert score correction biases
(experts x MoE layers values) are left out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

from capacity.model.quantization import KvCacheFormat, PartKind, QuantizationScheme, find_kv_cache_format

Sharding = Literal["tensor", "kv_heads", "vocabulary", "experts", "replicated"]
"""How tensor parallelism divides a part: by `tensor_parallel_size`; by at most `shard_limit` KV heads; by
vocabulary rows; by expert (expert parallelism) or inside each expert (tensor parallelism); not at all."""

_LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPart:
    """Matrices (rows x columns; outputs x inputs) or vectors (columns 1) of one name, in each of `layers`.

    `layers` is empty for what stands outside of the layers (embedding, final norm, LM head). `matrices_per_layer`
    counts equal matrices in one layer (experts).
    """

    name: str  # as the checkpoint calls it, without the layer: "self_attn.q_proj", "mlp.experts.down_proj"
    kind: PartKind
    rows: int
    columns: int = 1
    matrices_per_layer: int = 1
    layers: tuple[int, ...] = ()
    sharding: Sharding = "tensor"
    shard_limit: int | None = None  # tensor parallelism beyond this replicates
    quantizable: bool = True

    @property
    def num_matrices(self) -> int:
        """In the whole model."""
        return self.matrices_per_layer * max(1, len(self.layers))

    @property
    def params(self) -> int:
        """In the whole model."""
        return self.rows * self.columns * self.num_matrices

    @property
    def params_per_layer(self) -> int:
        """In one of its layers (or in all, outside of the layers)."""
        return self.rows * self.columns * self.matrices_per_layer


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheGroup:
    """What the KV cache holds for equal layers: bytes per token of all of them, or a state per sequence.

    `full` grows with the context; `window` stops at `window_tokens`; `linear` is `state_bytes_per_sequence`
    whatever the context. Bytes are of the whole model: tensor parallelism divides them by at most
    `num_kv_heads` (1 for a latent, which every GPU holds whole).
    """

    kind: Literal["full", "window", "linear"]
    layers: tuple[int, ...]
    num_kv_heads: int
    bytes_per_token: float = 0.0
    window_tokens: int | None = None
    chunked: bool = False
    state_bytes_per_sequence: float = 0.0

    @property
    def num_layers(self) -> int:
        return len(self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention with `num_kv_heads` KV heads: multi-head, grouped-query or multi-query."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window_tokens: int | None = None  # a query sees this many tokens, itself included; None: all
    chunked: bool = False  # the window is a fixed chunk (Llama 4), not a sliding one
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "per_head", "full"] = "none"  # learned: over head_dim, or over all heads at once
    output_gate: bool = False  # q_proj twice as wide (Qwen3-Next)
    sinks: bool = False  # one learned logit for each head (gpt-oss)

    @property
    def kind(self) -> Literal["mha", "gqa", "mqa"]:
        if self.num_kv_heads == self.num_heads:
            return "mha"
        return "mqa" if self.num_kv_heads == 1 else "gqa"

    @property
    def kv_values_per_token(self) -> int:
        """Cached values for each token and layer: keys and values."""
        return 2 * self.num_kv_heads * self.head_dim

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:
        """Of one layer, all KV heads."""
        return 2 * self.num_kv_heads * kv.vector_bytes(self.head_dim)

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """h·q·d + 2·h·k·d + q·d·h, with biases, norms, gate and sinks where the model has them."""
        q, k, d, h = self.num_heads, self.num_kv_heads, self.head_dim, hidden_size
        q_rows = q * d * (2 if self.output_gate else 1)
        parts = [
            ParameterPart(name="self_attn.q_proj", kind="attention", rows=q_rows, columns=h, layers=layers),
            *(_kv_part(f"self_attn.{p}_proj", k * d, h, layers, k) for p in "kv"),
            ParameterPart(name="self_attn.o_proj", kind="attention", rows=h, columns=q * d, layers=layers),
        ]
        if self.qkv_bias:
            parts.append(_vector("self_attn.q_proj.bias", "bias", q_rows, layers, sharding="tensor"))
            parts.append(
                _vector("self_attn.kv_proj.bias", "bias", 2 * k * d, layers, sharding="kv_heads", limit=k)
            )
        if self.output_bias:
            parts.append(_vector("self_attn.o_proj.bias", "bias", h, layers))
        if self.qk_norm == "per_head":
            parts.append(_vector("self_attn.qk_norm", "norm", 2 * d, layers))
        if self.qk_norm == "full":
            parts.append(_vector("self_attn.qk_norm", "norm", (q + k) * d, layers, sharding="tensor"))
        if self.sinks:
            parts.append(_vector("self_attn.sinks", "bias", q, layers, sharding="tensor"))
        return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseIndexer:
    """DeepSeek sparse attention's lightning indexer: picks `top_k` tokens for each query; has its own key cache."""

    num_heads: int
    head_dim: int
    top_k: int

    @property
    def cache_bytes_per_token(self) -> float:
        """One FP8 key and one FP32 scale for each 128 values. Source: vLLM 0.33 DeepseekV32IndexerCache."""
        return self.head_dim + 4 * self.head_dim / 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """DeepSeek's multi-head latent attention: the cache holds one compressed vector and one rotary key."""

    num_heads: int
    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: SparseIndexer | None = None

    window_tokens: None = None
    chunked: bool = False

    @property
    def kind(self) -> Literal["mla"]:
        return "mla"

    @property
    def num_kv_heads(self) -> int:
        """Of the cache: the latent is one head for all, so tensor parallelism replicates it."""
        return 1

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def kv_values_per_token(self) -> int:
        """Cached values for each token and layer: the latent and the rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:
        """Of one layer, without the indexer's keys.

        Under sparse attention an 8-bit cache keeps the rotary key at 16 bit and one FP32 scale for each 128
        values of the latent: 656 bytes for 512 + 64. Source: vLLM 0.33 `fp8_ds_mla`.
        """
        if self.indexer is not None and kv.value_bits == 8:
            return self.kv_lora_rank + 4 * self.kv_lora_rank / 128 + 2 * self.qk_rope_head_dim
        return kv.vector_bytes(self.kv_values_per_token)

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """Down-projections are replicated over tensor parallelism, up-projections and output are divided by head."""
        h, q, qk = hidden_size, self.num_heads, self.qk_head_dim
        parts: list[ParameterPart] = []
        if self.q_lora_rank is None:
            parts.append(_matrix("self_attn.q_proj", "attention", q * qk, h, layers))
        else:
            r = self.q_lora_rank
            parts.append(_matrix("self_attn.q_a_proj", "attention", r, h, layers, sharding="replicated"))
            parts.append(_vector("self_attn.q_a_layernorm", "norm", r, layers))
            parts.append(_matrix("self_attn.q_b_proj", "attention", q * qk, r, layers))
        c, rope = self.kv_lora_rank, self.qk_rope_head_dim
        up_rows = q * (self.qk_nope_head_dim + self.v_head_dim)
        parts += [
            _matrix("self_attn.kv_a_proj_with_mqa", "attention", c + rope, h, layers, sharding="replicated"),
            _vector("self_attn.kv_a_layernorm", "norm", c, layers),
            _matrix("self_attn.kv_b_proj", "attention", up_rows, c, layers),
            _matrix("self_attn.o_proj", "attention", h, q * self.v_head_dim, layers),
        ]
        if self.indexer is not None:
            parts += self._indexer_parts(self.indexer, h, layers)
        return tuple(parts)

    def _indexer_parts(
        self, indexer: SparseIndexer, hidden_size: int, layers: tuple[int, ...]
    ) -> list[ParameterPart]:
        heads, d = indexer.num_heads, indexer.head_dim
        query_columns = self.q_lora_rank or hidden_size
        wq_b = _matrix(
            "self_attn.indexer.wq_b", "attention", heads * d, query_columns, layers, sharding="replicated"
        )
        wk = _matrix("self_attn.indexer.wk", "attention", d, hidden_size, layers, sharding="replicated")
        weights = ParameterPart(
            name="self_attn.indexer.weights_proj",
            kind="attention",
            rows=heads,
            columns=hidden_size,
            layers=layers,
            sharding="replicated",
            quantizable=False,
        )
        return [wq_b, wk, _vector("self_attn.indexer.k_norm", "norm", 2 * d, layers), weights]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Gated DeltaNet: a fixed-size recurrent state for each sequence instead of a growing cache."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    state_bytes_per_value: int = 4  # `mamba_ssm_dtype`: fp32

    window_tokens: None = None
    chunked: bool = False

    @property
    def kind(self) -> Literal["linear"]:
        return "linear"

    @property
    def key_dim(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def num_kv_heads(self) -> int:
        """Heads that tensor parallelism can divide the state by."""
        return self.num_key_heads

    @property
    def kv_values_per_token(self) -> int:
        return 0

    @property
    def state_bytes_per_sequence(self) -> float:
        """Of one layer: the recurrent state, and the last inputs of the convolution at 16 bit."""
        recurrent = (
            self.num_value_heads * self.key_head_dim * self.value_head_dim * self.state_bytes_per_value
        )
        convolution = (2 * self.key_dim + self.value_dim) * (self.conv_kernel - 1) * 2
        return recurrent + convolution

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """h(2K+2V) + 2h·H_v + (2K+V)·conv + 2H_v + d_v + V·h."""
        h, k, v, heads = hidden_size, self.key_dim, self.value_dim, self.num_value_heads
        kind: PartKind = "linear_attention"
        return (
            _matrix("linear_attn.in_proj_qkv", kind, 2 * k + v, h, layers),
            _matrix("linear_attn.in_proj_z", kind, v, h, layers),
            _matrix("linear_attn.in_proj_ba", kind, 2 * heads, h, layers),
            _vector("linear_attn.conv1d", kind, (2 * k + v) * self.conv_kernel, layers, sharding="tensor"),
            _vector("linear_attn.decay", kind, 2 * heads, layers, sharding="tensor"),
            _vector("linear_attn.norm", "norm", self.value_head_dim, layers),
            _matrix("linear_attn.out_proj", kind, h, v, layers),
        )


Mixer: TypeAlias = Attention | LatentAttention | LinearAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFeedForward:
    """Gate, up and down projections (SwiGLU and its kin): 3·h·I."""

    intermediate_size: int

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        return _gated_parts("mlp", "dense_ffn", hidden_size, self.intermediate_size, layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEFeedForward:
    """Routed experts, `experts_per_token` of `num_experts` for each token, and experts that all tokens share."""

    num_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int = 0  # of all shared experts together
    shared_gate: bool = False  # a scalar gate on the shared expert (Qwen)
    expert_bias: bool = False  # gpt-oss
    router_bias: bool = False  # gpt-oss

    def params_per_expert(self, hidden_size: int) -> int:
        """Of one routed expert, biases included."""
        matrices = 3 * hidden_size * self.expert_intermediate_size
        return matrices + (2 * self.expert_intermediate_size + hidden_size if self.expert_bias else 0)

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        h, experts, width = hidden_size, self.num_experts, self.expert_intermediate_size
        parts = [_matrix("mlp.gate", "router", experts, h, layers, sharding="replicated")]
        if self.router_bias:
            parts.append(_vector("mlp.gate.bias", "router", experts, layers))
        parts += _gated_parts("mlp.experts", "experts", h, width, layers, copies=experts)
        if self.expert_bias:
            parts.append(_expert_bias(experts, 2 * width + h, layers))
        if self.shared_intermediate_size:
            parts += _gated_parts(
                "mlp.shared_expert", "shared_expert", h, self.shared_intermediate_size, layers
            )
        if self.shared_gate:
            parts.append(_matrix("mlp.shared_expert_gate", "router", 1, h, layers, sharding="replicated"))
        return tuple(parts)


FeedForward: TypeAlias = DenseFeedForward | MoEFeedForward


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that are equal: `layers` are their indices in the model, ascending, so that pipelines can split them."""

    layers: tuple[int, ...]
    mixer: Mixer
    feed_forward: FeedForward

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def parts(self, hidden_size: int, norms_per_layer: int) -> tuple[ParameterPart, ...]:
        """All parameters of these layers."""
        norms = _vector("layernorms", "norm", norms_per_layer * hidden_size, self.layers)
        mixer = self.mixer.parts(hidden_size, self.layers)
        return (norms, *mixer, *self.feed_forward.parts(hidden_size, self.layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder: its layer groups, its vocabulary, and how its checkpoint is stored.

    The vision tower and multi-token-prediction layers are counted apart: `vision_params` and `mtp` are in no
    total; `uncounted` names what the config has and this package does not count; `notes` say what was taken from
    the model's name alone.
    """

    name: str
    hf_id: str | None
    model_type: str
    hidden_size: int
    vocab_size: int
    layer_groups: tuple[LayerGroup, ...]
    tie_word_embeddings: bool = False
    norms_per_layer: int = 2
    max_position_embeddings: int
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    checkpoint: QuantizationScheme
    mtp: LayerGroup | None = None
    vision_params: int = 0
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""

    @property
    def num_layers(self) -> int:
        return sum(group.num_layers for group in self.layer_groups)

    @property
    def total_params(self) -> int:
        """Text model, embeddings included (tied ones once); without vision tower and MTP layers."""
        return sum(part.params for part in self.parameter_parts())

    @property
    def active_params(self) -> int:
        """Parameters that one token uses: the input embedding included, of routed experts only the chosen."""
        return self.total_params - self._idle_expert_params

    @property
    def routed_expert_params(self) -> int:
        return sum(part.params for part in self.parameter_parts() if part.kind == "experts")

    @property
    def mtp_params(self) -> int:
        """Multi-token-prediction layers: extra weights, loaded only for speculative decoding."""
        return sum(part.params for part in self.mtp_parts())

    @property
    def is_moe(self) -> bool:
        return any(isinstance(group.feed_forward, MoEFeedForward) for group in self.layer_groups)

    @property
    def attention_kind(self) -> str:
        """`mha`, `gqa`, `mqa`, `mla` or `linear`; several joined by `+` in a hybrid."""
        return "+".join(sorted({group.mixer.kind for group in self.layer_groups}))

    @property
    def window_tokens(self) -> int | None:
        """The window of the layers that have one (the largest, should they differ), else None."""
        return max((g.mixer.window_tokens for g in self.layer_groups if g.mixer.window_tokens), default=None)

    @property
    def num_attention_heads(self) -> int:
        """Query heads of the softmax attention: what tensor parallelism must divide."""
        heads = [g.mixer.num_heads for g in self.layer_groups if not isinstance(g.mixer, LinearAttention)]
        return max(heads, default=0)

    @property
    def num_kv_heads(self) -> int:
        """KV heads of the softmax attention (1 for a latent)."""
        heads = [g.mixer.num_kv_heads for g in self.layer_groups if not isinstance(g.mixer, LinearAttention)]
        return max(heads, default=0)

    def parameter_parts(self) -> tuple[ParameterPart, ...]:
        """Every parameter of the text model exactly once; a tied LM head is the embedding."""
        embedding = ParameterPart(
            name="embed_tokens",
            kind="embedding",
            rows=self.vocab_size,
            columns=self.hidden_size,
            sharding="vocabulary",
        )
        layers = [
            p for group in self.layer_groups for p in group.parts(self.hidden_size, self.norms_per_layer)
        ]
        final_norm = _vector("norm", "norm", self.hidden_size, ())
        if self.tie_word_embeddings:
            return (embedding, *layers, final_norm)
        lm_head = ParameterPart(
            name="lm_head",
            kind="lm_head",
            rows=self.vocab_size,
            columns=self.hidden_size,
            sharding="vocabulary",
        )
        return (embedding, *layers, final_norm, lm_head)

    def mtp_parts(self) -> tuple[ParameterPart, ...]:
        """Multi-token-prediction layers: one more layer each, a projection of 2h to h, and three norms.

        Embedding and LM head are shared with the model; checkpoints that repeat them are larger by that.
        """
        if self.mtp is None:
            return ()
        h, layers = self.hidden_size, self.mtp.layers
        projection = _matrix("eh_proj", "attention", h, 2 * h, layers, sharding="replicated")
        return (
            projection,
            _vector("mtp.norms", "norm", 3 * h, layers),
            *self.mtp.parts(h, self.norms_per_layer),
        )

    def lora_params(self, rank: int, targets: Collection[str] = _LORA_TARGETS) -> int:
        """Of one LoRA adapter of this rank: rank x (inputs + outputs) for each matrix that `targets` names.

        Routed experts are left alone, as PEFT leaves fused experts. Source: Hu 2021, LoRA.
        """
        adapted = (part for part in self.parameter_parts() if part.name.rsplit(".", 1)[-1] in targets)
        return sum(rank * (p.rows + p.columns) * p.num_matrices for p in adapted if p.kind != "experts")

    def kv_cache_groups(self, kv_cache_dtype: str = "auto") -> tuple[KvCacheGroup, ...]:
        """What each layer group keeps, and the sparse indexer's keys as a group of their own."""
        kv = find_kv_cache_format(kv_cache_dtype, model_dtype=self.dtype)
        groups = [_kv_cache_group(group, kv) for group in self.layer_groups]
        return (*groups, *(g for group in self.layer_groups for g in _indexer_cache_groups(group)))

    def kv_bytes_per_token(self, kv_cache_dtype: str = "auto") -> float:
        """Of the whole model, over the layers whose cache grows without bound, no replication.

        Where every layer has a window (Phi-3, Mistral 7B v0.1) it is that of those layers, inside the window.
        Windowed layers (`window_kv_bytes_per_token`), the sparse indexer's keys
        (`indexer_kv_bytes_per_token`) and linear layers (`state_bytes_per_sequence`) stand apart.
        """
        kv = find_kv_cache_format(kv_cache_dtype, model_dtype=self.dtype)
        groups = [_kv_cache_group(group, kv) for group in self.layer_groups]
        unbounded = sum(group.bytes_per_token for group in groups if group.kind == "full")
        return unbounded or self.window_kv_bytes_per_token(kv_cache_dtype)

    def window_kv_bytes_per_token(self, kv_cache_dtype: str = "auto") -> float:
        """Of the layers that keep a window only, while the context is inside it."""
        return sum(g.bytes_per_token for g in self.kv_cache_groups(kv_cache_dtype) if g.kind == "window")

    def indexer_kv_bytes_per_token(self) -> float:
        """Of the sparse attention indexer's keys, in every format of the cache."""
        return sum(g.bytes_per_token for group in self.layer_groups for g in _indexer_cache_groups(group))

    def state_bytes_per_sequence(self) -> float:
        """Of the linear-attention layers: the same for every context length."""
        return sum(g.state_bytes_per_sequence for g in self.kv_cache_groups() if g.kind == "linear")

    @property
    def _idle_expert_params(self) -> int:
        return sum(
            group.num_layers
            * (group.feed_forward.num_experts - group.feed_forward.experts_per_token)
            * group.feed_forward.params_per_expert(self.hidden_size)
            for group in self.layer_groups
            if isinstance(group.feed_forward, MoEFeedForward)
        )


def _kv_cache_group(group: LayerGroup, kv: KvCacheFormat) -> KvCacheGroup:
    mixer = group.mixer
    if isinstance(mixer, LinearAttention):
        state = mixer.state_bytes_per_sequence * group.num_layers
        return KvCacheGroup(
            kind="linear",
            layers=group.layers,
            num_kv_heads=mixer.num_kv_heads,
            state_bytes_per_sequence=state,
        )
    return KvCacheGroup(
        kind="window" if mixer.window_tokens else "full",
        layers=group.layers,
        num_kv_heads=mixer.num_kv_heads,
        bytes_per_token=mixer.kv_bytes_per_token(kv) * group.num_layers,
        window_tokens=mixer.window_tokens,
        chunked=mixer.chunked,
    )


def _indexer_cache_groups(group: LayerGroup) -> tuple[KvCacheGroup, ...]:
    mixer = group.mixer
    if not isinstance(mixer, LatentAttention) or mixer.indexer is None:
        return ()
    keys = mixer.indexer.cache_bytes_per_token * group.num_layers
    return (KvCacheGroup(kind="full", layers=group.layers, num_kv_heads=1, bytes_per_token=keys),)


def _matrix(
    name: str,
    kind: PartKind,
    rows: int,
    columns: int,
    layers: tuple[int, ...],
    *,
    sharding: Sharding = "tensor",
) -> ParameterPart:
    quantizable = kind != "router"
    return ParameterPart(
        name=name,
        kind=kind,
        rows=rows,
        columns=columns,
        layers=layers,
        sharding=sharding,
        quantizable=quantizable,
    )


def _kv_part(name: str, rows: int, columns: int, layers: tuple[int, ...], kv_heads: int) -> ParameterPart:
    return ParameterPart(
        name=name,
        kind="attention",
        rows=rows,
        columns=columns,
        layers=layers,
        sharding="kv_heads",
        shard_limit=kv_heads,
    )


def _vector(
    name: str,
    kind: PartKind,
    length: int,
    layers: tuple[int, ...],
    *,
    sharding: Sharding = "replicated",
    limit: int | None = None,
) -> ParameterPart:
    return ParameterPart(
        name=name,
        kind=kind,
        rows=length,
        layers=layers,
        sharding=sharding,
        shard_limit=limit,
        quantizable=False,
    )


def _gated_parts(
    prefix: str, kind: PartKind, hidden_size: int, width: int, layers: tuple[int, ...], *, copies: int = 1
) -> tuple[ParameterPart, ...]:
    shapes = (
        ("gate_proj", width, hidden_size),
        ("up_proj", width, hidden_size),
        ("down_proj", hidden_size, width),
    )
    return tuple(
        ParameterPart(
            name=f"{prefix}.{name}",
            kind=kind,
            rows=rows,
            columns=columns,
            matrices_per_layer=copies,
            layers=layers,
            sharding="experts" if kind == "experts" else "tensor",
        )
        for name, rows, columns in shapes
    )


def _expert_bias(num_experts: int, length: int, layers: tuple[int, ...]) -> ParameterPart:
    return ParameterPart(
        name="mlp.experts.bias",
        kind="experts",
        rows=length,
        matrices_per_layer=num_experts,
        layers=layers,
        sharding="experts",
        quantizable=False,
    )
