"""How one matrix of weights lies in memory, scales and zero points included, and what multiplies it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from capacity.base.errors import UnknownName

ComputeDtype = Literal["fp32", "bf16", "fp16", "fp8", "int8", "fp4"]
FormatFamily = Literal[
    "16-bit", "fp8", "mxfp8", "int8", "int-weight-only", "bitsandbytes", "mxfp4", "nvfp4", "gguf", "other"
]
Kernel = Literal["fp32", "bf16", "fp16", "fp8", "fp8_block", "int8", "w4a16", "w8a16", "nvfp4", "mxfp4"]
_NOMINAL_DIMENSION = (
    4096  # of a matrix, where a scale spans a whole row or tensor: for `bits_per_weight` only
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How a matrix of `rows` (outputs) x `columns` (inputs) is stored, and what multiplies it.

    One scale (and zero point) covers `block_rows` x `block_columns` weights; 0 means the whole dimension.
    `nested_scale_bits` are shared by `nested_group` scales (NF4's double quantization, GGUF's super-blocks);
    `tensor_scale_bits` come once for each matrix. Alignment padding of files is left out (below 0.01 %).
    """

    name: str
    value_bits: float
    compute_dtype: ComputeDtype  # what the tensor cores multiply, where the hardware has it
    kernel: Kernel
    scale_bits: int = 0
    zero_point_bits: int = 0
    block_rows: int = 1
    block_columns: int = 0
    nested_scale_bits: int = 0
    nested_group: int = 0
    tensor_scale_bits: int = 0
    activation: str = "16-bit"  # how the activations enter the product
    min_compute_capability: float = 0.0  # NVIDIA's, for `kernel` at `compute_dtype`
    fallback_kernel: Kernel | None = None  # what engines run where the hardware lacks `compute_dtype`
    source: str

    @property
    def bits_per_weight(self) -> float:
        """True bits per weight, scales and zero points included, in a large matrix (4096 wide where it matters)."""
        return self.matrix_bytes(_NOMINAL_DIMENSION, _NOMINAL_DIMENSION) * 8 / _NOMINAL_DIMENSION**2

    @property
    def bytes_per_weight(self) -> float:
        """`bits_per_weight` / 8."""
        return self.bits_per_weight / 8

    @property
    def weight_only(self) -> bool:
        """Weights are dequantized and multiplied at 16 bit: fewer bytes, the same FLOP/s."""
        return self.value_bits < 16 and self.compute_dtype in ("bf16", "fp16", "fp32")

    @property
    def family(self) -> FormatFamily:
        """Which loader of an engine reads it; `other`: none of those that engines ship."""
        if self.value_bits >= 16:
            return "16-bit"
        for family, prefixes in _FAMILIES:
            if self.name.startswith(prefixes):
                return family
        return "int8" if self.compute_dtype == "int8" else "other"

    def matrix_bytes(self, rows: int, columns: int) -> float:
        """Bytes of one rows x columns matrix with its scales and zero points."""
        scales = math.ceil(rows / (self.block_rows or rows)) * math.ceil(
            columns / (self.block_columns or columns)
        )
        nested = math.ceil(scales / self.nested_group) if self.nested_group else 0
        bits = (
            rows * columns * self.value_bits
            + scales * (self.scale_bits + self.zero_point_bits)
            + nested * self.nested_scale_bits
            + self.tensor_scale_bits
        )
        return bits / 8

    def execution(self, hardware_dtypes: Collection[str]) -> Execution:
        """The kernel that runs where the tensor cores have `hardware_dtypes` (keys of a profile's FLOP/s table)."""
        if self.compute_dtype in hardware_dtypes or self.fallback_kernel is None:
            return Execution(kernel=self.kernel, compute_dtype=self.compute_dtype, note=None)
        note = f"{self.name}: no {self.compute_dtype} tensor cores here; weights are dequantized to 16 bit"
        return Execution(kernel=self.fallback_kernel, compute_dtype="bf16", note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What a format becomes on given hardware: GEMM family, roof, and a note where it is not the native one."""

    kernel: Kernel
    compute_dtype: ComputeDtype
    note: str | None


_FAMILIES: tuple[tuple[FormatFamily, tuple[str, ...]], ...] = (
    ("gguf", ("gguf-",)),
    ("bitsandbytes", ("nf4", "llm-int8")),
    ("nvfp4", ("nvfp4",)),
    ("mxfp4", ("mxfp4",)),
    ("mxfp8", ("mxfp8",)),
    ("fp8", ("fp8",)),
    ("int-weight-only", ("int8-g", "int8-channel", "int4-", "int3-", "int2-")),
)
_CUTLASS = "vLLM 0.33 docs features/quantization (supported hardware), 2026-11; datasheet"


def _grouped_int(bits: int, group: int, *, zero_point: bool = True, name: str = "") -> WeightFormat:
    """Weight-only integers with one FP16 scale (and one zero point of `bits`) for each `group` inputs.

    GPTQ's `g_idx` (4 bytes for each input, dropped at loading unless act-order is on) is left out: 0.2 % at 4 bit.
    """
    return WeightFormat(
        name=name or f"int{bits}-g{group}{'' if zero_point else '-sym'}"
        if group > 0
        else name or f"int{bits}-channel",
        value_bits=bits,
        compute_dtype="bf16",
        kernel="w4a16" if bits <= 4 else "w8a16",
        scale_bits=16,
        zero_point_bits=bits if zero_point else 0,
        block_columns=max(group, 0),
        min_compute_capability=7.5,
        source="AutoGPTQ and AutoAWQ checkpoint layout (qweight, scales FP16, qzeros), 2023-2024; datasheet",
    )


def _gguf(
    name: str, bits: float, *, block: int = 32, scale: int = 16, minimum: int = 0, per_256: int = 0
) -> WeightFormat:
    return WeightFormat(
        name=f"gguf-{name}",
        value_bits=bits,
        compute_dtype="bf16",
        kernel="w4a16" if bits <= 4 else "w8a16",
        scale_bits=scale,
        zero_point_bits=minimum,
        block_columns=block,
        nested_scale_bits=per_256,
        nested_group=256 // block if per_256 else 0,
        source="ggml-common.h block structures (ggml-org/llama.cpp), 2026; datasheet",
    )


_FORMATS: dict[str, WeightFormat] = {
    f.name: f
    for f in (
        WeightFormat(name="fp32", value_bits=32, compute_dtype="fp32", kernel="fp32", source="IEEE 754"),
        WeightFormat(name="bf16", value_bits=16, compute_dtype="bf16", kernel="bf16", source="bfloat16"),
        WeightFormat(name="fp16", value_bits=16, compute_dtype="fp16", kernel="fp16", source="IEEE 754"),
        WeightFormat(
            name="fp8",
            value_bits=8,
            compute_dtype="fp8",
            kernel="fp8",
            tensor_scale_bits=32,
            activation="fp8, per tensor or token",
            min_compute_capability=8.9,
            fallback_kernel="w8a16",
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
            source="W8A8, one BF16 scale for each output: compressed-tensors int-quantized; " + _CUTLASS,
        ),
        WeightFormat(
            name="llm-int8",
            value_bits=8,
            compute_dtype="int8",
            kernel="int8",
            scale_bits=32,
            activation="int8, per token; outlier columns at 16 bit",
            min_compute_capability=7.5,
            fallback_kernel="w8a16",
            source="bitsandbytes LLM.int8(): one FP32 absmax for each output (SCB); datasheet",
        ),
        WeightFormat(
            name="int8-channel-w8a16",
            value_bits=8,
            compute_dtype="bf16",
            kernel="w8a16",
            scale_bits=16,
            min_compute_capability=7.5,
            source="weight-only INT8, one 16-bit scale for each output; datasheet",
        ),
        _grouped_int(8, 128),
        _grouped_int(4, 128),
        _grouped_int(4, 128, zero_point=False),
        _grouped_int(4, 64),
        _grouped_int(4, 32),
        _grouped_int(4, 32, zero_point=False),
        _grouped_int(3, 128),
        _grouped_int(2, 64),
        WeightFormat(
            name="nf4",
            value_bits=4,
            compute_dtype="bf16",
            kernel="w4a16",
            scale_bits=32,
            block_columns=64,
            min_compute_capability=7.0,
            source="QLoRA (Dettmers 2023): NormalFloat4, one FP32 absmax for each 64 values; datasheet",
        ),
        WeightFormat(
            name="nf4-dq",
            value_bits=4,
            compute_dtype="bf16",
            kernel="w4a16",
            scale_bits=8,
            block_columns=64,
            nested_scale_bits=32,
            nested_group=256,
            tensor_scale_bits=32,
            min_compute_capability=7.0,
            source="QLoRA (Dettmers 2023): NF4, 8-bit absmax for each 64 values, FP32 for each 256 of those; datasheet",
        ),
        WeightFormat(
            name="mxfp4",
            value_bits=4,
            compute_dtype="fp4",
            kernel="mxfp4",
            scale_bits=8,
            block_columns=32,
            activation="16-bit, or mxfp8/mxfp4 on Blackwell",
            min_compute_capability=10.0,
            fallback_kernel="w4a16",
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
            source="NVIDIA NVFP4: E2M1, one E4M3 scale for each 16 values, FP32 for each matrix, 2025-06; datasheet",
        ),
        _gguf("q8_0", 8),
        _gguf("q4_0", 4),
        _gguf("q4_1", 4, minimum=16),
        _gguf("q5_0", 5),
        _gguf("q5_1", 5, minimum=16),
        _gguf("q2_k", 2, block=16, scale=4, minimum=4, per_256=32),
        _gguf("q3_k", 3, block=16, scale=6, per_256=16),
        _gguf("q4_k", 4, scale=6, minimum=6, per_256=32),
        _gguf("q5_k", 5, scale=6, minimum=6, per_256=32),
        _gguf("q6_k", 6, block=16, scale=8, per_256=16),
    )
}

_FORMAT_ALIASES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8-e4m3": "fp8",
    "fp8-tensor": "fp8",
    "fp8-per-tensor": "fp8",
    "fp8-per-channel": "fp8-channel",
    "int8-weight-only": "int8-channel-w8a16",
    "gptq-int8": "int8-g128",
    "gptq-int4": "int4-g128",
    "awq-int4": "int4-g128",
    "int4": "int4-g128",
    "gptq-int3": "int3-g128",
}


def known_formats() -> tuple[str, ...]:
    """Names of every storage format of a matrix."""
    return tuple(_FORMATS)


def find_format(name: str) -> WeightFormat:
    """The storage format of this name or alias, whatever its case and `_` or `-`. Raises UnknownName.

    A format is of one matrix; `--quantization` names, which mix formats within a model (GGUF's Q4_K_M), are
    resolved by `scheme_for`.
    """
    key = name.strip().lower().replace("_", "-")
    key = _FORMAT_ALIASES.get(key, key)
    for known, weight_format in _FORMATS.items():
        if known.replace("_", "-") == key:
            return weight_format
    raise UnknownName("weight format", name, _FORMATS, aliases=_FORMAT_ALIASES)


def grouped_int_format(bits: int, group_size: int, *, zero_point: bool) -> WeightFormat:
    """Weight-only integers of any width and group (`group_size` 0 or less: one scale for each output)."""
    made = _grouped_int(bits, group_size, zero_point=zero_point)
    return _FORMATS.get(made.name, made)
