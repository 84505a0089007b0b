"""Parameter matrices of layers, their division over ranks, KV cache groups, and the interface of token mixers."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from capacity.model.parameter_part import ParameterPart, PartKind, Sharding
from capacity.model.quantization import KvCacheFormat

Divided = Literal["rows", "columns", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix of one layer by which every token is multiplied; it has a row per output and a column per input.

    `divided`: the dimension that tensor parallelism divides; "none": every GPU computes the whole multiplication.
    `bias`: the matrix has a bias, one value per row.
    """

    name: str
    kind: PartKind
    rows: int
    columns: int
    divided: Divided = "none"
    bias: bool = False
    quantizable: bool = True

    def parts(self, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """Return the parameters of the matrix, and of its bias, in these layers."""
        sharding: Sharding = "replicated" if self.divided == "none" else "tensor"
        weight = matrix(self.name, self.kind, self.rows, self.columns, layers, sharding=sharding)
        weight = replace(weight, quantizable=self.quantizable)
        if not self.bias:
            return (weight,)
        split: Sharding = "tensor" if self.divided == "rows" else "replicated"
        return weight, vector(f"{self.name}.bias", "bias", self.rows, layers, sharding=split)


def matrix(
    name: str,
    kind: PartKind,
    rows: int,
    columns: int,
    layers: tuple[int, ...],
    *,
    sharding: Sharding = "tensor",
    limit: int | None = None,
) -> ParameterPart:
    return ParameterPart(
        name=name,
        kind=kind,
        rows=rows,
        columns=columns,
        layers=layers,
        sharding=sharding,
        shard_limit=limit,
        quantizable=kind != "router",
    )


def vector(
    name: str,
    kind: PartKind,
    length: int,
    layers: tuple[int, ...],
    *,
    sharding: Sharding = "replicated",
    limit: int | None = None,
) -> ParameterPart:
    return replace(matrix(name, kind, length, 1, layers, sharding=sharding, limit=limit), quantizable=False)


Eviction: TypeAlias = Literal["none", "after prompt", "after scoring", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheGroup:
    """KV cache of identical layers: bytes per token of all these layers, or bytes of a state per sequence.

    `full` grows with the context; `window` is limited to `window_tokens`; `linear` has `state_bytes_per_sequence`,
    independent of the context. Bytes count the whole model: tensor parallelism divides them by at most `num_kv_heads`
    (1 for a latent, which every GPU replicates). `index`: the group holds a sparse indexer's keys. `eviction`: when
    the engine evicts all but `window_tokens` tokens; "none": never, and the window is part of the model's attention.
    """

    kind: Literal["full", "window", "linear"]
    layers: tuple[int, ...]
    num_kv_heads: int
    bytes_per_token: float = 0.0
    window_tokens: int | None = None
    chunked: bool = False
    state_bytes_per_sequence: float = 0.0
    index: bool = False
    eviction: Eviction = "none"

    @property
    def num_layers(self) -> int:
        return len(self.layers)


def indexer_keys(layers: tuple[int, ...], bytes_per_token: float) -> KvCacheGroup:
    """Return the cache group of an indexer, which caches one key of `bytes_per_token` bytes per token and layer."""
    of_all = bytes_per_token * len(layers)
    return KvCacheGroup(kind="full", layers=layers, num_kv_heads=1, bytes_per_token=of_all, index=True)


class Mixer(Protocol):
    """Interface of token mixers; values count all heads of one layer. Implementations are frozen and hashable.

    The functions in `capacity.step.layers` that compute a mixer's operators are registered by its type.
    """

    @property
    def kind(self) -> str:
        """Return the name of the mixer as answers show it, such as `gqa` or `mla`."""

    @property
    def softmax(self) -> bool:
        """Return whether queries attend to individual keys; False for a mixer with a fixed-size state."""

    @property
    def latent(self) -> bool:
        """Return whether the cache holds one latent for all heads; engines have another block size for latents."""

    @property
    def num_heads(self) -> int:
        """Return the number of heads, which the tensor-parallel size must divide."""

    @property
    def num_kv_heads(self) -> int:
        """Return the number of heads of the cache or state; with more tensor-parallel ranks, they are replicated."""

    @property
    def value_head_dim(self) -> int: ...

    @property
    def window_tokens(self) -> int | None:
        """Return the maximum number of tokens that a query attends to, or None for all."""

    @property
    def flops_per_pair(self) -> float:
        """Return the FLOPs of one query with one key (score and weighted sum); 0 for a state of fixed size."""

    def kv_bytes_per_token(self, kv: KvCacheFormat) -> float:
        """Return the cache bytes per token of one layer, without an indexer's keys; 0 for a state."""

    def kv_cache_groups(self, layers: tuple[int, ...], kv: KvCacheFormat) -> tuple[KvCacheGroup, ...]:
        """Return the cache groups of these layers."""

    def parts(self, hidden_size: int, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """Return all parameters of these layers' mixers."""
