"""Encoders, which only process a prompt (BERT and similar), and encoder-decoders (T5, BART and similar).

Parameter counts equal those of transformers 5.23, read 2026-11; encoders include the pooler, which engines load.
"""

from dataclasses import replace

from capacity.base.fields import Fields
from capacity.model.audio import CONVOLUTION
from capacity.model.feed_forward import DenseFeedForward, FeedForward
from capacity.model.hf_config import feed_forwards
from capacity.model.hf_config.family import Family, LayerExtras
from capacity.model.hf_config.mixers import HEADS, HIDDEN
from capacity.model.layers import Attention, Phase
from capacity.model.parameter_part import ParameterPart
from capacity.model.parts import matrix, vector
from capacity.model.vision_towers import linear

ENCODER, DECODER = ("num_layers", "encoder_layers"), ("num_decoder_layers", "decoder_layers")


def bert_mixer(text: Fields, _family: Family, layer: int) -> Attention:
    """Return bidirectional attention; in ModernBERT, two of three layers attend only to a window."""
    heads = text.count(*HEADS)
    every = text.optional_count("global_attn_every_n_layers")
    window = text.optional_count("local_attention") if every and layer % every else None
    hidden = text.count(*HIDDEN)
    bias = text.flag("attention_bias", default=not every)
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=text.optional_count("head_dim") or hidden // heads,
        window_tokens=window,
        qkv_bias=bias,
        output_bias=bias,
        causal=False,
    )


def nomic_mixer(text: Fields, family: Family, layer: int) -> Attention:
    return replace(bert_mixer(text, family, layer), qkv_bias=False, output_bias=False)


def bert_outside(text: Fields) -> tuple[ParameterPart, ...]:
    """Return the embeddings of positions and segment types, and the pooler.

    The norm of the embeddings is not included: `ModelSpec` counts it as the final norm.
    """
    hidden, rows = text.count(*HIDDEN), text.count("max_position_embeddings")
    rows += text.count("type_vocab_size", default=2, minimum=0)
    positions = matrix("embed_positions", "norm", rows, hidden, (), sharding="replicated")
    return positions, vector("pooler", "norm", hidden**2 + hidden, ())


def rotary_outside(text: Fields) -> tuple[ParameterPart, ...]:
    """Return the embeddings of segment types; encoders with rotary positions have no position embeddings."""
    rows = text.count("type_vocab_size", default=2, minimum=0)
    return (vector("embed_types", "norm", rows * text.count(*HIDDEN), ()),) if rows else ()


def modern_feed_forward(text: Fields, layer: int) -> DenseFeedForward:
    return replace(feed_forwards.dense(text, layer), bias=text.flag("mlp_bias"))


def modern_extras(_text: Fields, layer: int) -> LayerExtras:
    """Return the number of norms of a ModernBERT layer: 1 in the first (it reuses the embeddings' norm), else 2."""
    return LayerExtras(norms=1 if layer == 0 else 2)


def modern_outside(text: Fields) -> tuple[ParameterPart, ...]:
    return (vector("embeddings.norm", "norm", text.count(*HIDDEN), ()),)


# encoder-decoders: the encoder's layers come first


def _encoder_layers(text: Fields) -> int:
    return text.count(*ENCODER)


def all_layers(text: Fields) -> int:
    return _encoder_layers(text) + text.count(*DECODER, default=_encoder_layers(text))


def phase(text: Fields, layer: int) -> Phase:
    return "prompt" if layer < _encoder_layers(text) else "output"


def pair_mixer(text: Fields, _family: Family, layer: int, *, bias: bool) -> Attention:
    """Return the attention of an encoder layer (over the whole prompt) or a decoder layer (over output and prompt)."""
    encoder = phase(text, layer) == "prompt"
    side = "encoder" if encoder else "decoder"
    heads = text.count(f"{side}_attention_heads", *HEADS)
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=text.optional_count("d_kv") or text.count(*HIDDEN) // heads,
        qkv_bias=bias,
        output_bias=bias,
        causal=not encoder,
        crossed=not encoder,
    )


def t5_feed_forward(text: Fields, _layer: int) -> FeedForward:
    stated = text.text("feed_forward_proj", default="relu")
    gated = text.flag("is_gated_act", default=stated.startswith("gated"))
    return DenseFeedForward(intermediate_size=text.count("d_ff"), gated=gated)


def bart_feed_forward(text: Fields, layer: int) -> FeedForward:
    side = "encoder" if phase(text, layer) == "prompt" else "decoder"
    return DenseFeedForward(intermediate_size=text.count(f"{side}_ffn_dim"), gated=False, bias=True)


def pair_extras(text: Fields, layer: int) -> LayerExtras:
    """Return the number of norms of a layer: 2 in the encoder, 3 in the decoder, which also attends to the prompt."""
    return LayerExtras(norms=2 if phase(text, layer) == "prompt" else 3)


def t5_outside(text: Fields) -> tuple[ParameterPart, ...]:
    """Return the encoder's final norm, and the biases of relative positions in encoder and decoder."""
    buckets = text.count("relative_attention_num_buckets", default=32) * text.count(*HEADS)
    return (vector("relative_positions", "norm", text.count(*HIDDEN) + 2 * buckets, ()),)


def bart_outside(
    text: Fields, *, offset: int, embedding_norms: bool, final_norms: bool
) -> tuple[ParameterPart, ...]:
    """Return the position embeddings, and the norms outside of layers.

    The final norm is not included, because `ModelSpec` counts it.
    """
    hidden, rows = text.count(*HIDDEN), text.count("max_position_embeddings") + offset
    norms = 2 * (embedding_norms + final_norms) - 1
    positions = matrix("embed_positions", "norm", 2 * rows, hidden, (), sharding="replicated")
    return positions, vector("other_norms", "norm", norms * 2 * hidden, ())


# Whisper: the encoder processes 30 s at a time, as 1,500 frames


def whisper_extras(text: Fields, layer: int) -> LayerExtras:
    """Return the norms and biases of a Whisper layer; queries and values have a bias, keys have none."""
    values = 2 if phase(text, layer) == "prompt" else 4
    return replace(pair_extras(text, layer), vector_values=values * text.count(*HIDDEN))


def whisper_outside(text: Fields) -> tuple[ParameterPart, ...]:
    """Return two convolutions, position embeddings of encoder and decoder, and the encoder's final norm."""
    width, bins = text.count(*HIDDEN), text.count("num_mel_bins", default=80)
    convolutions = linear(CONVOLUTION * bins, width) + linear(CONVOLUTION * width, width)
    rows = text.count("max_source_positions", default=1_500) + text.count("max_target_positions", default=448)
    return (
        vector("convolutions", "norm", convolutions, ()),
        matrix("embed_positions", "norm", rows, width, (), sharding="replicated"),
        vector("encoder.norm", "norm", 2 * width, ()),
    )


def whisper_mixer(text: Fields, family: Family, layer: int) -> Attention:
    return replace(pair_mixer(text, family, layer, bias=True), qkv_bias=False)
