"""One part of a model's parameters, and how tensor-parallel ranks divide it."""

from dataclasses import dataclass
from typing import Literal

PartKind = Literal[
    "embedding",
    "lm_head",
    "norm",
    "attention",
    "dense_ffn",
    "experts",
    "shared_expert",
    "router",
    "linear_attention",
    "bias",
]
Sharding = Literal["tensor", "kv_heads", "vocabulary", "experts", "replicated"]
"""How tensor-parallel ranks divide a part.

`tensor`: into `tensor_parallel_size` shards. `kv_heads`: into at most `shard_limit` shards. `vocabulary`: by rows.
`experts`: by expert (expert parallelism) or inside each expert (tensor parallelism). `replicated`: not divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPart:
    """Matrices (a row per output, a column per input) or vectors (one column) of one name, in each of `layers`.

    `layers` is empty for parts outside of layers (embedding, final norm, LM head). `matrices_per_layer`: number of
    matrices of this shape in one layer (experts).
    """

    name: str  # checkpoint name without the layer: "self_attn.q_proj", "mlp.experts.down_proj"
    kind: PartKind
    rows: int
    columns: int = 1
    matrices_per_layer: int = 1
    layers: tuple[int, ...] = ()
    sharding: Sharding = "tensor"
    shard_limit: int | None = None  # more tensor-parallel ranks than this replicate the part
    quantizable: bool = True

    @property
    def params(self) -> int:
        """Return the number of parameters of this part in the whole model."""
        return self.rows * self.columns * self.matrices_per_layer * max(1, len(self.layers))
