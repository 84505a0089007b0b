"""The inputs of one step of the harness's transformer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

EPSILON = 1e-6  # for every norm


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """One sequence in a step: new tokens, number of tokens computed before, block ids, and number of logits."""

    tokens: Sequence[int]
    computed: int
    blocks: Sequence[int] | Any  # an array avoids a conversion on the host in every step
    samples: int = 1  # number of last tokens to return logits for


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """A step as tensors. The first `decode_rows` sequences are decodes with one token each; prefills follow."""

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
