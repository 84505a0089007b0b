"""The parameters of a model in parts and how ranks divide them; what every kind of token mixer says of itself."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from capacity.model.parameter_part import ParameterPart, PartKind, Sharding
from capacity.model.quantization import KvCacheFormat

Divided = Literal["rows", "columns", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix of one layer that every token is multiplied with (rows x columns; outputs x inputs).

    `divided`: the side that tensor parallelism divides; "none" is computed whole on every GPU. `bias` is one value
    for each row.
    """

    name: str
    kind: PartKind
    rows: int
    columns: int
    divided: Divided = "none"
    bias: bool = False
    quantizable: bool = True

    def parts(self, layers: tuple[int, ...]) -> tuple[ParameterPart, ...]:
        """The matrix in these layers, and its bias."""
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
    """What the KV cache holds for equal layers: bytes per token of all of them, or a state per sequence.

    `full` grows with the context; `window` stops at `window_tokens`; `linear` is `state_bytes_per_sequence`
    whatever the context. Bytes are of the whole model: tensor parallelism divides them by at most
    `num_kv_heads` (1 for a latent, which every GPU holds whole). `index`: what a sparse indexer keeps beside the
    KV itself. `eviction`: whether the window is a budget of kept tokens, and when it is kept to.
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
    """What an indexer keeps of every token, of so many bytes a layer: one key for all heads."""
    of_all = bytes_per_token * len(layers)
    return KvCacheGroup(kind="full", layers=layers, num_kv_heads=1, bytes_per_token=of_all, index=True)


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
