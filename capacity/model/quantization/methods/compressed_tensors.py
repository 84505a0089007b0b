"""`compressed-tensors`: groups of modules, each with the format of its weights."""

from capacity.base.fields import Fields
from capacity.model.quantization.formats import find_format, grouped_int_format
from capacity.model.quantization.methods.recipe import (
    Recipe,
    float4_format,
    fp8_block_format,
    group_size_of,
    kv_cache_scheme,
    method_suffix,
    module_names,
    patterns,
    weight_only,
)
from capacity.model.quantization.modules import ModulePatterns
from capacity.model.quantization.weight_format import WeightFormat


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
            by_module.append((patterns(group, "targets", modules, lists=len(groups.values)), weight_format))
        if "Linear" in targets:
            default = default or weight_format
        elif not modules:
            by_module.append((ModulePatterns(["mlp.experts"]), weight_format))
    if default is None and not by_module:
        raise fields.problem("config_groups", "no group says how weights are stored")
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
        case "int", 8 if activations is not None and not _grouped(weights):
            return find_format("int8")
        case "int", 2 | 3 | 4 | 8:
            size = weights.count("group_size", default=128) if _grouped(weights) else -1
            zero_point = not weights.flag("symmetric", default=True)
            return grouped_int_format(bits, size, zero_point=zero_point)
        case _:
            raise weights.problem("num_bits", f"{bits} bits of type {kind!r} are not supported")
    return weight_only(stored) if activations is None else stored


def _grouped(weights: Fields) -> bool:
    return group_size_of(weights, "group_size", default=-1) > 0


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
