"""Parse a checkpoint's `quantization_config` (or ModelOpt's `hf_quant_config.json`) to a `QuantizationScheme`.

`methods` reads every method of vLLM 0.33 that defines the layout of weights; other methods are rejected with an error.
"""

from collections.abc import Mapping
from typing import Any

from capacity.base.fields import Fields
from capacity.model.parameter_part import ParameterPart
from capacity.model.quantization.gguf import GGUF_MIXES, gguf_scheme
from capacity.model.quantization.methods import METHODS
from capacity.model.quantization.methods.recipe import Recipe
from capacity.model.quantization.modules import scheme_by_module
from capacity.model.quantization.scheme import QuantizationScheme, StoredModel
from capacity.model.quantization.weight_format import WeightFormat


def parse_quantization_config(
    config: Mapping[str, Any], *, model: StoredModel, origin: str
) -> QuantizationScheme:
    """Return the scheme that `config` defines for `model`. Raises MalformedFile with the method and the field."""
    fields = Fields(config, origin, prefix="quantization_config.")
    method = _method(fields)
    if method == "gguf":
        return _gguf(fields, model)
    reader = METHODS.get(method)
    if method == "bitnet":
        raise fields.problem(
            "quant_method",
            "'bitnet' is not supported: no known engine has kernels for BitNet's ternary weights; remove "
            "quantization_config to plan at 16 bit",
        )
    if reader is None:
        known = ", ".join(sorted({*METHODS, "gguf"}))
        raise fields.problem("quant_method", f"{method!r} is not supported; known: {known}")
    recipe = reader(fields)
    base = model.checkpoint.base
    shown = recipe.default.name + (" experts" if recipe.experts_only else "")
    return scheme_by_module(
        model.parameter_parts(),
        lambda part, layer: _part_format(recipe, part, layer, base),
        name="mixed" if recipe.only_listed else shown,
        method=recipe.method,
        base=base,
        default=base if recipe.experts_only or recipe.only_listed else recipe.default,
        kv_cache_dtype=recipe.kv_cache_dtype,
    )


def _method(fields: Fields) -> str:
    method = fields.text("quant_method", "quant_type").strip().lower().replace("_", "-")
    if method:
        return method
    if fields.has("quantization") or fields.has("quant_algo"):
        return "modelopt"
    if fields.has("config_groups"):
        return "compressed-tensors"
    if fields.has("load_in_4bit") or fields.has("load_in_8bit"):
        return "bitsandbytes"
    raise fields.problem("quant_method", "missing")


def _part_format(recipe: Recipe, part: ParameterPart, layer: int | None, base: WeightFormat) -> WeightFormat:
    if part.kind in ("embedding", "norm", "bias", "router") or recipe.ignored.match(part.name, layer):
        return base
    for patterns, weight_format in recipe.by_module:
        if patterns.match(part.name, layer):
            return weight_format
    if recipe.only_listed or (part.kind == "lm_head" and not recipe.lm_head):
        return base
    return base if recipe.experts_only and part.kind != "experts" else recipe.default


def _gguf(fields: Fields, model: StoredModel) -> QuantizationScheme:
    kind = fields.text("file_type", "quantization_type", "gguf_type").lower().replace("-", "_")
    name = kind if kind.startswith("gguf-") else f"gguf-{kind}"
    if name not in GGUF_MIXES:
        known = ", ".join(mix.removeprefix("gguf-").upper() for mix in GGUF_MIXES)
        raise fields.problem("file_type", f"{kind.upper()!r} is not one of {known}; or use --quantization")
    return gguf_scheme(model, name)
