"""The kinds of layers: what each kind of token mixer counts and caches, and groups of equal layers.

Formulas are those of the models' public implementations (Hugging Face transformers 5.23 modules); counts equal
them to the parameter. Buffers are not parameters: DeepSeek's and GLM's expert score correction biases
(experts x MoE layers values) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from capacity.model.feed_forward import FeedForward, MoEFeedForward
from capacity.model.parts import ParameterPart, matrix, vector
from capacity.model.quantization import KvCacheFormat, PartKind


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheGroup:
    """What the KV cache holds for equal layers: bytes per token of all of them, or a state per sequence.

    `full` grows with the context; `window` stops at `window_tokens`; `linear` is `state_bytes_per_sequence`
    whatever the context. Bytes are of the whole model: tensor parallelism divides them by at most
    `num_kv_heads` (1 for a latent, which every GPU holds whole). `index`: what a sparse indexer keeps beside the
    KV itself.
    """

    kind: Literal["full", "window", "linear"]
    layers: tuple[int, ...]
    num_kv_heads: int
    bytes_per_token: float = 0.0
    window_tokens: int | None = None
    chunked: bool = False
    state_bytes_per_sequence: float = 0.0
    index: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layers)


class Mixer(Protocol):
    """What every kind of token mixer says of itself, all heads and one layer unless said; frozen, hence hashable.

    Its operators in a step stand in `capacity.step.layers` and are registered there by its type.
    """

    @property
    def kind(self) -> str:
        """As it is called in answers: `gqa`, `mla`."""

    @property
    def softmax(self) -> bool:
        """Whether queries attend to keys one by one, as against a state of fixed size."""

    @property
    def latent(self) -> bool:
        """Whether the cache holds one latent for all heads, which engines keep in blocks of a size of its own."""

    @property
    def num_heads(self) -> int:
        """Heads that tensor parallelism must divide."""

    @property
    def num_kv_heads(self) -> int:
        """Heads of the cache, or of the state: tensor parallelism beyond them replicates."""

    @property
    def value_head_dim(self) -> int: ...

    @property
    def window_tokens(self) -> int | None:
        """The most tokens that a query sees; None: all."""

    @property
    def flops_per_pair(self) -> float:
        """Of one query with one key, scores and values; 0 where the work does not grow with the context."""

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:
        """Of the cache, without an indexer's keys; 0 for a state."""

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:
        """What the cache holds for these layers."""

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """All parameters of these layers' mixers."""


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

    softmax: ClassVar[bool] = True
    latent: ClassVar[bool] = False

    @property
    def kind(self) -> Literal["mha", "gqa", "mqa"]:
        if self.num_kv_heads == self.num_heads:
            return "mha"
        return "mqa" if self.num_kv_heads == 1 else "gqa"

    @property
    def value_head_dim(self) -> int:
        return self.head_dim

    @property
    def flops_per_pair(self) -> float:
        """2 for each value of all heads, in scores and in the weighted sum."""
        return 4.0 * self.num_heads * self.head_dim

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:
        """Of one layer, all KV heads."""
        return 2 * self.num_kv_heads * kv.vector_bytes(self.head_dim)

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:
        """Keys and values, of the whole context or of the window."""
        group = KvCacheGroup(
            kind="window" if self.window_tokens else "full",
            layers=layers,
            num_kv_heads=self.num_kv_heads,
            bytes_per_token=self.kv_bytes_per_token(kv) * len(layers),
            window_tokens=self.window_tokens,
            chunked=self.chunked,
        )
        return (group,)

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
            parts.append(vector("self_attn.q_proj.bias", "bias", q_rows, layers, sharding="tensor"))
            parts.append(
                vector("self_attn.kv_proj.bias", "bias", 2 * k * d, layers, sharding="kv_heads", limit=k)
            )
        if self.output_bias:
            parts.append(vector("self_attn.o_proj.bias", "bias", h, layers))
        if self.qk_norm == "per_head":
            parts.append(vector("self_attn.qk_norm", "norm", 2 * d, layers))
        if self.qk_norm == "full":
            parts.append(vector("self_attn.qk_norm", "norm", (q + k) * d, layers, sharding="tensor"))
        if self.sinks:
            parts.append(vector("self_attn.sinks", "bias", q, layers, sharding="tensor"))
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

    kind: ClassVar[str] = "mla"
    softmax: ClassVar[bool] = True
    latent: ClassVar[bool] = True
    window_tokens: ClassVar[None] = None

    @property
    def num_kv_heads(self) -> int:
        """Of the cache: the latent is one head for all, so tensor parallelism replicates it."""
        return 1

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def value_head_dim(self) -> int:
        return self.v_head_dim

    @property
    def flops_per_pair(self) -> float:
        """Of the expanded form, as prefill computes it."""
        return 2.0 * self.num_heads * (self.qk_head_dim + self.v_head_dim)

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:
        """Of one layer, without the indexer's keys.

        Under sparse attention an 8-bit cache keeps the rotary key at 16 bit and one FP32 scale for each 128
        values of the latent: 656 bytes for 512 + 64. Source: vLLM 0.33 `fp8_ds_mla`.
        """
        if self.indexer is not None and kv.value_bits == 8:
            return self.kv_lora_rank + 4 * self.kv_lora_rank / 128 + 2 * self.qk_rope_head_dim
        return kv.vector_bytes(self.kv_lora_rank + self.qk_rope_head_dim)

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:
        """The latent and the rotary key; the indexer's keys as a group of their own."""
        latent = KvCacheGroup(
            kind="full",
            layers=layers,
            num_kv_heads=self.num_kv_heads,
            bytes_per_token=self.kv_bytes_per_token(kv) * len(layers),
        )
        if self.indexer is None:
            return (latent,)
        keys = self.indexer.cache_bytes_per_token * len(layers)
        return latent, KvCacheGroup(
            kind="full", layers=layers, num_kv_heads=1, bytes_per_token=keys, index=True
        )

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """Down-projections are replicated over tensor parallelism, up-projections and output are divided by head."""
        h, q, qk = hidden_size, self.num_heads, self.qk_head_dim
        parts: list[ParameterPart] = []
        if self.q_lora_rank is None:
            parts.append(matrix("self_attn.q_proj", "attention", q * qk, h, layers))
        else:
            r = self.q_lora_rank
            parts.append(matrix("self_attn.q_a_proj", "attention", r, h, layers, sharding="replicated"))
            parts.append(vector("self_attn.q_a_layernorm", "norm", r, layers))
            parts.append(matrix("self_attn.q_b_proj", "attention", q * qk, r, layers))
        c, rope = self.kv_lora_rank, self.qk_rope_head_dim
        up_rows = q * (self.qk_nope_head_dim + self.v_head_dim)
        parts += [
            matrix("self_attn.kv_a_proj_with_mqa", "attention", c + rope, h, layers, sharding="replicated"),
            vector("self_attn.kv_a_layernorm", "norm", c, layers),
            matrix("self_attn.kv_b_proj", "attention", up_rows, c, layers),
            matrix("self_attn.o_proj", "attention", h, q * self.v_head_dim, layers),
        ]
        if self.indexer is not None:
            parts += self._indexer_parts(self.indexer, h, layers)
        return tuple(parts)

    def _indexer_parts(
        self, indexer: SparseIndexer, hidden_size: int, layers: tuple[int, ...]
    ) -> list[ParameterPart]:
        heads, d = indexer.num_heads, indexer.head_dim
        query_columns = self.q_lora_rank or hidden_size
        wq_b = matrix(
            "self_attn.indexer.wq_b", "attention", heads * d, query_columns, layers, sharding="replicated"
        )
        wk = matrix("self_attn.indexer.wk", "attention", d, hidden_size, layers, sharding="replicated")
        weights = ParameterPart(
            name="self_attn.indexer.weights_proj",
            kind="attention",
            rows=heads,
            columns=hidden_size,
            layers=layers,
            sharding="replicated",
            quantizable=False,
        )
        return [wq_b, wk, vector("self_attn.indexer.k_norm", "norm", 2 * d, layers), weights]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Gated DeltaNet: a fixed-size recurrent state for each sequence instead of a growing cache."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    state_bytes_per_value: int = 4  # `mamba_ssm_dtype`: fp32

    kind: ClassVar[str] = "linear"
    softmax: ClassVar[bool] = False
    latent: ClassVar[bool] = False
    window_tokens: ClassVar[None] = None
    flops_per_pair: ClassVar[float] = 0.0

    @property
    def key_dim(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def num_heads(self) -> int:
        return self.num_key_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads that tensor parallelism can divide the state by."""
        return self.num_key_heads

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:  # noqa: ARG002
        return 0.0

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:  # noqa: ARG002
        """The state, whatever the context."""
        state = KvCacheGroup(
            kind="linear",
            layers=layers,
            num_kv_heads=self.num_kv_heads,
            state_bytes_per_sequence=self.state_bytes_per_sequence * len(layers),
        )
        return (state,)

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
            matrix("linear_attn.in_proj_qkv", kind, 2 * k + v, h, layers),
            matrix("linear_attn.in_proj_z", kind, v, h, layers),
            matrix("linear_attn.in_proj_ba", kind, 2 * heads, h, layers),
            vector("linear_attn.conv1d", kind, (2 * k + v) * self.conv_kernel, layers, sharding="tensor"),
            vector("linear_attn.decay", kind, 2 * heads, layers, sharding="tensor"),
            vector("linear_attn.norm", "norm", self.value_head_dim, layers),
            matrix("linear_attn.out_proj", kind, h, v, layers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that are equal: `layers` are their indices in the model, ascending, so that pipelines can split them."""

    layers: tuple[int, ...]
    mixer: Mixer
    feed_forward: FeedForward

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def is_moe(self) -> bool:
        return isinstance(self.feed_forward, MoEFeedForward)

    def parts(self, hidden_size: int, norms_per_layer: int) -> tuple[ParameterPart, ...]:
        """All parameters of these layers."""
        norms = vector("layernorms", "norm", norms_per_layer * hidden_size, self.layers)
        mixer = self.mixer.parts(hidden_size, self.layers)
        return (norms, *mixer, *self.feed_forward.parts(hidden_size, self.layers))


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
