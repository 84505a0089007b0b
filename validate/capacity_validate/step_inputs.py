"""A step of the harness's transformer as tensors, and what a layer asks of the model that it belongs to."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from capacity.model import ModelSpec

EPSILON = 1e-6  # of every norm


class Storage(Protocol):
    """What a layer is made from: sizes, a device, and random weights on it."""

    model: ModelSpec
    device: str
    dtype: Any
    block_size: int
    allocated_blocks: int
    attention_kernels: Counter[str]

    def random(self, *shape: int, scale: float) -> Any: ...

    def ones(self, *shape: int) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """One sequence's share of a step: new tokens after `computed` ones, its block ids, whether it samples."""

    tokens: Sequence[int]
    computed: int
    blocks: Sequence[int] | Any  # an array of them spares the host a conversion in every step
    samples: int = 1  # logits wanted: of the last so many tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """A step as tensors. The first `decode_rows` rows have one token each."""

    tokens: Any
    positions: Any
    slots: Any
    decode_rows: int
    tables: Any  # block ids of the decode rows, padded
    contexts: Any
    contexts_cpu: tuple[int, ...] | None
    max_context: int
    prefills: tuple[tuple[int, int, int, Any], ...]  # first row of the step, tokens, computed, block ids
    sampled: Any
