"""What every kind of token mixer says of itself, and what its layers keep in the cache."""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from capacity.model.parts import ParameterPart
from capacity.model.quantization import KvCacheFormat

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
