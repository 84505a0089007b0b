"""Layers: parameters and caches of each kind of token mixer, and groups of identical layers.

Formulas follow the models' public implementations (Hugging Face transformers 5.23 modules), and parameter counts are
exact. Buffers are not parameters, so the score correction biases of DeepSeek's and GLM's routers (experts x MoE layers
values) are not counted.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from capacity.model.feed_forward import FeedForward, MoEFeedForward
from capacity.model.latent import LatentAttention, SparseIndexer
from capacity.model.parameter_part import ParameterPart
from capacity.model.parts import Eviction, KvCacheGroup, Mixer, Product, indexer_keys, matrix, vector
from capacity.model.quantization import KvCacheFormat
from capacity.model.recurrent import LinearAttention

__all__ = [
    "Attention", "KvCacheGroup", "LatentAttention", "LayerGroup", "LinearAttention", "Mixer", "SparseIndexer",
]  # fmt: skip


Phase: TypeAlias = Literal["all", "prompt", "output"]


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
    value_width: int | None = None  # width of a value head if it differs from a key's (MiMo-V2)
    shares_kv: bool = False  # reads an earlier layer's cache: no keys or values of its own (Gemma 3n)
    keys_are_values: bool = False  # no v_proj: values are the keys before their norm (Gemma 4)
    causal: bool = True  # False: every token sees the whole prompt, and nothing is cached (encoders)
    index_key_bytes: int = 0  # key bytes per token in a block indexer's cache (MiniMax-M3)
    crossed: bool = False  # has a second, equal attention over the prompt of an encoder (T5's decoder)
    cross: bool = False  # keys and values come from image or encoder tokens (Llama 3.2 Vision)
    eviction: Eviction = (
        "none"  # otherwise the window is a budget of kept tokens, enforced from this point on
    )

    softmax: ClassVar[bool] = True
    latent: ClassVar[bool] = False

    @property
    def kind(self) -> Literal["mha", "gqa", "mqa"]:
        if self.num_kv_heads == self.num_heads:
            return "mha"
        return "mqa" if self.num_kv_heads == 1 else "gqa"

    @property
    def sees_whole_prompt(self) -> bool:
        """Return whether prompt tokens attend to the whole prompt, even if the cache later evicts part of it."""
        return self.window_tokens is None or self.eviction in ("after prompt", "after scoring")

    @property
    def value_head_dim(self) -> int:
        return self.head_dim if self.value_width is None else self.value_width

    @property
    def flops_per_pair(self) -> float:
        """Return the FLOPs of one query with one key, over all heads: 2 per value, for score and weighted sum."""
        return 2.0 * self.num_heads * (self.head_dim + self.value_head_dim)

    @property
    def projected_parts(self) -> tuple[str, ...]:
        """Return the names of the projections that this layer has: q, k and v, or fewer."""
        if self.shares_kv:
            return ("q",)
        return ("q", "k") if self.keys_are_values else ("q", "k", "v")

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:
        """Return the cache bytes of keys and values per token in one layer, over all KV heads."""
        widths = (self.head_dim, self.value_head_dim)
        return self.num_kv_heads * sum(kv.vector_bytes(width) for width in widths)

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:
        """Return the cache groups of these layers: keys and values, and the keys of a block indexer.

        Empty if the layers read an earlier layer's cache, attend to image or encoder tokens, or cache nothing.
        """
        if self.shares_kv or self.cross or not self.causal:
            return ()
        group = KvCacheGroup(
            kind="window" if self.window_tokens else "full",
            layers=layers,
            num_kv_heads=self.num_kv_heads,
            bytes_per_token=self.kv_bytes_per_token(kv) * len(layers),
            window_tokens=self.window_tokens,
            chunked=self.chunked,
            eviction=self.eviction,
        )
        if not self.index_key_bytes:
            return (group,)
        return group, indexer_keys(layers, self.index_key_bytes)

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """Return the parameters of these layers: h·q·d + 2·h·k·d + q·d·h, plus biases, norms, gate and sinks.

        h: hidden size; q and k: number of query and KV heads; d: head size.
        """
        q, k, d, v, h = self.num_heads, self.num_kv_heads, self.head_dim, self.value_head_dim, hidden_size
        q_rows, own = q * d * (2 if self.output_gate else 1), self.projected_parts
        kv_rows = {name: k * width for name, width in (("k", d), ("v", v)) if name in own}
        parts = [
            matrix("self_attn.q_proj", "attention", q_rows, h, layers),
            *(
                matrix(f"self_attn.{p}_proj", "attention", rows, h, layers, sharding="kv_heads", limit=k)
                for p, rows in kv_rows.items()
            ),
            matrix("self_attn.o_proj", "attention", h, q * v, layers),
        ]
        if self.qkv_bias:
            parts.append(vector("self_attn.q_proj.bias", "bias", q_rows, layers, sharding="tensor"))
            if kv_rows:
                length = sum(kv_rows.values())
                parts.append(
                    vector("self_attn.kv_proj.bias", "bias", length, layers, sharding="kv_heads", limit=k)
                )
        if self.output_bias:
            parts.append(vector("self_attn.o_proj.bias", "bias", h, layers))
        if self.qk_norm == "per_head":
            parts.append(vector("self_attn.qk_norm", "norm", (d if self.shares_kv else 2 * d), layers))
        if self.qk_norm == "full":
            parts.append(vector("self_attn.qk_norm", "norm", (q + k) * d, layers, sharding="tensor"))
        if self.sinks:
            parts.append(vector("self_attn.sinks", "bias", q, layers, sharding="tensor"))
        if self.crossed:
            parts += [replace(part, name=part.name.replace("self_attn", "cross_attn", 1)) for part in parts]
        return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Group of identical layers. `layers`: their indices in the model, ascending.

    `norms`: number of norms over the hidden size in each layer; None for the model's usual number. `products`: weight
    matrices that each layer has in addition to mixer and feed-forward (such as those of per-layer embeddings or
    hyper-connections). `vector_values`: number of additional parameters that are not in matrices. `phase`: the
    tokens that pass through the layers: prompt (an encoder), output (its decoder), or all.
    """

    layers: tuple[int, ...]
    mixer: Mixer
    feed_forward: FeedForward
    norms: int | None = None
    products: tuple[Product, ...] = ()
    vector_values: int = 0  # per layer
    phase: Phase = "all"

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def is_moe(self) -> bool:
        return isinstance(self.feed_forward, MoEFeedForward)

    def parts(
        self, hidden_size: int, norms_per_layer: int, *, norm_values: int = 1
    ) -> tuple[ParameterPart, ...]:
        """Return all parameters of these layers.

        `norms_per_layer`: the model's usual number of norms; `norm_values`: learned values of a norm per hidden value.
        """
        norms = (norms_per_layer if self.norms is None else self.norms) * norm_values
        parts = [*self.mixer.parts(hidden_size, self.layers)]
        parts += self.feed_forward.parts(hidden_size, self.layers)
        parts += (part for product in self.products for part in product.parts(self.layers))
        if norms:
            parts.insert(0, vector("layernorms", "norm", norms * hidden_size, self.layers))
        if self.vector_values:
            parts.append(vector("others", "norm", self.vector_values, self.layers))
        return tuple(parts)
