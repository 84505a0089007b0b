"""The feed-forward of a layer, dense or routed, by the rules of each family's code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from capacity.base.fields import Fields
from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward

FeedForwardRule: TypeAlias = Callable[[Fields, int], FeedForward]
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "top_k",
)


def dense(text: Fields, _layer: int) -> DenseFeedForward:
    return DenseFeedForward(intermediate_size=text.count("intermediate_size", "ffn_hidden_size"))


def _routed(text: Fields, *, width: int, shared: int = 0, **traits: bool) -> MoEFeedForward:
    experts = _expert_count(text)
    chosen = text.count(*_EXPERTS_PER_TOKEN)
    if chosen > experts:
        raise text.problem("num_experts_per_tok", f"{chosen} of {experts} experts")
    return MoEFeedForward(
        num_experts=experts,
        experts_per_token=chosen,
        expert_intermediate_size=width,
        shared_intermediate_size=shared,
        **traits,
    )


def _expert_count(text: Fields) -> int:
    for key in _EXPERTS:
        listed = text.values.get(key)
        if isinstance(listed, list):
            raise text.problem(key, "a different number of experts by layer is not supported")
    return text.count("n_routed_experts", *_EXPERTS)


def all_routed(text: Fields, _layer: int) -> MoEFeedForward:
    """Mixtral, MiniMax-M2: every layer."""
    return _routed(text, width=text.count("moe_intermediate_size", "intermediate_size"))


def gpt_oss(text: Fields, _layer: int) -> MoEFeedForward:
    return _routed(text, width=text.count("intermediate_size"), expert_bias=True, router_bias=True)


def deepseek(text: Fields, layer: int) -> FeedForward:
    """Dense in the first `first_k_dense_replace` layers, then routed with `n_shared_experts` shared ones."""
    frequency = text.count("moe_layer_freq", default=1)
    if layer < text.count("first_k_dense_replace", default=0, minimum=0) or layer % frequency:
        return dense(text, layer)
    width = text.count("moe_intermediate_size")
    shared = text.count("n_shared_experts", "moe_num_shared_experts", default=0, minimum=0)
    return _routed(text, width=width, shared=shared * width)


def deepseek_balanced(text: Fields, layer: int) -> FeedForward:
    """DeepSeek-V3 and after: `e_score_correction_bias` beside the router, balanced without an auxiliary loss."""
    return _balanced(deepseek(text, layer))


def minimax(text: Fields, layer: int) -> FeedForward:
    """MiniMax-M2: every layer, with such a bias (`use_routing_bias`)."""
    return _balanced(all_routed(text, layer))


def _balanced(part: FeedForward) -> FeedForward:
    return replace(part, balanced_router=True) if isinstance(part, MoEFeedForward) else part


def qwen(text: Fields, layer: int) -> FeedForward:
    """Routed in every `decoder_sparse_step`-th layer except `mlp_only_layers`."""
    dense_layers = text.items("mlp_only_layers") or []
    if layer in dense_layers or (layer + 1) % text.count("decoder_sparse_step", default=1):
        return dense(text, layer)
    shared = text.count("shared_expert_intermediate_size", default=0, minimum=0)
    return _routed(text, width=text.count("moe_intermediate_size"), shared=shared, shared_gate=shared > 0)


def llama4(text: Fields, layer: int) -> FeedForward:
    """Routed in every `interleave_moe_layer_step`-th layer or those of `moe_layers`, with one shared expert."""
    listed = text.items("moe_layers")
    step = text.count("interleave_moe_layer_step", default=1)
    routed = layer in listed if listed else not (layer + 1) % step
    if not routed:
        return DenseFeedForward(intermediate_size=text.count("intermediate_size_mlp"))
    width = text.count("intermediate_size")
    return _routed(text, width=width, shared=width)
