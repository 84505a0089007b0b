"""Quantization methods with one format for all quantized matrices: AWQ, GPTQ, FP8, MXFP4, bitsandbytes."""

from dataclasses import replace

from capacity.base.fields import Fields
from capacity.model.quantization.methods.recipe import (
    Recipe,
    fp8_block_format,
    make_patterns,
    module_names,
    read_group_size,
)
from capacity.model.quantization.modules import ModulePatterns
from capacity.model.quantization.weight_format import WeightFormat, find_format, grouped_int_format


def awq(fields: Fields) -> Recipe:
    bits = fields.count("bits", "w_bit", default=4)
    if bits != 4:
        raise fields.problem("bits", f"AWQ with {bits} bits is not supported; use 4")
    return Recipe(
        method="awq",
        default=grouped_int_format(4, read_group_size(fields, "group_size", "q_group_size"), zero_point=True),
        ignored=module_names(fields, "modules_to_not_convert"),
    )


def gptq(fields: Fields) -> Recipe:
    """Read a config of GPTQ or AutoRound. Zero points are counted even for symmetric formats, which store them too."""
    bits = fields.count("bits")
    if bits not in (2, 3, 4, 8):
        raise fields.problem("bits", f"{bits} is not one of 2, 3, 4, 8")
    group = read_group_size(fields, "group_size")
    ignored, by_module = _gptq_dynamic(fields, bits, group)
    return Recipe(
        method="gptq",
        default=grouped_int_format(bits, group, zero_point=True),
        ignored=ignored,
        by_module=by_module,
        lm_head=fields.flag("lm_head"),
    )


def _gptq_dynamic(
    fields: Fields, bits: int, group: int
) -> tuple[ModulePatterns, tuple[tuple[ModulePatterns, WeightFormat], ...]]:
    """Read GPTQModel's `dynamic`: `-:regex` modules are not quantized, `+:regex` ones have other bits or groups."""
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
                read_group_size(own, "group_size", default=group),
                zero_point=True,
            )
            overrides.append(
                (
                    make_patterns(
                        fields, "dynamic", [expression], lists=len(dynamic.values) if dynamic else 1
                    ),
                    made,
                )
            )
    return make_patterns(fields, "modules_to_not_convert", ignored), tuple(overrides)


def fp8(fields: Fields) -> Recipe:
    encoding = fields.text("fmt", default="e4m3")
    if "e4m3" not in encoding:
        raise fields.problem("fmt", f"{encoding!r} is not supported; use e4m3")
    return Recipe(
        method="fp8",
        default=fp8_block_format(fields, "weight_block_size"),
        ignored=module_names(fields, "modules_to_not_convert", "ignored_layers"),
    )


def fbgemm_fp8(fields: Fields) -> Recipe:
    """Read a config of FBGEMM's FP8, which has one FP32 scale per output row."""
    return Recipe(
        method="fbgemm_fp8",
        default=replace(find_format("fp8-channel"), name="fp8-channel-fp32", scale_bits=32),
        ignored=module_names(fields, "modules_to_not_convert"),
    )


def mxfp4(fields: Fields) -> Recipe:
    """Read a config of MXFP4 for routed experts only, as in gpt-oss and vLLM's `Mxfp4Config`."""
    return Recipe(
        method="mxfp4",
        default=find_format("mxfp4"),
        ignored=module_names(fields, "modules_to_not_convert"),
        experts_only=True,
    )


def bitsandbytes(fields: Fields) -> Recipe:
    ignored = module_names(fields, "llm_int8_skip_modules")
    if fields.flag("load_in_8bit"):
        return Recipe(method="bitsandbytes-int8", default=find_format("llm-int8"), ignored=ignored)
    if not fields.flag("load_in_4bit", default=fields.has("bnb_4bit_quant_type")):
        raise fields.problem("load_in_4bit", "neither load_in_4bit nor load_in_8bit is set")
    kind = fields.text("bnb_4bit_quant_type", default="fp4")
    if kind not in ("nf4", "fp4"):
        raise fields.problem("bnb_4bit_quant_type", f"{kind!r} is not one of nf4, fp4")
    made = find_format("nf4-dq" if fields.flag("bnb_4bit_use_double_quant") else "nf4")
    if kind == "fp4":  # 4-bit floats with the same scales
        made = replace(made, name=made.name.replace("nf4", "bnb-fp4"), family="other")
    return Recipe(method=f"bitsandbytes-{kind}", default=made, ignored=ignored)
