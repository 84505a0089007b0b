"""Functions for decoders whose layers have parameters in addition to attention and feed-forward."""

from dataclasses import replace

from capacity.base.fields import Fields
from capacity.model.feed_forward import DenseFeedForward, FeedForward, NoFeedForward
from capacity.model.hf_config import feed_forwards, windows
from capacity.model.hf_config.family import Family, Flag, LayerExtras, flag_value
from capacity.model.hf_config.mixers import HEADS, HIDDEN, grouped_query
from capacity.model.layers import Attention, Mixer
from capacity.model.parameter_part import ParameterPart
from capacity.model.parts import Product, matrix, vector
from capacity.model.recurrent import NoMixer


def positions(text: Fields, *, keys: tuple[str, ...], added: int = 0) -> tuple[ParameterPart, ...]:
    """Return learned position embeddings: the number of vectors in the config's field `keys`, plus `added` vectors."""
    rows = text.count(*keys) + added
    return (matrix("embed_positions", "norm", rows, text.count(*HIDDEN), (), sharding="replicated"),)


def head_bias(text: Fields, *, present: Flag) -> tuple[ParameterPart, ...]:
    """Return the bias of the LM head: one value per token of the vocabulary."""
    if not flag_value(text, present):
        return ()
    return (vector("lm_head.bias", "bias", text.count("vocab_size"), (), sharding="vocabulary"),)


def embedding_norm(text: Fields) -> tuple[ParameterPart, ...]:
    """Return BLOOM's norm over the token embeddings: a scale and a bias per hidden value."""
    return (vector("word_embeddings_layernorm", "norm", 2 * text.count(*HIDDEN), ()),)


def falcon_norms(text: Fields) -> int:
    """Return the number of norms per layer: 1 if attention and feed-forward are parallel and share it, else 2."""
    stated = text.optional_count("num_ln_in_parallel_attn")
    if stated is not None:
        return stated
    return 2 if text.flag("new_decoder_architecture") or not text.flag("parallel_attn", default=True) else 1


def stablelm_norms(text: Fields) -> int:
    """Return the number of norms per layer: 1 if attention and feed-forward are parallel, else 2."""
    return 1 if text.flag("use_parallel_residual") else 2


def same_extras(_text: Fields, _layer: int, *, norms: int | None = None, values: int = 0) -> LayerExtras:
    """Return the same additional parameters for each layer: `norms` (None: the usual number), and `values` others."""
    return LayerExtras(norms=norms, vector_values=values)


def bitnet_feed_forward(text: Fields, layer: int) -> DenseFeedForward:
    """Return BitNet's gated feed-forward, which has a norm before its down projection."""
    return replace(feed_forwards.dense(text, layer), inner_norm=True)


def expert_scores(text: Fields, layer: int, *, first: str) -> LayerExtras:
    """Return one learned score per expert; the config field `first` names the first layer that has them."""
    routed = layer >= text.count(first, default=0, minimum=0)
    return LayerExtras(vector_values=text.count(*feed_forwards.EXPERTS) if routed else 0)


def head_gates(text: Fields, layer: int) -> LayerExtras:
    """Return the projection from the hidden state to one gate per attention head (Step 3.5)."""
    heads = feed_forwards.layer_count(text, layer, "num_attention_heads_per_layer", *HEADS)
    gate = Product(
        name="self_attn.g_proj",
        kind="attention",
        rows=heads or text.count(*HEADS),
        columns=text.count(*HIDDEN),
        divided="rows",
    )
    return LayerExtras(products=(gate,))


def laguna_extras(text: Fields, layer: int) -> LayerExtras:
    """Return the gates of attention heads and, in routed layers, one learned value per expert (Laguna)."""
    sparse = text.entry_of_layer("mlp_layer_types", layer) == "sparse"
    return replace(head_gates(text, layer), vector_values=text.count(*feed_forwards.EXPERTS) if sparse else 0)


def _indexer_sizes(text: Fields, layer: int) -> tuple[int, int]:
    """Return the number of heads and the head size of MiniMax-M3's block indexer; (0, 0) in a layer without one."""
    config = text.section("sparse_attention_config")
    if config is None:
        sparse = text.entry_of_layer("layer_types", layer) == "minimax_m3_sparse"
        heads = text.count("index_n_heads", default=0, minimum=0)
        width = text.count("index_head_dim", default=0, minimum=0)
    else:
        sparse = bool(config.entry_of_layer("sparse_attention_freq", layer))
        heads, width = config.count("sparse_num_index_heads"), config.count("sparse_index_dim")
    return (heads, width) if sparse else (0, 0)


def indexed_mixer(text: Fields, family: Family, layer: int) -> Attention:
    """Return MiniMax-M3's grouped-query attention; sparse layers also cache 16-bit keys of the block indexer.

    Source: vLLM 0.28.0 and 0.33.0 wheels, models/minimax_m3: one key for all heads, bf16 unless fp8 is requested.
    """
    return replace(grouped_query(text, family, layer), index_key_bytes=2 * _indexer_sizes(text, layer)[1])


def block_indexer(text: Fields, layer: int) -> LayerExtras:
    """Return the query and key projections of the block indexer; empty in layers without one."""
    heads, width = _indexer_sizes(text, layer)
    if not width:
        return LayerExtras()
    hidden = text.count(*HIDDEN)
    products = tuple(
        Product(name=f"self_attn.indexer.{name}_proj", kind="attention", rows=rows, columns=hidden)
        for name, rows in (("q", heads * width), ("k", width))
    )
    return LayerExtras(products=products, vector_values=2 * width)


def _first_shared_layer(text: Fields) -> int:
    """Return the index of the first layer that reads an earlier layer's KV cache instead of its own."""
    layers = text.count("num_hidden_layers")
    return layers - text.count("num_kv_shared_layers", default=0, minimum=0)


_GEMMA4_FIELDS = ("global_head_dim", "attention_k_eq_v", "use_double_wide_mlp", "enable_moe_block")


def gemma_mixer(text: Fields, family: Family, layer: int) -> Attention:
    own = grouped_query(text, family, layer)
    own = replace(own, shares_kv=layer >= _first_shared_layer(text))
    if own.window_tokens is not None or not text.has(*_GEMMA4_FIELDS):
        return own
    keys_are_values = text.flag("attention_k_eq_v")
    heads = text.optional_count("num_global_key_value_heads") if keys_are_values else None
    return replace(
        own,
        head_dim=text.count("global_head_dim", default=512),
        num_kv_heads=heads or own.num_kv_heads,
        keys_are_values=keys_are_values,
    )


def _per_layer_inputs(text: Fields) -> tuple[Product, ...]:
    """Return the two matrices that apply a per-layer embedding: from hidden size to its width (a gate), and back."""
    width, hidden = text.count("hidden_size_per_layer_input", default=0, minimum=0), text.count(*HIDDEN)
    if not width:
        return ()
    return (
        Product(name="per_layer_input_gate", kind="dense_ffn", rows=width, columns=hidden),
        Product(name="per_layer_projection", kind="dense_ffn", rows=hidden, columns=width),
    )


def per_layer_embeddings(text: Fields) -> tuple[ParameterPart, ...]:
    """Return the per-layer embedding tables, and the projection of the token embedding, which is added to them."""
    width, hidden = text.count("hidden_size_per_layer_input", default=0, minimum=0), text.count(*HIDDEN)
    if not width:
        return ()
    rows, columns = text.count("vocab_size_per_layer_input"), text.count("num_hidden_layers") * width
    return (
        matrix("embed_tokens_per_layer", "embedding", rows, columns, (), sharding="vocabulary"),
        matrix("per_layer_model_projection", "dense_ffn", columns, hidden, (), sharding="replicated"),
        vector("per_layer_projection_norm", "norm", width, ()),
    )


def gemma3n_extras(text: Fields, _layer: int) -> LayerExtras:
    """Return the additional parts of a Gemma 3n layer: AltUp, LAuReL and per-layer inputs."""
    hidden, inputs = text.count(*HIDDEN), text.count("altup_num_inputs", default=4)
    rank = text.count("laurel_rank", default=64)
    products = (
        Product(name="laurel.linear_left", kind="dense_ffn", rows=rank, columns=hidden),
        Product(name="laurel.linear_right", kind="dense_ffn", rows=hidden, columns=rank),
        Product(name="altup.modality_router", kind="dense_ffn", rows=inputs, columns=hidden),
        *_per_layer_inputs(text),
    )
    # eight norms: four, those after LAuReL, before the router, after the per-layer input, and AltUp's output scale
    return LayerExtras(products=products, vector_values=inputs**2 + inputs**3, norms=8)


def gemma3n_outside(text: Fields) -> tuple[ParameterPart, ...]:
    hidden, inputs = text.count(*HIDDEN), text.count("altup_num_inputs", default=4)
    rows = (inputs - 1) * hidden
    projections = (
        matrix(f"altup_{name}projections", "dense_ffn", rows, hidden, (), sharding="replicated")
        for name in ("", "unembed_")
    )
    return (*per_layer_embeddings(text), *projections)


def gemma4_feed_forward(text: Fields, layer: int) -> FeedForward:
    """Return Gemma 4's feed-forward: dense, or routed experts with the dense feed-forward as their shared expert."""
    dense = feed_forwards.dense(text, layer)
    if text.flag("use_double_wide_mlp") and layer >= _first_shared_layer(text):
        dense = replace(dense, intermediate_size=2 * dense.intermediate_size)
    if not text.flag("enable_moe_block"):
        return dense
    width = text.count("moe_intermediate_size")
    return feed_forwards.routed_experts(text, layer, width=width, shared=dense.intermediate_size)


def gemma4_extras(text: Fields, _layer: int) -> LayerExtras:
    """Return a layer's norms (4, +1 with per-layer inputs, +3 with experts), router scales and per-layer inputs."""
    routed, inputs = text.flag("enable_moe_block"), _per_layer_inputs(text)
    scales = text.count(*HIDDEN) + text.count(*feed_forwards.EXPERTS) if routed else 0
    return LayerExtras(products=inputs, vector_values=scales, norms=4 + bool(inputs) + 3 * routed)


def mimo_mixer(text: Fields, family: Family, layer: int) -> Attention:
    """Return MiMo's attention: values narrower than keys; windowed layers have sinks and other numbers of heads."""
    own = grouped_query(text, family, layer)
    own = replace(own, value_width=text.optional_count("v_head_dim"), output_bias=False)
    if own.window_tokens is None:
        return own
    return replace(
        own,
        num_heads=text.count("swa_num_attention_heads", default=own.num_heads),
        num_kv_heads=text.count("swa_num_key_value_heads", default=own.num_kv_heads),
        head_dim=text.count("swa_head_dim", default=own.head_dim),
        value_width=text.optional_count("swa_v_head_dim", "v_head_dim"),
        sinks=text.flag("add_swa_attention_sink_bias", default=True),
    )


def mimo_window(text: Fields, layer: int) -> int | None:
    windowed = text.entry_of_layer("hybrid_layer_pattern", layer)
    if windowed is None:
        return windows.uniform_window(text, layer)
    return text.optional_count("sliding_window_size", "sliding_window") if windowed else None


def step_mixer(text: Fields, family: Family, layer: int) -> Attention:
    own = grouped_query(text, family, layer)
    if own.window_tokens is None:
        return own
    other = text.section("attention_other_setting")
    heads = text.optional_count("num_sliding_attention_heads")
    kv_heads = None
    if other is not None:
        heads = other.optional_count("num_attention_heads") or heads
        kv_heads = other.optional_count("num_attention_groups")
    return replace(own, num_heads=heads or own.num_heads, num_kv_heads=kv_heads or own.num_kv_heads)


def step_feed_forward(text: Fields, layer: int) -> FeedForward:
    """Return routed experts in the layers of `moe_layers_enum` (Step 3), else a dense feed-forward.

    Without this field, the result is that of `by_list`.
    """
    enumerated = text.values.get("moe_layers_enum")
    if not isinstance(enumerated, str):
        return feed_forwards.by_list(text, layer)
    named = {int(each) for each in enumerated.split(",") if each.strip().isdigit()}
    if layer not in named:
        return feed_forwards.dense(text, layer)
    shared = text.count("share_expert_dim", default=0, minimum=0)
    return feed_forwards.routed_experts(text, layer, width=text.count("moe_intermediate_size"), shared=shared)


def step3_mixer(text: Fields, _family: Family, _layer: int) -> Attention:
    """Return Step 3's multi-matrix factorization attention: one KV head, and queries from a small latent."""
    return Attention(
        num_heads=text.count(*HEADS),
        num_kv_heads=text.count("num_attention_groups", default=1),
        head_dim=text.count("head_dim"),
    )


def step3_extras(text: Fields, _layer: int) -> LayerExtras:
    """Return the norm of Step 3's query latent.

    The two factors of the query projection are not counted here: `step3_mixer` counts one larger, full matrix.
    """
    return LayerExtras(vector_values=text.count("share_q_dim", default=0, minimum=0))


def _nas_block(text: Fields, layer: int) -> tuple[Fields, Fields]:
    stated = text.entry_of_layer("block_configs", layer)
    if not isinstance(stated, dict):
        count = len(text.items("block_configs") or [])
        raise text.problem("block_configs", f"{count} entries, and none for layer {layer}")
    block = Fields(stated, text.origin, prefix=f"{text.prefix}block_configs[{layer}].")
    attention, ffn = block.section("attention"), block.section("ffn")
    if attention is None or ffn is None:
        raise text.problem("block_configs", f"entry {layer} must have both attention and ffn")
    return attention, ffn


def nas_mixer(text: Fields, family: Family, layer: int) -> Mixer:
    attention, _ = _nas_block(text, layer)
    if attention.flag("no_op") or attention.flag("replace_with_linear"):
        return NoMixer()
    kv_heads = text.count(*HEADS) // attention.count("n_heads_in_group")
    return grouped_query(text.update({"num_key_value_heads": kv_heads}), family, layer)


def nas_feed_forward(text: Fields, layer: int) -> FeedForward:
    """Return the feed-forward that `block_configs` defines for this layer (Nemotron-NAS).

    `ffn_mult` sets the width, rounded up to a multiple of 256, as in Llama.
    """
    _, ffn = _nas_block(text, layer)
    if ffn.flag("no_op"):
        return NoFeedForward()
    if ffn.has("intermediate_size"):
        return DenseFeedForward(intermediate_size=ffn.count("intermediate_size"))
    multiple = ffn.number("ffn_mult", default=1.0, minimum=0.0, maximum=100.0)
    width = int(2 * multiple * text.count(*HIDDEN) / 3)
    return DenseFeedForward(intermediate_size=-(-width // 256) * 256)


def nas_extras(text: Fields, layer: int) -> LayerExtras:
    """Return the linear layers that replace attention or feed-forward, and the number of norms.

    Attention and feed-forward each have a norm, unless the config removes them (`no_op`).
    """
    attention, ffn = _nas_block(text, layer)
    hidden = text.count(*HIDDEN)
    linear = tuple(
        Product(name=f"{name}.linear_attn", kind="attention", rows=hidden, columns=hidden)
        for name, part in (("self_attn", attention), ("mlp", ffn))
        if part.flag("replace_with_linear")
    )
    return LayerExtras(products=linear, norms=sum(not part.flag("no_op") for part in (attention, ffn)))


def longcat_feed_forward(text: Fields, layer: int) -> FeedForward:
    """Return LongCat's feed-forward: dense; every second layer, from the first on, also has experts in parallel.

    Each layer of LongCat counts as two layers here, because it has two attentions and two dense feed-forwards. Some
    experts compute nothing.
    """
    dense = DenseFeedForward(intermediate_size=text.count("ffn_hidden_size"))
    if layer % 2:
        return dense
    return feed_forwards.routed_experts(
        text,
        layer,
        width=text.count("expert_ffn_hidden_size"),
        shared=dense.intermediate_size,
        zero_experts=text.count("zero_expert_num", default=0, minimum=0),
    )


def longcat_layers(text: Fields) -> int:
    return 2 * text.count("num_layers", "num_hidden_layers", maximum=windows.MAX_LAYERS)


def mllama_mixer(text: Fields, family: Family, layer: int) -> Attention:
    cross = layer in (text.items("cross_attention_layers") or [])
    own = grouped_query(text, family, layer)
    return replace(own, cross=True, qk_norm="per_head") if cross else own


def mllama_extras(text: Fields, layer: int) -> LayerExtras:
    """Return the two gates of a layer that attends to the image; other layers have none."""
    return LayerExtras(vector_values=2 if layer in (text.items("cross_attention_layers") or []) else 0)


def mllama_outside(text: Fields) -> tuple[ParameterPart, ...]:
    """Return the embeddings of eight image tokens, which have no row in the LM head."""
    return (matrix("embed_tokens.images", "norm", 8, text.count(*HIDDEN), (), sharding="replicated"),)
