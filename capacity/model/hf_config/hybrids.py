"""Models with recurrences: Mamba, Mamba-2, lightning and Kimi Delta Attention, and their hybrids with attention.

Parameter counts equal those of the modules of transformers 5.23, read 2026-11. As in vLLM, the recurrence's state has
the dtype `mamba_ssm_cache_dtype` (default 32 bit), and the convolution's last inputs have 16 bit.
"""

import math
from collections.abc import Callable
from functools import partial

from capacity.base.fields import Fields
from capacity.model.feed_forward import DenseFeedForward, FeedForward, NoFeedForward
from capacity.model.hf_config import feed_forwards, windows
from capacity.model.hf_config.family import Family, MixerRule
from capacity.model.hf_config.mixers import HEADS, HIDDEN, grouped_query, latent
from capacity.model.layers import Mixer
from capacity.model.parts import Divided, Product
from capacity.model.recurrent import NoMixer, ParallelMixer, Recurrence

PATTERN = {"M": "mamba", "E": "moe", "-": "mlp", "*": "attention"}
KIMI_SIZES = {
    "num_heads": "linear_num_heads", "head_dim": "linear_head_dim", "short_conv_kernel_size": "linear_conv_kernel_dim"
}  # fmt: skip


def _state_bytes(text: Fields) -> int:
    """Return the bytes of one value of the recurrent state: 2 or 4."""
    named = text.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype", default="float32")
    return 2 if named in ("bfloat16", "float16") else 4


def _product(name: str, rows: int, columns: int, divided: Divided = "rows", *, bias: bool = False) -> Product:
    return Product(name=name, kind="linear_attention", rows=rows, columns=columns, divided=divided, bias=bias)


def mamba2(text: Fields) -> Recurrence:
    """Return Mamba-2's recurrence.

    Projection h → 2·inner + 2·groups·state + heads, convolution over inner + 2·groups·state, projection inner → h.
    """
    hidden = text.count(*HIDDEN)
    heads = text.count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
    expand = text.count("mamba_expand", "expand", default=2)
    width = None
    if text.values.get("mamba_d_head") != "auto":
        width = text.optional_count("mamba_head_dim", "mamba_d_head", "mamba_headdim")
    if width is None and text.has("num_heads"):
        width = text.optional_count("head_dim")
    inner = text.optional_count("mamba_d_ssm") or heads * (width or expand * hidden // heads)
    groups = text.count("n_groups", "mamba_n_groups", "mamba_ngroups", default=1)
    state = text.count("ssm_state_size", "mamba_d_state", "state_size")
    kernel = text.count("conv_kernel", "mamba_d_conv", default=4)
    bias = text.flag("mamba_proj_bias", default=text.flag("use_bias"))
    convolved = inner + 2 * groups * state
    has_bias = text.flag("use_conv_bias", default=text.flag("mamba_conv_bias", default=True))
    norm = inner if text.flag("mamba_rms_norm", default=True) else 0
    products = (
        _product("mixer.in_proj", inner + convolved + heads, hidden, bias=bias),
        _product("mixer.out_proj", hidden, inner, "columns", bias=text.flag("projectors_bias", default=bias)),
    )
    return Recurrence(
        kind="mamba2",
        num_heads=heads,
        products=products,
        vector_values=convolved * (kernel + has_bias) + 3 * heads + norm,
        state_values=inner * state,
        convolution_values=convolved * (kernel - 1),
        flops_per_token=6.0 * inner * state,
        state_bytes_per_value=_state_bytes(text),
    )


def mamba1(text: Fields, *, normed: bool = False) -> Recurrence:
    """Return Mamba's recurrence.

    Projections h → 2·inner, inner → dt_rank + 2·state, dt_rank → inner and inner → h, and a convolution over inner.
    `normed`: also norms over dt_rank + 2·state (Jamba).
    """
    hidden = text.count(*HIDDEN)
    expand = text.count("mamba_expand", "expand", default=2)
    inner = expand * hidden
    if text.text("model_type") in ("mamba", "falcon_mamba"):
        inner = text.count("intermediate_size", default=inner)
    state = text.count("mamba_d_state", "state_size")
    kernel = text.count("mamba_d_conv", "conv_kernel", default=4)
    rank = math.ceil(hidden / 16)
    for key in ("mamba_dt_rank", "time_step_rank"):
        if text.has(key) and text.values[key] != "auto":
            rank = text.count(key)
    bias = text.flag("mamba_proj_bias", default=text.flag("use_bias"))
    has_bias = text.flag("mamba_conv_bias", default=text.flag("use_conv_bias", default=True))
    return Recurrence(
        kind="mamba",
        num_heads=inner,
        products=(
            _product("mixer.in_proj", 2 * inner, hidden, bias=bias),
            _product("mixer.x_proj", rank + 2 * state, inner, "columns"),
            _product("mixer.dt_proj", inner, rank, bias=True),
            _product("mixer.out_proj", hidden, inner, "columns", bias=bias),
        ),
        vector_values=inner * (kernel + has_bias + state + 1) + (rank + 2 * state if normed else 0),
        state_values=inner * state,
        convolution_values=inner * (kernel - 1),
        flops_per_token=9.0 * inner * state,
        state_bytes_per_value=_state_bytes(text),
    )


def _short_convolution(text: Fields) -> Recurrence:
    """Return LFM2's short convolution: projection h → 3h, convolution over `conv_L_cache` tokens, projection h → h."""
    hidden, kernel, bias = text.count(*HIDDEN), text.count("conv_L_cache"), text.flag("conv_bias")
    return Recurrence(
        kind="conv",
        num_heads=hidden,
        products=(
            _product("conv.in_proj", 3 * hidden, hidden, bias=bias),
            _product("conv.out_proj", hidden, hidden, "columns", bias=bias),
        ),
        vector_values=hidden * (kernel + bias),
        state_values=0,
        convolution_values=hidden * (kernel - 1),
        flops_per_token=2.0 * hidden * (kernel + 2),
    )


def _lightning_attention(text: Fields) -> Recurrence:
    """Return MiniMax-Text-01's lightning attention: gated heads of size d, each with a d x d state."""
    hidden, heads = text.count(*HIDDEN), text.count(*HEADS)
    head = text.optional_count("head_dim") or hidden // heads
    width = heads * head
    return Recurrence(
        kind="lightning",
        num_heads=heads,
        products=(
            _product("self_attn.qkv_proj", 3 * width, hidden),
            _product("self_attn.output_gate", width, hidden),
            _product("self_attn.out_proj", hidden, width, "columns"),
        ),
        vector_values=width,
        state_values=heads * head * head,
        convolution_values=0,
        flops_per_token=6.0 * width * head,
    )


def _kimi_delta(text: Fields) -> Recurrence:
    """Return Kimi Delta Attention: a delta rule with a decay gate per channel; gates usually have low rank."""
    hidden, config = text.count(*HIDDEN), text.section("linear_attn_config")
    if config is None:
        own = {name: text.values.get(key) for name, key in KIMI_SIZES.items()}
        config = Fields(own, text.origin, prefix=f"{text.prefix}linear_attn_config.")
    heads, head = config.count("num_heads"), config.count("head_dim")
    kernel, width = config.count("short_conv_kernel_size", default=4), heads * head

    gate = [_product("self_attn.g_a_proj", head, hidden, "none"), _product("self_attn.g_b_proj", width, head)]
    if config.flag("use_full_rank_gate"):
        gate = [_product("self_attn.g_proj", width, hidden)]
    return Recurrence(
        kind="kda",
        num_heads=heads,
        products=(
            *(_product(f"self_attn.{name}_proj", width, hidden) for name in "qkv"),
            _product("self_attn.f_a_proj", head, hidden, "none"),
            _product("self_attn.f_b_proj", width, head),
            _product("self_attn.b_proj", heads, hidden),
            *gate,
            _product("self_attn.o_proj", hidden, width, "columns"),
        ),
        vector_values=3 * width * kernel + width + heads + head,
        state_values=width * head,
        convolution_values=3 * width * (kernel - 1),
        flops_per_token=8.0 * width * head,
    )


def _layer_kinds(text: Fields) -> list[str]:
    """Return the kind of each layer of Nemotron-H, from the letters or the names of kinds in the config."""
    letters = text.text("hybrid_override_pattern")
    if letters:
        unknown = sorted(set(letters) - set(PATTERN))
        if unknown:
            raise text.problem("hybrid_override_pattern", f"{unknown[0]!r} is not one of M, E, - and *")
        return [PATTERN[letter] for letter in letters]
    listed = text.items("layers_block_type") or []
    if not listed:
        raise text.problem("hybrid_override_pattern", "missing; it must list the kind of each layer")
    renamed = {"linear_attention": "mamba", "full_attention": "attention"}
    kinds = [renamed.get(str(each), str(each)) for each in listed]
    for kind in kinds:
        if kind not in PATTERN.values():
            raise text.problem("layers_block_type", f"{kind!r} is not one of {', '.join(PATTERN.values())}")
    return kinds


def nemotron_layers(text: Fields) -> int:
    return len(_layer_kinds(text))


def nemotron_mixer(text: Fields, family: Family, layer: int) -> Mixer:
    match _layer_kinds(text)[layer]:
        case "mamba":
            return mamba2(text)
        case "attention":
            return grouped_query(text, family, layer)
        case _:
            return NoMixer()


def nemotron_feed_forward(text: Fields, layer: int) -> FeedForward:
    """Return Nemotron-H's feed-forward, dense or routed, without a gate; experts may work in a latent space."""
    kind = _layer_kinds(text)[layer]
    if kind == "mlp":
        return DenseFeedForward(
            intermediate_size=feed_forwards.required_layer_count(text, layer, "intermediate_size"),
            gated=False,
            bias=text.flag("mlp_bias"),
        )
    if kind != "moe":
        return NoFeedForward()
    shared = text.count("moe_shared_expert_intermediate_size", default=0, minimum=0)
    return feed_forwards.routed_experts(
        text,
        layer,
        width=text.count("moe_intermediate_size"),
        shared=shared * text.count("n_shared_experts", default=1, minimum=0),
        gated=False,
        balanced_router=True,
        latent_size=text.count("moe_latent_size", default=0, minimum=0),
    )


def _is_attention(text: Fields, layer: int) -> bool:
    """Return whether this layer has attention, from the first config field that lists or counts such layers."""
    kind = windows.layer_type(text, layer)
    if kind is not None:
        return kind.endswith("attention") and kind != "linear_attention"
    for key in ("attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids"):
        if text.has(key):
            return layer in (text.items(key) or [])
    if text.has("attn_layer_period"):
        offset = text.count("attn_layer_offset", default=0, minimum=0)
        return layer % text.count("attn_layer_period") == offset
    named = text.entry_of_layer("layers_block_type", layer)
    if named is not None:
        return str(named) in ("attention", "full_attention", "hybrid")
    return bool(text.entry_of_layer("attn_type_list", layer) == 1)


def _make_uniform_rule(recurrence: Callable[[Fields], Recurrence]) -> MixerRule:
    """Return a function that returns this recurrence as the mixer of every layer."""
    return lambda text, _family, _layer: recurrence(text)


def _make_hybrid_rule(recurrence: Callable[[Fields], Recurrence]) -> MixerRule:
    """Return a function that returns a layer's mixer: grouped-query attention, or this recurrence."""

    def mixer(text: Fields, family: Family, layer: int) -> Mixer:
        return grouped_query(text, family, layer) if _is_attention(text, layer) else recurrence(text)

    return mixer


mamba1_mixer, mamba2_mixer = _make_uniform_rule(mamba1), _make_uniform_rule(mamba2)
mamba1_hybrid, mamba2_hybrid = _make_hybrid_rule(partial(mamba1, normed=True)), _make_hybrid_rule(mamba2)
lightning_hybrid, convolution_hybrid = (
    _make_hybrid_rule(_lightning_attention),
    _make_hybrid_rule(_short_convolution),
)


def grouped_lightning(text: Fields, family: Family, layer: int) -> Mixer:
    """Return Ring-linear's mixer: softmax attention in every `layer_group_size`-th layer, else lightning attention.

    Source: vLLM 0.33.0 wheel, model_executor/models/bailing_moe_linear.py, is_linear_layer.
    """
    if (layer + 1) % text.count("layer_group_size"):
        return _lightning_attention(text)
    return (latent if text.has("kv_lora_rank") else grouped_query)(text, family, layer)


def kimi_hybrid(text: Fields, family: Family, layer: int) -> Mixer:
    config = text.section("linear_attn_config")
    listed = config.items("full_attn_layers") if config is not None else None
    full = (layer + 1) in listed if listed is not None else _is_attention(text, layer)
    return latent(text, family, layer) if full else _kimi_delta(text)


def falcon_h1(text: Fields, family: Family, layer: int) -> Mixer:
    recurrence = mamba2(text.update({"mamba_rms_norm": False, **text.values}))
    return ParallelMixer(attention=grouped_query(text, family, layer), recurrence=recurrence)


def jamba_feed_forward(text: Fields, layer: int) -> FeedForward:
    """Return Jamba's feed-forward: experts in every `expert_layer_period`-th layer, else dense."""
    period = text.count("expert_layer_period", default=2)
    offset = text.count("expert_layer_offset", default=1, minimum=0)
    if layer % period != offset or text.count("num_experts", default=16) == 1:
        return feed_forwards.dense(text, layer)
    return feed_forwards.all_routed(text, layer)


def granite_feed_forward(text: Fields, layer: int) -> FeedForward:
    """Return Granite's feed-forward: routed experts with a shared one, or dense if the config has no experts."""
    shared = text.count("shared_intermediate_size", default=text.count("intermediate_size"))
    if not text.count("num_local_experts", default=0, minimum=0):
        return DenseFeedForward(intermediate_size=shared)
    return feed_forwards.routed_experts(text, layer, width=text.count("intermediate_size"), shared=shared)


def lfm2_feed_forward(text: Fields, _layer: int) -> DenseFeedForward:
    """Return LFM2's dense feed-forward; its width is 2/3 of the config's width times a factor, rounded up."""
    width = text.count("intermediate_size", "block_ff_dim")
    if text.flag("block_auto_adjust_ff_dim", default=True):
        factor = text.number("block_ffn_dim_multiplier", default=1.0, minimum=0.0, maximum=100.0)
        multiple = text.count("block_multiple_of", default=256)
        width = -(-int(factor * int(2 * width / 3)) // multiple) * multiple
    return DenseFeedForward(intermediate_size=width)


def no_feed_forward(_text: Fields, _layer: int) -> NoFeedForward:
    return NoFeedForward()
