"""Small models for devices that cannot hold a real one, and real models reduced to the layers that fit."""

from dataclasses import replace
from typing import Literal

from capacity.base.errors import InvalidInput
from capacity.model import ModelSpec, load_model
from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward
from capacity.model.layers import Attention, LatentAttention, LayerGroup, Mixer
from capacity.model.quantization import find_format, uniform_scheme

_LAYERS = 6
_GROUPED = Attention(num_heads=8, num_kv_heads=2, head_dim=64)
_EXPERTS = MoEFeedForward(num_experts=8, experts_per_token=2, expert_intermediate_size=512)
_MIXERS: dict[str, Mixer] = {
    "tiny": _GROUPED,
    "tiny-mha": replace(_GROUPED, num_kv_heads=8),
    "tiny-mqa": replace(_GROUPED, num_kv_heads=1),
    "tiny-window": replace(_GROUPED, window_tokens=64),
    "tiny-moe": _GROUPED,
    "tiny-sinks": replace(_GROUPED, window_tokens=64, sinks=True, qkv_bias=True, output_bias=True),
    "tiny-gated": replace(_GROUPED, output_gate=True, qk_norm="full"),
    "tiny-chunked": replace(_GROUPED, window_tokens=40, chunked=True),
    "tiny-mla": LatentAttention(
        num_heads=8,
        kv_lora_rank=128,
        q_lora_rank=None,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
    ),
}
_FEED_FORWARDS: dict[str, FeedForward] = {
    "tiny-moe": _EXPERTS,
    "tiny-sinks": replace(_EXPERTS, expert_bias=True, router_bias=True),
    "tiny-gated": replace(_EXPERTS, shared_intermediate_size=256, shared_gate=True),
}
_FOUR_NORMS = ("tiny-gated",)


def small_model_names() -> tuple[str, ...]:
    return tuple(_MIXERS)


def small_model(name: str) -> ModelSpec:
    """Return a model of 6 layers and hidden size 512 in fp32: about 25 M parameters, a few ms per CPU step."""
    if name not in _MIXERS:
        raise InvalidInput(f"no small model {name!r}; known: {', '.join(_MIXERS)}")
    full = find_format("fp32")
    group = LayerGroup(
        layers=tuple(range(_LAYERS)),
        mixer=_MIXERS[name],
        feed_forward=_FEED_FORWARDS.get(name, DenseFeedForward(intermediate_size=1536)),
    )
    return ModelSpec(
        name=f"validate-{name}",
        hf_id=None,
        model_type="llama",
        hidden_size=512,
        vocab_size=4096,
        layer_groups=(group,),
        max_position_embeddings=8192,
        dtype="fp32",
        norms_per_layer=4 if name in _FOUR_NORMS else 2,
        checkpoint=uniform_scheme("fp32", full, base=full),
        source="made for the validation harness",
    )


def find_model(name: str) -> ModelSpec:
    """Return a small model by name, or any model that `load_model` supports."""
    return small_model(name) if name in _MIXERS else load_model(name)


def change_dtype(model: ModelSpec, dtype: Literal["bf16", "fp16", "fp32"]) -> ModelSpec:
    """Return a model whose weights are all stored and computed in `dtype`."""
    stored = find_format(dtype)
    return replace(model, dtype=dtype, checkpoint=uniform_scheme(dtype, stored, base=stored))


def cut_layers(model: ModelSpec, layers: int) -> ModelSpec:
    """Return a model with only the first `layers` layers. Times of two such models are extrapolated to all layers."""
    if layers >= model.num_layers:
        return model
    if layers < 1:
        raise InvalidInput(f"a model needs at least 1 layer, not {layers}")
    groups = [
        replace(group, layers=tuple(index for index in group.layers if index < layers))
        for group in model.layer_groups
    ]
    return replace(
        model, name=f"{model.name}[{layers} layers]", layer_groups=tuple(g for g in groups if g.layers)
    )


def layers_that_fit(model: ModelSpec, memory_bytes: float) -> int:
    """Return the number of layers whose weights fit in memory with embedding and head, in the model's dtype."""
    item = 4 if model.dtype == "fp32" else 2
    outside = sum(part.params for part in model.parameter_parts() if not part.layers) * item
    inside = (model.total_params * item - outside) / model.num_layers
    return max(0, min(model.num_layers, int((memory_bytes - outside) / inside)))


def extrapolate_seconds(*, few: int, few_s: float, more: int, more_s: float, layers: int) -> float:
    """Return the seconds at `layers` layers, linearly extrapolated from the times at two depths, `few` and `more`."""
    per_layer = (more_s - few_s) / (more - few)
    return more_s + (layers - more) * per_layer
