"""Every storage format of a matrix, each with its names, its family and the kernel that multiplies it."""

from __future__ import annotations

from capacity.base.errors import UnknownName
from capacity.model.quantization.format_families import gguf_block, grouped_int, of_authors, tensor_int8
from capacity.model.quantization.weight_format import QuantizationName as Name
from capacity.model.quantization.weight_format import WeightFormat

_CUTLASS = "vLLM 0.33 docs features/quantization (supported hardware), 2026-11; datasheet"


_FORMATS: dict[str, WeightFormat] = {
    f.name: f
    for f in (
        WeightFormat(
            name="fp32",
            value_bits=32,
            compute_dtype="fp32",
            kernel="fp32",
            family="16-bit",
            names=(Name(name="fp32", aliases=("float32",)),),
            source="IEEE 754",
        ),
        WeightFormat(
            name="bf16",
            value_bits=16,
            compute_dtype="bf16",
            kernel="bf16",
            family="16-bit",
            names=(Name(name="bf16", aliases=("bfloat16", "16bit")),),
            source="bfloat16",
        ),
        WeightFormat(
            name="fp16",
            value_bits=16,
            compute_dtype="fp16",
            kernel="fp16",
            family="16-bit",
            names=(Name(name="fp16", aliases=("float16", "half")),),
            source="IEEE 754",
        ),
        WeightFormat(
            name="fp8",
            value_bits=8,
            compute_dtype="fp8",
            kernel="fp8",
            tensor_scale_bits=32,
            activation="fp8, per tensor or token",
            min_compute_capability=8.9,
            fallback_kernel="w8a16",
            family="fp8",
            quality="fp8",
            names=(
                Name(
                    name="fp8",
                    aliases=("fp8-e4m3", "fp8-e5m2", "fp8-tensor", "w8a8-fp8", "modelopt", "modelopt-fp8"),
                    methods=("fp8", "fbgemm_fp8", "modelopt-fp8", "compressed-tensors-fp8", "quark-fp8"),
                ),
            ),
            aliases=("fp8-per-tensor",),
            source="E4M3, one FP32 scale for each matrix; " + _CUTLASS,
        ),
        WeightFormat(
            name="fp8-channel",
            value_bits=8,
            compute_dtype="fp8",
            kernel="fp8",
            scale_bits=16,
            activation="fp8, per token",
            min_compute_capability=8.9,
            fallback_kernel="w8a16",
            family="fp8",
            quality="fp8",
            names=(
                Name(
                    name="fp8-channel",
                    aliases=("ptpc-fp8", "fbgemm-fp8", "fp8-pc-pt"),
                    methods=("compressed-tensors-fp8", "fbgemm_fp8"),
                ),
            ),
            aliases=("fp8-per-channel",),
            source="E4M3, one BF16 scale for each output: compressed-tensors FP8-dynamic; " + _CUTLASS,
        ),
        WeightFormat(
            name="fp8-block",
            value_bits=8,
            compute_dtype="fp8",
            kernel="fp8_block",
            scale_bits=32,
            block_rows=128,
            block_columns=128,
            activation="fp8, per token and 128 inputs",
            min_compute_capability=8.9,
            fallback_kernel="w8a16",
            family="fp8",
            quality="fp8",
            names=(Name(name="fp8-block", methods=("fp8",)),),
            source="E4M3, one FP32 scale for each 128x128 block: DeepSeek-V3 technical report; " + _CUTLASS,
        ),
        WeightFormat(
            name="mxfp8",
            value_bits=8,
            compute_dtype="fp8",
            kernel="fp8",
            scale_bits=8,
            block_columns=32,
            activation="mxfp8",
            min_compute_capability=10.0,
            fallback_kernel="w8a16",
            family="mxfp8",
            names=(Name(name="mxfp8"),),
            source="OCP Microscaling Formats v1.0, 2023-09: E4M3, one E8M0 scale for each 32 values; datasheet",
        ),
        WeightFormat(
            name="int8",
            value_bits=8,
            compute_dtype="int8",
            kernel="int8",
            scale_bits=16,
            activation="int8, per token",
            min_compute_capability=7.5,
            fallback_kernel="w8a16",
            family="int8",
            quality="int8",
            names=(
                Name(
                    name="int8",
                    aliases=("w8a8", "w8a8-int8", "int8-w8a8", "smoothquant", "int8-sq"),
                    methods=("compressed-tensors-int8",),
                ),
            ),
            source="W8A8, one BF16 scale for each output: compressed-tensors int-quantized; " + _CUTLASS,
        ),
        WeightFormat(
            name="int8-channel-w8a16",
            value_bits=8,
            compute_dtype="bf16",
            kernel="w8a16",
            scale_bits=16,
            min_compute_capability=7.5,
            family="int-weight-only",
            quality="w8a16",
            names=(Name(name="int8-weight-only", aliases=("w8a16", "eetq", "int8-wo")),),
            source="weight-only INT8, one 16-bit scale for each output; datasheet",
        ),
        WeightFormat(
            name="llm-int8",
            value_bits=8,
            compute_dtype="int8",
            kernel="llm_int8",
            scale_bits=32,
            activation="int8, per token; outlier columns at 16 bit",
            min_compute_capability=7.5,
            fallback_kernel="llm_int8",
            family="bitsandbytes",
            names=(Name(name="llm-int8", aliases=("bitsandbytes-int8",), methods=("bitsandbytes-int8",)),),
            source="bitsandbytes LLM.int8(): one FP32 absmax for each output (SCB); datasheet",
        ),
        tensor_int8("absmax-int8", scale_bits=32),
        tensor_int8("zeropoint-int8", scale_bits=64),
        grouped_int(8, 128, names=(Name(name="gptq-int8", methods=("gptq",)),)),
        grouped_int(
            4,
            128,
            names=(
                Name(
                    name="gptq-int4",
                    aliases=("gptq",),
                    unflagged=("gptq-marlin",),
                    methods=("gptq",),
                    vllm="gptq_marlin",
                ),
                Name(
                    name="awq-int4",
                    aliases=("awq", "int4-awq"),
                    unflagged=("awq-marlin",),
                    methods=("awq",),
                    vllm="awq_marlin",
                ),
                Name(name="int4-g128", aliases=("w4a16", "int4", "rtn-int4"), vllm="awq_marlin"),
            ),
        ),
        grouped_int(4, 128, kernel="awq", names=(Name(name="awq-no-marlin", vllm="awq"),)),
        grouped_int(4, 128, kernel="gptq", names=(Name(name="gptq-no-marlin", vllm="gptq"),)),
        grouped_int(4, 128, zero_point=False, names=(Name(name="int4-g128-sym"),)),
        grouped_int(4, 64),
        grouped_int(4, 32, names=(Name(name="int4-g32"),)),
        grouped_int(4, 32, zero_point=False, names=(Name(name="int4-g32-sym"),)),
        grouped_int(
            3, 128, names=(Name(name="gptq-int3", aliases=("rtn-int3", "awq-int3"), methods=("gptq",)),)
        ),
        grouped_int(2, 64),
        WeightFormat(
            name="nf4",
            value_bits=4,
            compute_dtype="bf16",
            kernel="bnb4",
            scale_bits=32,
            block_columns=64,
            min_compute_capability=7.0,
            family="bitsandbytes",
            names=(
                Name(
                    name="nf4",
                    aliases=("bitsandbytes", "bnb", "bitsandbytes-nf4"),
                    methods=("bitsandbytes-nf4",),
                ),
            ),
            source="QLoRA (Dettmers 2023): NormalFloat4, one FP32 absmax for each 64 values; datasheet",
        ),
        WeightFormat(
            name="nf4-dq",
            value_bits=4,
            compute_dtype="bf16",
            kernel="bnb4",
            scale_bits=8,
            block_columns=64,
            nested_scale_bits=32,
            nested_group=256,
            tensor_scale_bits=32,
            min_compute_capability=7.0,
            family="bitsandbytes",
            names=(Name(name="nf4-dq", methods=("bitsandbytes-nf4",)),),
            source="QLoRA (Dettmers 2023): NF4, 8-bit absmax for each 64 values, FP32 for each 256 of those; datasheet",
        ),
        WeightFormat(
            name="mxfp4",
            value_bits=4,
            compute_dtype="bf16",
            needs_dtype="fp8",
            kernel="mxfp4",
            scale_bits=8,
            block_columns=32,
            activation="16-bit, or mxfp8 on Blackwell",
            min_compute_capability=9.0,
            fallback_kernel="w4a16",
            family="mxfp4",
            quality="mxfp4",
            names=(Name(name="mxfp4", methods=("mxfp4",)),),
            source="OCP Microscaling Formats v1.0, 2023-09: E2M1, one E8M0 scale for each 32 values; datasheet",
        ),
        WeightFormat(
            name="nvfp4",
            value_bits=4,
            compute_dtype="fp4",
            kernel="nvfp4",
            scale_bits=8,
            block_columns=16,
            tensor_scale_bits=32,
            activation="nvfp4",
            min_compute_capability=10.0,
            fallback_kernel="w4a16",
            family="nvfp4",
            quality="nvfp4",
            names=(
                Name(
                    name="nvfp4",
                    unflagged=("modelopt-fp4", "modelopt-nvfp4", "fp4"),
                    methods=("modelopt-nvfp4", "compressed-tensors-nvfp4"),
                    vllm="modelopt_fp4",
                ),
            ),
            source="NVIDIA NVFP4: E2M1, one E4M3 scale for each 16 values, FP32 for each matrix, 2025-06; datasheet",
        ),
        of_authors(
            "squeezellm-4", 4.27, "squeezellm", kernel="lut", source="0.45 % sparse; paper, arXiv 2306.07629"
        ),
        of_authors("squeezellm-3", 3.24, kernel="lut", source="0.45 % sparse; paper, arXiv 2306.07629"),
        of_authors(
            "quip-sharp-4",
            4.02,
            "quip-sharp",
            "quip#",
            kernel="e8p",
            source="E8 lattice; paper, arXiv 2402.04396",
        ),
        of_authors("quip-sharp-2", 2.02, kernel="e8p", source="E8 lattice; paper, arXiv 2402.04396"),
        gguf_block("q8_0", 8),
        gguf_block("q4_0", 4),
        gguf_block("q4_1", 4, minimum=16),
        gguf_block("q5_0", 5),
        gguf_block("q5_1", 5, minimum=16),
        gguf_block("q2_k", 2, block=16, scale=4, minimum=4, per_256=32),
        gguf_block("q3_k", 3, block=16, scale=6, per_256=16),
        gguf_block("q4_k", 4, scale=6, minimum=6, per_256=32),
        gguf_block("q5_k", 5, scale=6, minimum=6, per_256=32),
        gguf_block("q6_k", 6, block=16, scale=8, per_256=16),
    )
}
# every spelling of `--quantization` -> its name and the format that it stands for
NAMED: dict[str, tuple[Name, WeightFormat]] = {
    spelling: (name, stored)
    for stored in _FORMATS.values()
    for name in stored.names
    for spelling in name.spellings
}
_SPELLINGS = {
    **{spelling: stored for spelling, (_, stored) in NAMED.items()},
    **{alias: stored for stored in _FORMATS.values() for alias in stored.aliases},
    **{name.replace("_", "-"): stored for name, stored in _FORMATS.items()},
}


def known_formats() -> tuple[str, ...]:
    """Names of every storage format of a matrix."""
    return tuple(_FORMATS)


def find_format(name: str) -> WeightFormat:
    """The storage format of this name or alias, whatever its case and `_` or `-`. Raises UnknownName.

    A format is of one matrix; `--quantization` names, which mix formats within a model (GGUF's Q4_K_M), are
    resolved by `scheme_for`.
    """
    stored = _SPELLINGS.get(name.strip().lower().replace("_", "-"))
    if stored is None:
        raise UnknownName("weight format", name, _FORMATS, aliases=_SPELLINGS)
    return stored


def grouped_int_format(bits: int, group_size: int, *, zero_point: bool) -> WeightFormat:
    """Weight-only integers of any width and group (`group_size` 0 or less: one scale for each output)."""
    made = grouped_int(bits, group_size, zero_point=zero_point)
    return _FORMATS.get(made.name, made)
