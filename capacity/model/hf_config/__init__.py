"""Hugging Face's `config.json` as a `ModelSpec`: parsed as plain JSON; no code of the repository is ever run.

One entry of `families.FAMILIES` for each `model_type`. A type without one is refused, saying what is missing: it is
never guessed to be a Llama.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from capacity.base.errors import MalformedFile, UnsupportedModel
from capacity.base.fields import MAX_COUNT, Fields
from capacity.model.feed_forward import FeedForward
from capacity.model.hf_config.families import FAMILIES, MISSING, Family
from capacity.model.hf_config.windows import MAX_LAYERS
from capacity.model.layers import LayerGroup, Mixer
from capacity.model.quantization import find_format, uniform_scheme
from capacity.model.quantization.config import parse_quantization_config
from capacity.model.spec import ModelSpec
from capacity.model.vision import vision_encoder, vision_tower

_MAX_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
MAX_ROPE_FACTOR = 1e6  # real ones are 2 to 64
_DTYPES: dict[str, Literal["bf16", "fp16", "fp32"]] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "bf16",  # vLLM's --dtype auto serves 32-bit checkpoints at 16 bit
    "float": "bf16",
}


def from_hf_config(
    config: Mapping[str, Any],
    *,
    name: str,
    hf_id: str | None = None,
    hf_quant_config: Mapping[str, Any] | None = None,
    source: str = "",
    origin: str | None = None,
) -> ModelSpec:
    """The model that the object of a `config.json` describes.

    `hf_quant_config` is the object of ModelOpt's file of that name beside it; `origin` (a path) is named in
    errors. Raises UnsupportedModel for a `model_type` without an entry here, MalformedFile for a bad field.
    """
    if not isinstance(config, Mapping):
        raise MalformedFile(origin or name, f"a JSON object is needed, not a {type(config).__name__}")
    outer = Fields(config, origin or name)
    text = _text_fields(outer)
    family, model_type = _family(outer, text)
    text = Fields({**family.defaults, **text.values}, text.origin, prefix=text.prefix)
    num_layers = text.count("num_hidden_layers", "num_layers", "n_layer", maximum=MAX_LAYERS)
    groups = _layer_groups(text, family, num_layers)
    dtype = _dtype(outer, text)
    base = uniform_scheme(dtype, find_format(dtype), base=find_format(dtype))
    quantization = _quantization_fields(outer, text, hf_quant_config)
    vision_params, uncounted = vision_tower(outer)
    spec = ModelSpec(
        name=name,
        hf_id=hf_id,
        model_type=model_type,
        hidden_size=text.count("hidden_size", "n_embd", "d_model"),
        vocab_size=text.count("vocab_size", "padded_vocab_size"),
        layer_groups=groups,
        tie_word_embeddings=outer.flag(
            "tie_word_embeddings", default=text.flag("tie_word_embeddings", default=family.tied)
        ),
        norms_per_layer=family.norms_per_layer,
        max_position_embeddings=_max_length(text),
        dtype=dtype,
        checkpoint=base,
        mtp=_mtp_group(text, family, groups, num_layers),
        vision_params=vision_params,
        vision=vision_encoder(outer),
        uncounted=uncounted,
        source=source,
    )
    if quantization is None:
        return spec
    return replace(
        spec,
        checkpoint=parse_quantization_config(quantization.values, model=spec, origin=quantization.origin),
    )


def supported_model_types() -> tuple[str, ...]:
    """Every `model_type` that is read."""
    return tuple(sorted(FAMILIES))


def _text_fields(outer: Fields) -> Fields:
    """The language model's own object: `text_config` and its kin where the model is multimodal."""
    inner = outer.section("text_config", "llm_config", "language_config", "thinker_config")
    return outer if inner is None else _text_fields(inner)


def _family(outer: Fields, text: Fields) -> tuple[Family, str]:
    model_type = text.text("model_type") or outer.text("model_type")
    if not model_type:
        architectures = outer.items("architectures")
        hint = f" (architectures: {architectures[0]})" if architectures else ""
        raise outer.problem("model_type", f"missing{hint}; without it the architecture is not known")
    if model_type in FAMILIES:
        return FAMILIES[model_type], model_type
    missing = MISSING.get(model_type, "no formula for its layers")
    raise UnsupportedModel(model_type, f"{missing}. Supported: {', '.join(supported_model_types())}")


def _dtype(outer: Fields, text: Fields) -> Literal["bf16", "fp16", "fp32"]:
    for fields in (text, outer):
        named = fields.text("dtype", "torch_dtype").removeprefix("torch.")
        if named in _DTYPES:
            return _DTYPES[named]
        if named and named != "auto":
            raise fields.problem("torch_dtype", f"{named!r} is not one of {', '.join(_DTYPES)}")
    return "bf16"


def _max_length(text: Fields) -> int:
    """The smallest stated length, stretched by `rope_scaling` as vLLM 0.33 does.

    llama3, longrope and su state the stretched length already; YaRN stretches the original one.
    """
    lengths = [length for key in _MAX_LENGTHS if (length := text.optional_count(key)) is not None]
    if not lengths:
        raise text.problem("max_position_embeddings", "missing; it must be a whole number")
    scaling = text.section("rope_scaling", "rope_parameters")
    if scaling is None or scaling.text("rope_type", "type") not in ("yarn", "linear", "dynamic"):
        return min(lengths)
    original = scaling.optional_count("original_max_position_embeddings")
    if scaling.text("rope_type", "type") == "yarn" and original is None:
        return min(lengths)
    factor = scaling.number("factor", default=1.0, minimum=1.0, maximum=MAX_ROPE_FACTOR)
    stretched = int((original or min(lengths)) * factor)
    if stretched > MAX_COUNT:
        raise scaling.problem(
            "factor", f"{factor:g} makes a context of {stretched:,} tokens; at most {MAX_COUNT:,}"
        )
    return stretched


def _quantization_fields(
    outer: Fields, text: Fields, hf_quant_config: Mapping[str, Any] | None
) -> Fields | None:
    for fields in (outer, text):
        stored = fields.section("quantization_config", "compression_config")
        if stored is not None and stored.values:
            return stored
    if hf_quant_config:
        return Fields(hf_quant_config, f"{outer.origin} (hf_quant_config.json)")
    return None


def _layer_groups(text: Fields, family: Family, num_layers: int) -> tuple[LayerGroup, ...]:
    grouped: dict[tuple[Mixer, FeedForward], list[int]] = {}
    for layer in range(num_layers):
        key = (family.mixer(text, family, layer), family.feed_forward(text, layer))
        grouped.setdefault(key, []).append(layer)
    return tuple(
        LayerGroup(layers=tuple(layers), mixer=mixer, feed_forward=feed_forward)
        for (mixer, feed_forward), layers in grouped.items()
    )


def _mtp_group(
    text: Fields, family: Family, groups: tuple[LayerGroup, ...], num_layers: int
) -> LayerGroup | None:
    """Multi-token-prediction layers repeat the model's last softmax-attention layer."""
    count = text.optional_count(*family.mtp_keys, minimum=0, maximum=MAX_LAYERS) if family.mtp_keys else None
    if not count:
        return None
    softmax = [group for group in groups if group.mixer.softmax]
    last = max(softmax, key=lambda group: group.layers[-1])
    return replace(last, layers=tuple(range(num_layers, num_layers + count)))
