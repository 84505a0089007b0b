"""A checkpoint's `quantization_config` (or ModelOpt's `hf_quant_config.json`) as a `QuantizationScheme`.

Every method of vLLM 0.33 that says how its weights lie in memory is read; another is refused with its name.
Keys by method: transformers 5.23 `utils/quantization_config.py`, compressed-tensors 0.12 `quant_args.py`,
vLLM 0.33 `model_executor/layers/quantization/`, read 2026-11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from capacity.base.fields import Fields
from capacity.model.quantization.formats import WeightFormat, find_format, grouped_int_format
from capacity.model.quantization.gguf import GGUF_MIXES, gguf_scheme
from capacity.model.quantization.modules import ModulePatterns, scheme_by_module
from capacity.model.quantization.scheme import Part, QuantizationScheme, Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """What a method says: the format of most matrices, what is left alone, and formats by module."""

    method: str
    default: WeightFormat
    ignored: ModulePatterns
    by_module: tuple[tuple[ModulePatterns, WeightFormat], ...] = ()
    experts_only: bool = False
    only_listed: bool = False  # `default` holds for nothing: `by_module` lists all that is quantized
    lm_head: bool = False
    kv_cache_dtype: str | None = None


def parse_quantization_config(config: Mapping[str, Any], *, model: Stored, origin: str) -> QuantizationScheme:
    """The scheme that `config` gives to the parts of `model`. Raises MalformedFile naming method and field."""
    fields = Fields(config, origin, prefix="quantization_config.")
    method = _method(fields)
    if method == "gguf":
        return _gguf(fields, model)
    reader = _METHODS.get(method)
    if reader is None:
        known = ", ".join(sorted({*_METHODS, "gguf"}))
        raise fields.problem("quant_method", f"{method!r} is not supported; known: {known}")
    recipe = reader(fields)
    base = model.checkpoint.base
    shown = recipe.default.name + (" experts" if recipe.experts_only else "")
    return scheme_by_module(
        model.parameter_parts(),
        lambda part, layer: _format_of(recipe, part, layer, base),
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


def _format_of(recipe: _Recipe, part: Part, layer: int | None, base: WeightFormat) -> WeightFormat:
    if part.kind in ("embedding", "norm", "bias", "router") or recipe.ignored.mean(part.name, layer):
        return base
    for patterns, weight_format in recipe.by_module:
        if patterns.mean(part.name, layer):
            return weight_format
    if recipe.only_listed or (part.kind == "lm_head" and not recipe.lm_head):
        return base
    return base if recipe.experts_only and part.kind != "experts" else recipe.default


def _names(fields: Fields, *keys: str) -> ModulePatterns:
    """The module names that any of `keys` lists; a bad regular expression is refused."""
    listed: list[str] = []
    for key in keys:
        for name in fields.items(key) or []:
            if not isinstance(name, str):
                raise fields.problem(key, f"{name!r} is not a module name")
            listed.append(name)
    return _patterns(fields, keys[0], listed)


def _patterns(fields: Fields, key: str, names: list[str]) -> ModulePatterns:
    try:
        return ModulePatterns(names)
    except re.error as error:
        raise fields.problem(key, f"not a regular expression ({error})") from None


# methods


def _awq(fields: Fields) -> _Recipe:
    bits = fields.count("bits", "w_bit", default=4)
    if bits != 4:
        raise fields.problem("bits", f"AWQ of {bits} bits is not supported; 4")
    return _Recipe(
        method="awq",
        default=grouped_int_format(4, _group_size(fields, "group_size", "q_group_size"), zero_point=True),
        ignored=_names(fields, "modules_to_not_convert"),
    )


def _gptq(fields: Fields) -> _Recipe:
    """GPTQ and AutoRound; zero points are stored even where they are all the same (`sym`)."""
    bits = fields.count("bits")
    if bits not in (2, 3, 4, 8):
        raise fields.problem("bits", f"{bits} is not one of 2, 3, 4, 8")
    group = _group_size(fields, "group_size")
    ignored, by_module = _gptq_dynamic(fields, bits, group)
    return _Recipe(
        method="gptq",
        default=grouped_int_format(bits, group, zero_point=True),
        ignored=ignored,
        by_module=by_module,
        lm_head=fields.flag("lm_head"),
    )


def _gptq_dynamic(
    fields: Fields, bits: int, group: int
) -> tuple[ModulePatterns, tuple[tuple[ModulePatterns, WeightFormat], ...]]:
    """GPTQModel's `dynamic`: `-:regex` is left alone, `+:regex` has bits and group of its own."""
    dynamic = fields.section("dynamic")
    ignored = [str(name) for name in fields.items("modules_to_not_convert") or []]
    overrides: list[tuple[ModulePatterns, WeightFormat]] = []
    for pattern, override in (dynamic.values if dynamic else {}).items():
        expression = "re:.*" + pattern.removeprefix("+:").removeprefix("-:")
        if pattern.startswith("-:"):
            ignored.append(expression)
        elif isinstance(override, dict):
            own = Fields(override, fields.origin, prefix=f"quantization_config.dynamic.{pattern}.")
            made = grouped_int_format(
                own.count("bits", default=bits),
                _group_size(own, "group_size", default=group),
                zero_point=True,
            )
            overrides.append((_patterns(fields, "dynamic", [expression]), made))
    return _patterns(fields, "modules_to_not_convert", ignored), tuple(overrides)


def _group_size(fields: Fields, *keys: str, default: int = 128) -> int:
    """-1: one scale for each output."""
    return fields.count(*keys, default=default, minimum=-1, maximum=1 << 20)


def _fp8(fields: Fields) -> _Recipe:
    encoding = fields.text("fmt", default="e4m3")
    if "e4m3" not in encoding:
        raise fields.problem("fmt", f"{encoding!r} is not supported; e4m3")
    return _Recipe(
        method="fp8",
        default=_fp8_block_format(fields, "weight_block_size"),
        ignored=_names(fields, "modules_to_not_convert", "ignored_layers"),
    )


def _fp8_block_format(fields: Fields, key: str) -> WeightFormat:
    """Per block where `key` gives [rows, columns], else one scale for each matrix."""
    block = fields.items(key)
    if block is None:
        return find_format("fp8")
    if len(block) != 2 or not all(
        isinstance(n, int) and not isinstance(n, bool) and 0 < n <= 1 << 16 for n in block
    ):
        raise fields.problem(key, f"{block!r} is not two whole numbers")
    if block == [128, 128]:
        return find_format("fp8-block")
    name = f"fp8-block-{block[0]}x{block[1]}"
    return replace(find_format("fp8-block"), name=name, block_rows=block[0], block_columns=block[1])


def _fbgemm_fp8(fields: Fields) -> _Recipe:
    """One FP32 scale for each output."""
    return _Recipe(
        method="fbgemm_fp8",
        default=replace(find_format("fp8-channel"), name="fp8-channel-fp32", scale_bits=32),
        ignored=_names(fields, "modules_to_not_convert"),
    )


def _mxfp4(fields: Fields) -> _Recipe:
    """Routed experts only, as gpt-oss and vLLM's `Mxfp4Config` have it."""
    return _Recipe(
        method="mxfp4",
        default=find_format("mxfp4"),
        ignored=_names(fields, "modules_to_not_convert"),
        experts_only=True,
    )


def _bitsandbytes(fields: Fields) -> _Recipe:
    ignored = _names(fields, "llm_int8_skip_modules")
    if fields.flag("load_in_8bit"):
        return _Recipe(method="bitsandbytes-int8", default=find_format("llm-int8"), ignored=ignored)
    if not fields.flag("load_in_4bit", default=fields.has("bnb_4bit_quant_type")):
        raise fields.problem("load_in_4bit", "neither load_in_4bit nor load_in_8bit")
    kind = fields.text("bnb_4bit_quant_type", default="fp4")
    if kind not in ("nf4", "fp4"):
        raise fields.problem("bnb_4bit_quant_type", f"{kind!r} is not one of nf4, fp4")
    made = find_format("nf4-dq" if fields.flag("bnb_4bit_use_double_quant") else "nf4")
    if kind == "fp4":  # 4-bit floats under the same scales
        made = replace(made, name=made.name.replace("nf4", "bnb-fp4"))
    return _Recipe(method=f"bitsandbytes-{kind}", default=made, ignored=ignored)


# compressed-tensors


def _compressed_tensors(fields: Fields) -> _Recipe:
    sparsity = fields.section("sparsity_config")
    if sparsity is not None and sparsity.text("format", default="dense") != "dense":
        raise sparsity.problem("format", f"{sparsity.text('format')!r}: sparse checkpoints are not supported")
    groups = fields.section("config_groups")
    if groups is None or not groups.values:
        raise fields.problem("config_groups", "missing")
    default: WeightFormat | None = None
    by_module: list[tuple[ModulePatterns, WeightFormat]] = []
    for group_name in groups.values:
        group = groups.section(group_name)
        if group is None:
            continue
        weight_format = _compressed_format(group)
        targets = [str(target) for target in group.items("targets") or ["Linear"]]
        modules = [target for target in targets if target not in ("Linear", "FusedMoE", "MoE")]
        if modules:
            by_module.append((_patterns(group, "targets", modules), weight_format))
        if "Linear" in targets:
            default = default or weight_format
        elif not modules:
            by_module.append((ModulePatterns(["mlp.experts"]), weight_format))
    shown = default or by_module[0][1]
    return _Recipe(
        method=f"compressed-tensors-{_family(shown)}",
        default=shown,
        ignored=_names(fields, "ignore"),
        by_module=tuple(by_module),
        only_listed=default is None,
        kv_cache_dtype=_kv_cache_scheme(fields),
    )


def _family(weight_format: WeightFormat) -> str:
    return weight_format.name.split("-")[0]


def _compressed_format(group: Fields) -> WeightFormat:
    weights = group.section("weights")
    if weights is None:
        raise group.problem("weights", "missing")
    activations = group.section("input_activations")
    bits, kind = weights.count("num_bits"), weights.text("type", default="int")
    strategy = weights.text("strategy", default="group" if weights.has("group_size") else "tensor")
    match kind, bits:
        case "float", 8:
            stored = _compressed_fp8(weights, strategy)
        case "float", 4:
            stored = _float4(weights, weights.count("group_size", default=16))
        case "int", 8 if activations is not None and not _grouped(weights):
            return find_format("int8")
        case "int", 2 | 3 | 4 | 8:
            size = weights.count("group_size", default=128) if _grouped(weights) else -1
            zero_point = not weights.flag("symmetric", default=True)
            return grouped_int_format(bits, size, zero_point=zero_point)
        case _:
            raise weights.problem("num_bits", f"{bits} bits of type {kind!r} are not supported")
    return _weight_only(stored) if activations is None else stored


def _grouped(weights: Fields) -> bool:
    size = weights.optional_count("group_size", minimum=-1)
    return size is not None and size > 0


def _compressed_fp8(weights: Fields, strategy: str) -> WeightFormat:
    match strategy:
        case "tensor":
            return find_format("fp8")
        case "channel":
            return find_format("fp8-channel")
        case "block":
            return _fp8_block_format(weights, "block_structure")
        case "group" if weights.count("group_size") == 32:
            return find_format("mxfp8")
    raise weights.problem("strategy", f"{strategy!r} is not supported for 8-bit floats")


def _float4(fields: Fields, group_size: int) -> WeightFormat:
    if group_size not in (16, 32):
        raise fields.problem("group_size", f"{group_size} is neither 16 (NVFP4) nor 32 (MXFP4)")
    return find_format("nvfp4" if group_size == 16 else "mxfp4")


def _weight_only(weight_format: WeightFormat) -> WeightFormat:
    """The same bytes, dequantized to 16 bit before they are multiplied."""
    kernel = weight_format.fallback_kernel or weight_format.kernel
    return replace(
        weight_format,
        name=f"{weight_format.name}-w{weight_format.value_bits:.0f}a16",
        compute_dtype="bf16",
        kernel=kernel,
        activation="16-bit",
        min_compute_capability=7.5,
        fallback_kernel=None,
    )


def _kv_cache_scheme(fields: Fields) -> str | None:
    scheme = fields.section("kv_cache_scheme")
    if scheme is None or not scheme.values:
        return None
    bits, kind = scheme.count("num_bits", default=8), scheme.text("type", default="float")
    if (kind, bits) not in (("float", 8), ("int", 8), ("int", 4)):
        raise scheme.problem("num_bits", f"{bits} bits of type {kind!r} are not supported for the KV cache")
    return "fp8" if kind == "float" else f"int{bits}"


# ModelOpt

_MODELOPT_ALGORITHMS: dict[str, Callable[[], WeightFormat]] = {
    "fp8": lambda: find_format("fp8"),
    "fp8_per_channel_per_token": lambda: find_format("fp8-channel"),
    "fp8_pb_wo": lambda: _weight_only(find_format("fp8-block")),
    "fp8_pb_real": lambda: find_format("fp8-block"),
    "fp8_block_scales": lambda: find_format("fp8-block"),
    "mxfp8": lambda: find_format("mxfp8"),
    "nvfp4": lambda: find_format("nvfp4"),
    "nvfp4_awq": lambda: find_format("nvfp4"),
    "w4a16_nvfp4": lambda: _weight_only(find_format("nvfp4")),
    "mxfp4": lambda: find_format("mxfp4"),
    "w4a8_mxfp4_fp8": lambda: find_format("mxfp4"),
    "w4a16_mxfp4": lambda: _weight_only(find_format("mxfp4")),
    "int4_awq": lambda: find_format("int4-g128-sym"),
    "w4a16_awq": lambda: find_format("int4-g128-sym"),
    "w4a8_awq": lambda: find_format("int4-g128-sym"),
    "w8a16": lambda: find_format("int8-channel-w8a16"),
    "int8_sq": lambda: find_format("int8"),
    "w8a8_sq_per_channel": lambda: find_format("int8"),
}


def _modelopt(fields: Fields) -> _Recipe:
    """Both forms: `hf_quant_config.json` nests under `quantization`, `config.json` does not."""
    inner = fields.section("quantization") or fields
    algorithm = inner.text("quant_algo").lower()
    if algorithm == "mixed_precision":
        return _modelopt_mixed(inner)
    weight_format = _modelopt_format(inner, algorithm)
    return _Recipe(
        method=f"modelopt-{_family(weight_format)}",
        default=weight_format,
        ignored=_names(inner, "exclude_modules", "ignore", "modules_to_not_convert"),
        kv_cache_dtype=_modelopt_kv(inner),
    )


def _modelopt_format(fields: Fields, algorithm: str) -> WeightFormat:
    made = _MODELOPT_ALGORITHMS.get(algorithm)
    if made is None:
        known = ", ".join(name.upper() for name in (*_MODELOPT_ALGORITHMS, "mixed_precision"))
        raise fields.problem("quant_algo", f"{algorithm.upper()!r} is not supported; known: {known}")
    return made()


def _modelopt_mixed(fields: Fields) -> _Recipe:
    """`quantized_layers` names every module with its algorithm; what is not named stays at 16 bit."""
    layers = fields.section("quantized_layers")
    if layers is None or not layers.values:
        raise fields.problem("quantized_layers", "missing under MIXED_PRECISION")
    names: dict[str, list[str]] = {}
    for module in layers.values:
        section = layers.section(module)
        algorithm = section.text("quant_algo").lower() if section else ""
        if algorithm not in ("", "none", "unquantized"):
            names.setdefault(algorithm, []).append(module)
    by_module = tuple(
        (_patterns(fields, "quantized_layers", modules), _modelopt_format(layers, algorithm))
        for algorithm, modules in names.items()
    )
    return _Recipe(
        method="modelopt-mixed",
        default=by_module[0][1] if by_module else find_format("bf16"),
        ignored=_names(fields, "exclude_modules", "ignore"),
        by_module=by_module,
        only_listed=True,
        kv_cache_dtype=_modelopt_kv(fields),
    )


def _modelopt_kv(fields: Fields) -> str | None:
    algorithm = fields.text("kv_cache_quant_algo").lower()
    if not algorithm or algorithm == "none":
        return _kv_cache_scheme(fields)
    if algorithm not in ("fp8", "int8", "nvfp4"):
        raise fields.problem("kv_cache_quant_algo", f"{algorithm.upper()!r} is not one of FP8, INT8, NVFP4")
    return algorithm


# Quark


def _quark(fields: Fields) -> _Recipe:
    overall = fields.section("global_quant_config")
    weight = overall.section("weight") if overall else None
    overrides = fields.section("layer_quant_config")
    by_module = []
    for pattern in overrides.values if overrides else ():
        own = overrides.section(pattern) if overrides else None
        own_weight = own.section("weight") if own else None
        if own_weight is not None:
            by_module.append((_patterns(fields, "layer_quant_config", [pattern]), _quark_format(own_weight)))
    if weight is None and not by_module:
        raise fields.problem("global_quant_config.weight", "missing")
    default = _quark_format(weight) if weight is not None else by_module[0][1]
    return _Recipe(
        method=f"quark-{_family(default)}",
        default=default,
        ignored=_names(fields, "exclude", "exclude_layers"),
        by_module=tuple(by_module),
        only_listed=weight is None,
        kv_cache_dtype=_quark_kv(fields),
    )


def _quark_format(weight: Fields) -> WeightFormat:
    dtype, scheme = weight.text("dtype").lower(), weight.text("qscheme", default="per_tensor")
    group = weight.optional_count("group_size") or 0
    match dtype:
        case "fp8_e4m3" | "fp8":
            return find_format("fp8" if scheme == "per_tensor" else "fp8-channel")
        case "fp4" | "fp4_e2m1" | "mx" | "mxfp4":
            return _float4(weight, group or 32)
        case "int8" | "uint8":
            return (
                find_format("int8")
                if scheme != "per_group"
                else grouped_int_format(8, group, zero_point=False)
            )
        case "int4" | "uint4":
            return grouped_int_format(4, group or 128, zero_point=dtype == "uint4")
    raise weight.problem("dtype", f"{dtype!r} is not supported")


def _quark_kv(fields: Fields) -> str | None:
    layers = fields.section("kv_cache_quant_config")
    for module in layers.values if layers else ():
        section = layers.section(module) if layers else None
        output = section.section("output_tensors") if section else None
        if output is not None and "fp8" in output.text("dtype").lower():
            return "fp8"
    return None


def _gguf(fields: Fields, model: Stored) -> QuantizationScheme:
    kind = fields.text("file_type", "quantization_type", "gguf_type").lower().replace("-", "_")
    name = kind if kind.startswith("gguf-") else f"gguf-{kind}"
    if name not in GGUF_MIXES:
        known = ", ".join(mix.removeprefix("gguf-").upper() for mix in GGUF_MIXES)
        raise fields.problem(
            "file_type", f"{kind.upper()!r} is not one of {known}; or name it with --quantization"
        )
    return gguf_scheme(model, name)


_METHODS: dict[str, Callable[[Fields], _Recipe]] = {
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _gptq,
    "fp8": _fp8,
    "fbgemm-fp8": _fbgemm_fp8,
    "compressed-tensors": _compressed_tensors,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-mixed": _modelopt,
    "quark": _quark,
    "bitsandbytes": _bitsandbytes,
}
