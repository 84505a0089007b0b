"""What parallelism costs: idle stages, bytes sent, uneven experts. Closed forms."""

from __future__ import annotations

from capacity.base.errors import InvalidInput
from capacity.model import ModelSpec
from capacity.model.feed_forward import MoEFeedForward
from capacity.step.operators import ROUTING_EVENNESS, busiest_pairs, distinct_experts


def pipeline_bubble_fraction(stages: int, micro_batches: int) -> float:
    """Idle share of a pipeline that is filled and drained once: (p - 1)/(m + p - 1).

    In continuous serving micro-batches follow each other without a drain, so this is an upper bound: what is left
    is their unevenness. Source: Huang et al., GPipe, arXiv 1811.06965.
    """
    if stages < 1 or micro_batches < 1:
        raise InvalidInput(f"{stages} stages and {micro_batches} micro-batches: both must be at least 1")
    return (stages - 1) / (micro_batches + stages - 1)


def pipeline_idle_fraction(stages: int, micro_batches: int) -> float:
    """Idle share of a pipeline round which `micro_batches` circle for ever: 1 - m/p while there are too few of them.

    Decode is this: each micro-batch needs its own token before its next step, so fewer than p leave stages empty.
    """
    if stages < 1 or micro_batches < 1:
        raise InvalidInput(f"{stages} stages and {micro_batches} micro-batches: both must be at least 1")
    return max(0.0, 1.0 - micro_batches / stages)


def all_reduce_bytes_per_token(
    hidden_size: int, layers: int, ranks: int, *, value_bytes: float = 2.0
) -> float:
    """Bytes that each rank sends for one token under tensor parallelism: two all-reduces a layer, 2(n-1)/n each."""
    if ranks < 1:
        raise InvalidInput(f"{ranks} ranks: must be at least 1")
    return 2 * layers * 2 * (ranks - 1) / ranks * hidden_size * value_bytes


def expert_imbalance(
    num_experts: int, experts_per_token: int, tokens: int, ranks: int, evenness: float = ROUTING_EVENNESS
) -> float:
    """Token-expert pairs of the busiest expert-parallel rank over the mean: chance, and experts of unequal popularity.

    As the step model has it (`busiest_pairs`, and `routing_evenness` of a model's experts); no balancing by replicas
    of popular experts.
    """
    if tokens < 1 or ranks < 1 or not 1 <= experts_per_token <= num_experts:
        raise InvalidInput(
            f"{tokens} tokens on {ranks} ranks, {experts_per_token} of {num_experts} experts: out of range"
        )
    pairs = float(tokens * experts_per_token)
    return busiest_pairs(pairs, ranks, num_experts / ranks, evenness) / (pairs / ranks)


def experts_touched(
    num_experts: int, experts_per_token: int, tokens: int, evenness: float = ROUTING_EVENNESS
) -> float:
    """Expected number of different experts whose weights a step of `tokens` tokens reads."""
    return distinct_experts(num_experts, experts_per_token, tokens, evenness)


def routed_experts(model: ModelSpec) -> MoEFeedForward | None:
    """The experts of a mixture's layers; None for a dense model."""
    parts = (group.feed_forward for group in model.layer_groups)
    return next((part for part in parts if isinstance(part, MoEFeedForward)), None)
