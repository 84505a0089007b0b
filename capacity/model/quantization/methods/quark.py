"""AMD Quark: a format for the model, and overrides by module."""

from capacity.base.fields import Fields
from capacity.model.quantization.formats import find_format, grouped_int_format
from capacity.model.quantization.methods.recipe import (
    Recipe,
    float4_format,
    method_suffix,
    module_names,
    patterns,
)
from capacity.model.quantization.weight_format import WeightFormat


def quark(fields: Fields) -> Recipe:
    overall = fields.section("global_quant_config")
    weight = overall.section("weight") if overall else None
    overrides = fields.section("layer_quant_config")
    by_module = []
    for pattern in overrides.values if overrides else ():
        own = overrides.section(pattern) if overrides else None
        own_weight = own.section("weight") if own else None
        if own_weight is not None:
            by_module.append((patterns(fields, "layer_quant_config", [pattern]), _quark_format(own_weight)))
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
