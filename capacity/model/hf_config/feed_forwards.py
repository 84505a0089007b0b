"""Functions that return the feed-forward of a layer, dense or routed, as the code of each model family builds it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from capacity.base.fields import Fields
from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward
from capacity.model.hf_config.field_names import NAMES

FeedForwardRule: TypeAlias = Callable[[Fields, int], FeedForward]
WIDTH, EXPERTS = NAMES["width"], NAMES["experts"]
SHARED_WIDTH = ("shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size")
EXPERTS_PER_TOKEN, SHARED_EXPERTS = NAMES["experts_per_token"], NAMES["shared_experts"]


def layer_count(text: Fields, layer: int, *keys: str, **limits: int) -> int | None:
    """Return a layer's value of the first config field in `keys` that exists; None if none exists.

    The field is one number for all layers, or a list with a number for each layer.
    """
    for key in keys:
        listed = text.items(key) if isinstance(text.values.get(key), list) else None
        if listed is None:
            continue
        if not layer < len(listed):
            raise text.problem(key, f"{len(listed)} entries, and none for layer {layer}")
        return text.update({key: listed[layer]}).count(key, **limits)
    return text.optional_count(*keys, **limits)


def required_layer_count(text: Fields, layer: int, *keys: str) -> int:
    """Return the result of `layer_count`; raises MalformedFile if the config has none of the fields `keys`."""
    found = layer_count(text, layer, *keys)
    return text.count(*keys) if found is None else found


def dense(text: Fields, layer: int) -> DenseFeedForward:
    """Return a gated feed-forward without biases; the config may list the width by layer (Gemma 3n)."""
    return DenseFeedForward(intermediate_size=required_layer_count(text, layer, *WIDTH))


def with_biases(text: Fields, layer: int, *, key: str) -> DenseFeedForward:
    """Return a gated feed-forward, with biases if the config's flag `key` is set."""
    return replace(dense(text, layer), bias=text.flag(key))


dense_biased = partial(with_biases, key="mlp_bias")


def plain(text: Fields, layer: int, *, bias: bool | tuple[str, bool] = False) -> DenseFeedForward:
    """Return a feed-forward without a gate; the default width is four times the hidden size."""
    width = layer_count(text, layer, *WIDTH) or 4 * text.count("hidden_size", "n_embd", "d_model")
    has = bias if isinstance(bias, bool) else text.flag(bias[0], default=bias[1])
    return DenseFeedForward(intermediate_size=width, gated=False, bias=has)


def routed_experts(text: Fields, layer: int, *, width: int, shared: int = 0, **traits: Any) -> MoEFeedForward:
    """Return routed experts of this width; the config has the number of experts, and the number that a token uses."""
    experts = layer_count(text, layer, "n_routed_experts", *EXPERTS) or text.count(*EXPERTS)
    chosen = required_layer_count(text, layer, *EXPERTS_PER_TOKEN)
    if chosen > experts + traits.get("zero_experts", 0):
        raise text.problem("num_experts_per_tok", f"{chosen} of {experts} experts")
    return MoEFeedForward(
        num_experts=experts,
        experts_per_token=chosen,
        expert_intermediate_size=width,
        shared_intermediate_size=shared,
        **traits,
    )


def expert_width(text: Fields, layer: int) -> int:
    """Return the width of one routed expert; default: the width of the dense feed-forward."""
    width = layer_count(text, layer, "moe_intermediate_size", "expert_ffn_hidden_size", "expert_hidden_size")
    return required_layer_count(text, layer, *WIDTH) if width is None else width


def all_routed(text: Fields, layer: int) -> MoEFeedForward:
    """Return routed experts (Mixtral, OLMoE, Granite), plus a shared one if `shared_intermediate_size` is set."""
    shared = text.count("shared_intermediate_size", default=0, minimum=0)
    return routed_experts(text, layer, width=expert_width(text, layer), shared=shared)


def gpt_oss(text: Fields, layer: int) -> MoEFeedForward:
    return routed_experts(
        text, layer, width=text.count("intermediate_size"), expert_bias=True, router_bias=True
    )


def leading_dense(
    text: Fields, layer: int, *, first: tuple[str, ...] = (), balanced: bool = False
) -> FeedForward:
    """Return DeepSeek's feed-forward: dense in the first layers, then routed with `n_shared_experts` shared experts.

    `first`: names of fields that give the number of dense layers. `balanced`: the router has an
    `e_score_correction_bias` instead of an auxiliary loss (DeepSeek-V3 and later).
    """
    frequency = text.count("moe_layer_freq", default=1)
    if layer < text.count(*first, default=0, minimum=0) or layer % frequency:
        return dense(text, layer)
    width = text.count("moe_intermediate_size")
    shared = layer_count(text, layer, *SHARED_EXPERTS, minimum=0) or 0
    return routed_experts(text, layer, width=width, shared=shared * width, balanced_router=balanced)


def minimax(text: Fields, layer: int) -> FeedForward:
    """Return MiniMax-M2's routed experts, for all layers; the router has a bias (`use_routing_bias`) and uses 32 bit.

    Source: vLLM's `minimax_m2.py` and its pull request 52668, SGLang's `minimax_m2.py`.
    """
    return replace(all_routed(text, layer), balanced_router=True, router_in_fp32=True)


def qwen(text: Fields, layer: int) -> FeedForward:
    """Return Qwen's feed-forward, which is routed in each `decoder_sparse_step`-th layer, else dense.

    Layers in `mlp_only_layers` are dense.
    """
    dense_layers = text.items("mlp_only_layers") or []
    if layer in dense_layers or (layer + 1) % text.count("decoder_sparse_step", default=1):
        return dense(text, layer)
    shared = text.count("shared_expert_intermediate_size", default=0, minimum=0)
    width = text.count("moe_intermediate_size")
    return routed_experts(text, layer, width=width, shared=shared, shared_gate=shared > 0)


def llama4(text: Fields, layer: int) -> FeedForward:
    """Return routed experts and a shared expert, or a dense feed-forward (Llama 4).

    Layers with experts are listed in `moe_layers`; without it, each `interleave_moe_layer_step`-th layer has experts.
    """
    listed = text.items("moe_layers")
    step = text.count("interleave_moe_layer_step", default=1)
    has_experts = layer in listed if listed else not (layer + 1) % step
    if not has_experts:
        return DenseFeedForward(intermediate_size=text.count("intermediate_size_mlp"))
    width = text.count("intermediate_size")
    return routed_experts(text, layer, width=width, shared=width)


def by_list_scored_in_fp32(text: Fields, layer: int) -> FeedForward:
    """Return the feed-forward as `by_list` does, with a router that computes in 32 bit (MiniMax-M3, Hunyuan 3)."""
    part = by_list(text, layer)
    return replace(part, router_in_fp32=True) if isinstance(part, MoEFeedForward) else part


def by_list(text: Fields, layer: int) -> FeedForward:
    """Return the feed-forward, dense or routed, that the config lists for this layer in `mlp_layer_types`.

    Without this list, `moe_layer_freq` or `first_k_dense_replace` is used. The router has a bias that balances the
    experts, as in DeepSeek-V3.
    """
    kinds = text.items("mlp_layer_types")
    listed = text.values.get("moe_layer_freq")
    if kinds is None and isinstance(listed, list):  # 1 where a layer is routed
        kinds = ["sparse" if each else "dense" for each in listed]
    if kinds is None:
        first = text.count("first_k_dense_replace", default=0, minimum=0)
        kinds = ["dense"] * first + ["sparse"] * (layer + 1)
    if not layer < len(kinds):
        raise text.problem("mlp_layer_types", f"{len(kinds)} entries, and none for layer {layer}")
    if kinds[layer] == "dense":
        wide = text.optional_count("dense_intermediate_size")
        return dense(text, layer) if wide is None else DenseFeedForward(intermediate_size=wide)
    width = expert_width(text, layer)
    shared = text.optional_count(*SHARED_WIDTH, minimum=0)
    if shared is None:
        shared = width * (text.optional_count(*SHARED_EXPERTS, minimum=0) or 0)
    narrow = text.optional_count("moe_latent_size", "routed_expert_hidden_size") or 0
    return routed_experts(text, layer, width=width, shared=shared, balanced_router=True, latent_size=narrow)


def ernie(text: Fields, layer: int) -> FeedForward:
    """Return routed experts in some layers, else a dense feed-forward (ERNIE).

    Every `moe_layer_interval`-th layer from `moe_layer_start_index` to `moe_layer_end_index` has experts.
    """
    first = text.count("moe_layer_start_index", default=0, minimum=0)
    last = text.count("moe_layer_end_index", default=10**6, minimum=-1)
    every = text.count("moe_layer_interval", default=1)
    bias = text.flag("use_bias")
    if not first <= layer <= (10**6 if last == -1 else last) or (layer + 1) % every:
        return replace(dense(text, layer), bias=bias)
    width = text.count("moe_intermediate_size")
    shared = width * (layer_count(text, layer, *SHARED_EXPERTS, minimum=0) or 0)
    return routed_experts(text, layer, width=width, shared=shared, balanced_router=True)


def hunyuan(text: Fields, layer: int) -> FeedForward:
    """Return Hunyuan's routed experts, which every layer has in parallel with a dense feed-forward."""
    shared = (layer_count(text, layer, *SHARED_EXPERTS, minimum=0) or 1) * text.count("intermediate_size")
    return routed_experts(text, layer, width=expert_width(text, layer), shared=shared)
