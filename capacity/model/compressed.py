"""DeepSeek-V4's attention to a window of recent tokens, and to compressed entries that each represent several older
tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

from capacity.model.latent import SparseIndexer
from capacity.model.parameter_part import ParameterPart
from capacity.model.parts import KvCacheGroup, indexer_keys, matrix, vector
from capacity.model.quantization import KvCacheFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """DeepSeek-V4's attention of all query heads to one shared KV head, with compressed entries beyond a window.

    `compress_rate` tokens older than the window form one entry; 0: only the window is cached. With an indexer (sparse
    form), a query attends to `top_k` entries. These entries overlap, so their projections are twice as wide. Without
    an indexer, a query attends to all entries. The output projection has `output_groups` low-rank matrices of rank
    `output_lora_rank`. Source: transformers 5.23 modeling_deepseek_v4.py, read 2026-11.
    """

    num_heads: int
    head_dim: int
    q_lora_rank: int
    window_tokens: int
    compress_rate: int
    output_groups: int
    output_lora_rank: int
    indexer: SparseIndexer | None = None

    softmax: ClassVar[bool] = True
    latent: ClassVar[bool] = True
    num_kv_heads: ClassVar[int] = 1

    @property
    def kind(self) -> str:
        """Return DeepSeek's name of this attention: `swa` (only a window), `csa` (with an indexer) or `hca`."""
        if not self.compress_rate:
            return "swa"
        return "hca" if self.indexer is None else "csa"

    @property
    def value_head_dim(self) -> int:
        return self.head_dim

    @property
    def flops_per_pair(self) -> float:
        return 4.0 * self.num_heads * self.head_dim

    def entry_bytes(self, kv: KvCacheFormat) -> float:
        """Return the cache bytes of one window token or one compressed entry; key and value are the same vector."""
        return kv.vector_bytes(self.head_dim)

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:
        """Return one layer's cache bytes per token outside the window: bytes per entry divided by tokens per entry."""
        return self.entry_bytes(kv) / self.compress_rate if self.compress_rate else 0.0

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:
        """Return the cache groups of these layers: the window, the compressed entries, and the indexer's keys."""
        window = KvCacheGroup(
            kind="window",
            layers=layers,
            num_kv_heads=1,
            bytes_per_token=self.entry_bytes(kv) * len(layers),
            window_tokens=self.window_tokens,
        )
        if not self.compress_rate:
            return (window,)
        entries = KvCacheGroup(
            kind="full",
            layers=layers,
            num_kv_heads=1,
            bytes_per_token=self.kv_bytes_per_token(kv) * len(layers),
        )
        if self.indexer is None:
            return window, entries
        return window, entries, indexer_keys(layers, self.indexer.cache_bytes_per_token / self.compress_rate)

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """Return the parameters of query projections, KV head, compressor, indexer and grouped output projection."""
        q, d, r, h = self.num_heads, self.head_dim, self.q_lora_rank, hidden_size
        groups, rank = self.output_groups, self.output_lora_rank
        parts = [
            matrix("self_attn.q_a_proj", "attention", r, h, layers, sharding="replicated"),
            vector("self_attn.q_a_layernorm", "norm", r, layers),
            matrix("self_attn.q_b_proj", "attention", q * d, r, layers),
            matrix("self_attn.kv_proj", "attention", d, h, layers, sharding="replicated"),
            vector("self_attn.kv_norm", "norm", d, layers),
            matrix("self_attn.o_a_proj", "attention", groups * rank, q * d // groups, layers),
            matrix("self_attn.o_b_proj", "attention", h, groups * rank, layers),
            vector("self_attn.sinks", "bias", q, layers, sharding="tensor"),
        ]
        if self.compress_rate:
            parts += self._compressor("self_attn.compressor", d, h, layers)
        if self.indexer is not None:
            parts += self._compressor("self_attn.indexer", self.indexer.head_dim, h, layers)
            parts += self.indexer.products(r, h, layers)
        return tuple(parts)

    @property
    def compressor_copies(self) -> int:
        """Return the number of projections per token in the compressor: 2 if entries overlap (with indexer), else 1."""
        return 1 if self.indexer is None else 2

    def _compressor(
        self, name: str, width: int, hidden_size: int, layers: tuple[int, ...]
    ) -> list[ParameterPart]:
        rows = self.compressor_copies * width
        products = [
            matrix(f"{name}.{each}_proj", "attention", rows, hidden_size, layers, sharding="replicated")
            for each in ("kv", "gate")
        ]
        return [*products, vector(f"{name}.others", "norm", self.compress_rate * rows + width, layers)]
