"""Parameters and caches of multi-head latent attention (DeepSeek's MLA) and of the indexer of its sparse form."""

from dataclasses import dataclass, replace
from typing import ClassVar

from capacity.model.parameter_part import ParameterPart
from capacity.model.parts import KvCacheGroup, indexer_keys, matrix, vector
from capacity.model.quantization import KvCacheFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseIndexer:
    """Lightning indexer of DeepSeek sparse attention, which selects `top_k` tokens per query and caches keys."""

    num_heads: int
    head_dim: int
    top_k: int
    shared: bool = False  # reuses an earlier layer's selection: no products or keys of its own (GLM-5.2)

    @property
    def cache_bytes_per_token(self) -> float:
        """Return the cache bytes of one token and layer: one FP8 key, and an FP32 scale for each 128 of its values.

        Source: vLLM 0.33 DeepseekV32IndexerCache.
        """
        return self.head_dim + 4 * self.head_dim / 128

    def products(
        self, query_columns: int, hidden_size: int, layers: tuple[int, ...]
    ) -> tuple[ParameterPart, ParameterPart]:
        """Return the matrices of the indexer's queries and head weights, which are replicated on every rank."""
        rows, heads = self.num_heads * self.head_dim, self.num_heads
        module = "self_attn.indexer"
        weights = matrix(
            f"{module}.weights_proj", "attention", heads, hidden_size, layers, sharding="replicated"
        )
        return (
            matrix(f"{module}.wq_b", "attention", rows, query_columns, layers, sharding="replicated"),
            replace(weights, quantizable=False),
        )


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
        """Return 1, because all heads share the latent; tensor parallelism replicates it."""
        return 1

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def value_head_dim(self) -> int:
        return self.v_head_dim

    @property
    def flops_per_pair(self) -> float:
        """Return the FLOPs of one query with one key, in the expanded form that prefill computes."""
        return 2.0 * self.num_heads * (self.qk_head_dim + self.v_head_dim)

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:
        """Return the cache bytes per token and layer, without indexer keys.

        The format `fp8_ds_mla` has 656 bytes for 512 + 64 values.
        """
        if kv.packs_latents:
            return self.kv_lora_rank + 4 * self.kv_lora_rank / 128 + 2 * self.qk_rope_head_dim
        return kv.vector_bytes(self.kv_lora_rank + self.qk_rope_head_dim)

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:
        """Return the cache groups of these layers: latents with rotary keys, and separately the indexer's keys."""
        latent = KvCacheGroup(
            kind="full",
            layers=layers,
            num_kv_heads=self.num_kv_heads,
            bytes_per_token=self.kv_bytes_per_token(kv) * len(layers),
        )
        if self.indexer is None or self.indexer.shared:
            return (latent,)
        return latent, indexer_keys(layers, self.indexer.cache_bytes_per_token)

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """Return the parameters of all matrices of these layers.

        Tensor parallelism replicates down-projections, and divides up-projections and the output by heads.
        """
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
        if self.indexer is not None and not self.indexer.shared:
            d = self.indexer.head_dim
            wq_b, weights = self.indexer.products(self.q_lora_rank or h, h, layers)
            wk = matrix("self_attn.indexer.wk", "attention", d, h, layers, sharding="replicated")
            parts += [wq_b, wk, vector("self_attn.indexer.k_norm", "norm", 2 * d, layers), weights]
        return tuple(parts)
