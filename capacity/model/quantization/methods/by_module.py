"""Quantization methods whose formats vary by module: compressed-tensors, NVIDIA ModelOpt, AMD Quark."""

from pathlib import Path

from capacity.base.data_files import Table, read_data
from capacity.base.fields import Fields
from capacity.model.quantization.methods.recipe import (
    Recipe,
    float4_format,
    fp8_block_format,
    kv_cache_scheme,
    make_patterns,
    make_weight_only,
    method_suffix,
    module_names,
    read_group_size,
)
from capacity.model.quantization.modules import ModulePatterns
from capacity.model.quantization.weight_format import WeightFormat, find_format, grouped_int_format


def compressed_tensors(fields: Fields) -> Recipe:
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
            by_module.append(
                (make_patterns(group, "targets", modules, lists=len(groups.values)), weight_format)
            )
        if "Linear" in targets:
            default = default or weight_format
        elif not modules:
            by_module.append((ModulePatterns(["mlp.experts"]), weight_format))
    if default is None and not by_module:
        raise fields.problem("config_groups", "no group defines the format of weights")
    shown = default or by_module[0][1]
    return Recipe(
        method=f"compressed-tensors-{method_suffix(shown)}",
        default=shown,
        ignored=module_names(fields, "ignore"),
        by_module=tuple(by_module),
        only_listed=default is None,
        kv_cache_dtype=kv_cache_scheme(fields),
    )


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
            stored = float4_format(weights, weights.count("group_size", default=16))
        case "int", 8 if activations is not None and not _has_groups(weights):
            return find_format("int8")
        case "int", 2 | 3 | 4 | 8:
            size = weights.count("group_size", default=128) if _has_groups(weights) else -1
            zero_point = not weights.flag("symmetric", default=True)
            return grouped_int_format(bits, size, zero_point=zero_point)
        case _:
            raise weights.problem("num_bits", f"{bits} bits of type {kind!r} are not supported")
    return make_weight_only(stored) if activations is None else stored


def _has_groups(weights: Fields) -> bool:
    return read_group_size(weights, "group_size", default=-1) > 0


def _compressed_fp8(weights: Fields, strategy: str) -> WeightFormat:
    match strategy:
        case "tensor":
            return find_format("fp8")
        case "channel":
            return find_format("fp8-channel")
        case "block":
            return fp8_block_format(weights, "block_structure")
        case "group" if weights.count("group_size") == 32:
            return find_format("mxfp8")
    raise weights.problem("strategy", f"{strategy!r} is not supported for 8-bit floats")


_MODELOPT_ALGORITHMS: Table = read_data(Path(__file__).with_name("modelopt_algorithms.json"))
"""The weight format of each ModelOpt algorithm, and whether only weights are quantized."""


def modelopt(fields: Fields) -> Recipe:
    """Read a config of ModelOpt, from `hf_quant_config.json` (fields under `quantization`) or from `config.json`."""
    inner = fields.section("quantization") or fields
    algorithm = inner.text("quant_algo").lower()
    if algorithm == "mixed_precision":
        return _modelopt_mixed(inner)
    weight_format = _modelopt_format(inner, algorithm)
    return Recipe(
        method=f"modelopt-{method_suffix(weight_format)}",
        default=weight_format,
        ignored=module_names(inner, "exclude_modules", "ignore", "modules_to_not_convert"),
        kv_cache_dtype=_modelopt_kv(inner),
    )


def _modelopt_format(fields: Fields, algorithm: str) -> WeightFormat:
    name, *only = _MODELOPT_ALGORITHMS.get(algorithm, (None,))
    if name is None:
        known = ", ".join(name.upper() for name in (*_MODELOPT_ALGORITHMS, "mixed_precision"))
        raise fields.problem("quant_algo", f"{algorithm.upper()!r} is not supported; known: {known}")
    made = find_format(name)
    return _apply_group_size(fields, make_weight_only(made) if only else made)


def _apply_group_size(fields: Fields, made: WeightFormat) -> WeightFormat:
    """Return the format with the config's group size. Raises MalformedFile if the format allows only another size."""
    if not fields.has("group_size"):
        return made
    size = read_group_size(fields, "group_size")
    if made.name.startswith("int4-g"):
        return grouped_int_format(4, size, zero_point=False)
    own = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}.get(made.name.partition("-")[0])
    if own is not None and size != own:
        raise fields.problem("group_size", f"{size} is not supported; {made.name} has groups of {own}")
    return made


def _modelopt_mixed(fields: Fields) -> Recipe:
    """Read ModelOpt's `quantized_layers`, which lists modules with their algorithms; other modules stay at 16 bit."""
    layers = fields.section("quantized_layers")
    if layers is None or not layers.values:
        raise fields.problem("quantized_layers", "missing; MIXED_PRECISION requires it")
    names: dict[tuple[str, WeightFormat], list[str]] = {}
    for module in layers.values:
        section = layers.section(module)
        algorithm = section.text("quant_algo").lower() if section else ""
        if section is not None and algorithm not in ("", "none", "unquantized"):
            names.setdefault((algorithm, _modelopt_format(section, algorithm)), []).append(module)
    by_module = tuple(
        (make_patterns(fields, "quantized_layers", modules), weight_format)
        for (_, weight_format), modules in names.items()
    )
    return Recipe(
        method="modelopt-mixed",
        default=by_module[0][1] if by_module else find_format("bf16"),
        ignored=module_names(fields, "exclude_modules", "ignore"),
        by_module=by_module,
        only_listed=True,
        kv_cache_dtype=_modelopt_kv(fields),
    )


def _modelopt_kv(fields: Fields) -> str | None:
    algorithm = fields.text("kv_cache_quant_algo").lower()
    if not algorithm or algorithm == "none":
        return kv_cache_scheme(fields)
    if algorithm not in ("fp8", "int8", "nvfp4"):
        raise fields.problem("kv_cache_quant_algo", f"{algorithm.upper()!r} is not one of FP8, INT8, NVFP4")
    return algorithm


def quark(fields: Fields) -> Recipe:
    overall = fields.section("global_quant_config")
    weight = overall.section("weight") if overall else None
    overrides = fields.section("layer_quant_config")
    by_module = []
    for pattern in overrides.values if overrides else ():
        own = overrides.section(pattern) if overrides else None
        own_weight = own.section("weight") if own else None
        if own_weight is not None:
            by_module.append(
                (make_patterns(fields, "layer_quant_config", [pattern]), _quark_format(own_weight))
            )
    if weight is None and not by_module:
        raise fields.problem("global_quant_config.weight", "missing")
    default = _quark_format(weight) if weight is not None else by_module[0][1]
    return Recipe(
        method=f"quark-{method_suffix(default)}",
        default=default,
        ignored=module_names(fields, "exclude", "exclude_layers"),
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
            return float4_format(weight, group or 32)
        case "int8" | "uint8" if scheme == "per_group":
            return grouped_int_format(8, group, zero_point=False)
        case "int8" | "uint8":
            return find_format("int8")
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
