"""Convert Hugging Face's `config.json` to a `ModelSpec`. The file is parsed as JSON; no code of a repository is run.

`families.json` has one row per `model_type`. Configs of other types are read by the names of their fields (`inferred`),
and the model's `notes` list the layers that were assumed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from capacity.base.errors import MalformedFile, UnsupportedModel
from capacity.base.fields import MAX_COUNT, Fields
from capacity.model.audio import audio_tower
from capacity.model.feed_forward import NoFeedForward
from capacity.model.hf_config.family import Family, find_family
from capacity.model.hf_config.field_names import NAMES
from capacity.model.hf_config.inferred import (
    MAX_ROPE_FACTOR,
    assumed_family,
    describe_assumed_model,
    ignored_fields,
    max_length_includes_rope_scaling,
    replace_unknown_layer_types,
    rotary_values,
)
from capacity.model.hf_config.mixers import HIDDEN
from capacity.model.hf_config.windows import MAX_LAYERS, NUM_LAYERS
from capacity.model.layers import LayerGroup
from capacity.model.quantization import QuantizationScheme, find_format, uniform_scheme
from capacity.model.quantization.config import parse_quantization_config
from capacity.model.spec import ModelSpec
from capacity.model.vision import vision_tower

# sections of a multimodal model that generate speech
SPEECH_SECTIONS = ("talker_config", "token2wav_config", "code2wav_config")


def from_hf_config(
    config: Mapping[str, Any],
    *,
    name: str,
    hf_id: str | None = None,
    hf_quant_config: Mapping[str, Any] | None = None,
    source: str = "",
    origin: str | None = None,
    gated: bool | None = None,
) -> ModelSpec:
    """Return the model that a `config.json`, given as a parsed object, describes.

    `hf_quant_config`: the parsed file of that name, which ModelOpt writes. `origin`: path shown in errors. `gated`:
    for an unknown `model_type` only, whether its feed-forward is gated (None: derived from the config). Raises
    MalformedFile for a bad or missing field, and UnsupportedModel for an architecture without a formula.
    """
    if not isinstance(config, Mapping):
        raise MalformedFile(origin or name, f"must be a JSON object, not {type(config).__name__}")
    outer = Fields(config, origin or name)
    text = _text_fields(outer)
    model_type = text.text("model_type") or outer.text("model_type")
    if model_type.startswith("rwkv"):
        raise UnsupportedModel(model_type, "RWKV's recurrence is not supported")
    known = find_family(model_type)
    family = known or assumed_family(text, gated)
    text = as_written = text.update({**family.defaults, **text.values})
    if known is None:
        text = replace_unknown_layer_types(text)
    spec = _unquantized_model(outer, text, family, name=name, model_type=model_type or "unknown")
    spec = replace(spec, hf_id=hf_id, source=source, assumed=known is None)
    notes = list(spec.notes)
    if spec.uncounted:
        missing = " and ".join(spec.uncounted)
        notes.append(f"the weights and compute of {missing} are not counted, because they are not supported")
    if known is None:
        notes.insert(0, describe_assumed_model(spec, as_written))
    elif ignored := ignored_fields(spec, text):
        fields = " and ".join(ignored)
        notes.append(f"{fields}: ignored, because layers of model_type {model_type!r} do not have them")
    scheme = _quantization_scheme(spec, outer, text, hf_quant_config)
    return replace(spec, notes=tuple(notes), checkpoint=scheme)


def _unquantized_model(
    outer: Fields, text: Fields, family: Family, *, name: str, model_type: str
) -> ModelSpec:
    """Return the model with 16- or 32-bit weights. `outer`: the whole config; `text`: its language model."""
    num_layers = (
        text.count(*NUM_LAYERS, maximum=MAX_LAYERS) if family.num_layers is None else family.num_layers(text)
    )
    groups, longest = _layer_groups(text, family, num_layers), _max_length(text)
    dtype = _dtype(outer, text)
    towers, norms = outer.section("thinker_config") or outer, family.norms_per_layer
    vision_params, vision, unseen = vision_tower(towers)
    audio_params, audio, unheard = audio_tower(towers)
    return ModelSpec(
        name=name,
        hf_id=None,
        model_type=model_type,
        hidden_size=text.count(*HIDDEN),
        vocab_size=text.count("vocab_size", "padded_vocab_size"),
        layer_groups=groups,
        tie_word_embeddings=outer.flag(
            "tie_word_embeddings", default=text.flag("tie_word_embeddings", default=family.tied)
        ),
        norms_per_layer=norms if isinstance(norms, int) else norms(text),
        norm_values=family.norm_values,
        outside=family.outside(text),
        task="embed" if _returns_scores(outer) else family.task,
        notes=family.notes,
        max_position_embeddings=longest,
        rotary_values=rotary_values(text, groups, longest),
        dtype=dtype,
        checkpoint=uniform_scheme(dtype, find_format(dtype), base=find_format(dtype)),
        mtp=_mtp_group(text, family, groups, num_layers),
        vision_params=vision_params,
        vision=vision,
        audio_params=audio_params,
        audio=audio,
        prompt_audio_s=family.prompt_audio_s,
        uncounted=(*unheard, *unseen, *(key for key in SPEECH_SECTIONS if outer.has(key))),
    )


def _returns_scores(outer: Fields) -> bool:
    """Return whether the model has a classification head in place of logits over the vocabulary."""
    architecture = str((outer.items("architectures") or [""])[0])
    return architecture.endswith(("ForSequenceClassification", "ForTokenClassification"))


def _quantization_scheme(
    spec: ModelSpec, outer: Fields, text: Fields, hf_quant_config: Mapping[str, Any] | None
) -> QuantizationScheme:
    """Return the scheme in the checkpoint's quantization config, or the unquantized scheme of `spec` if it has none."""
    fields = _quantization_fields(outer, text, hf_quant_config)
    if fields is None:
        return spec.checkpoint
    scheme = parse_quantization_config(fields.values, model=spec, origin=fields.origin)
    if text.text("expert_dtype") == "fp4":  # DeepSeek-V4's experts: 4-bit floats with a scale for each 32
        return replace(scheme, experts=find_format("mxfp4"))
    return scheme


def _text_fields(outer: Fields) -> Fields:
    """Return the fields of the language model: in a multimodal config, the section `text_config` or similar."""
    inner = outer.section("text_config", "llm_config", "language_config", "thinker_config")
    if inner is None:
        return outer
    omitted = NAMES["left_out"].get(outer.text("model_type"), {})  # transformers' defaults
    return _text_fields(inner.update({**omitted, **inner.values}))


def _dtype(outer: Fields, text: Fields) -> Literal["bf16", "fp16", "fp32"]:
    """Return the dtype of the weights, as vLLM's `--dtype auto` selects it; 32-bit checkpoints become 16 bit."""
    dtypes: Mapping[str, Literal["bf16", "fp16", "fp32"]] = NAMES["dtypes"]
    for fields in (text, outer):
        named = fields.text("dtype", "torch_dtype").removeprefix("torch.")
        if named in dtypes:
            return dtypes[named]
        if named and named != "auto":
            raise fields.problem("torch_dtype", f"{named!r} is not one of {', '.join(dtypes)}")
    return "bf16"


def _max_length(text: Fields) -> int:
    """Return the context length in tokens: the smallest one in the config, extended by `rope_scaling` as in vLLM 0.33.

    For llama3, longrope and su scaling and for Gemma 3, the config has the extended length; for YaRN, the original.
    """
    lengths = [length for key in NAMES["max_lengths"] if (length := text.optional_count(key)) is not None]
    if not lengths:
        raise text.problem("max_position_embeddings", "missing; it must be a whole number")
    scaling = text.section("rope_scaling", "rope_parameters")
    if scaling is None or max_length_includes_rope_scaling(text):
        return min(lengths)
    if scaling.text("rope_type", "type") not in ("yarn", "linear", "dynamic"):
        return min(lengths)
    original = scaling.optional_count("original_max_position_embeddings")
    if scaling.text("rope_type", "type") == "yarn" and original is None:
        return min(lengths)
    factor = scaling.number("factor", default=1.0, minimum=1.0, maximum=MAX_ROPE_FACTOR)
    stretched = int((original or min(lengths)) * factor)
    if stretched > MAX_COUNT:
        raise scaling.problem(
            "factor",
            f"{factor:g} extends the context to {stretched:,} tokens; at most {MAX_COUNT:,} are supported",
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
    """Return groups of identical layers, ordered by the first layer of each group."""
    grouped: dict[LayerGroup, list[int]] = {}
    for layer in range(num_layers):
        extras = family.extras(text, layer)
        kind = LayerGroup(
            layers=(),
            mixer=family.mixer(text, family, layer),
            feed_forward=family.feed_forward(text, layer),
            norms=extras.norms,
            products=extras.products,
            vector_values=extras.vector_values,
            phase=family.phase(text, layer),
        )
        grouped.setdefault(kind, []).append(layer)
    return tuple(replace(kind, layers=tuple(layers)) for kind, layers in grouped.items())


def _mtp_group(
    text: Fields, family: Family, groups: tuple[LayerGroup, ...], num_layers: int
) -> LayerGroup | None:
    """Return the multi-token-prediction (MTP) layers, as copies of the last softmax-attention layer, or None.

    If attention and feed-forward are separate layers of the model, an MTP layer has the last one of each.
    """
    count = text.optional_count(*family.mtp_keys, minimum=0, maximum=MAX_LAYERS) if family.mtp_keys else None
    softmax = [group for group in groups if group.mixer.softmax]
    if not count or not softmax:
        return None
    last = max(softmax, key=lambda group: group.layers[-1])
    if isinstance(last.feed_forward, NoFeedForward):
        full = [group for group in groups if not isinstance(group.feed_forward, NoFeedForward)]
        if full:
            last_full = max(full, key=lambda group: group.layers[-1])
            last = replace(last, feed_forward=last_full.feed_forward, norms=2)
    return replace(last, layers=tuple(range(num_layers, num_layers + count)))
