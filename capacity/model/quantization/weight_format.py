"""How one matrix of weights lies in memory, scales and zero points included, and what multiplies it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

ComputeDtype = Literal["fp32", "bf16", "fp16", "fp8", "int8", "fp4"]
FormatFamily = Literal[
    "16-bit",
    "fp8",
    "mxfp8",
    "int8",
    "int-weight-only",
    "bitsandbytes",
    "mxfp4",
    "nvfp4",
    "gguf",
    "research",
    "other",
]
Kernel = Literal[
    "fp32", "bf16", "fp16", "fp8", "fp8_block", "int8", "w4a16", "w8a16", "nvfp4", "mxfp4",
    "bnb4", "llm_int8", "gguf", "ggml", "awq", "awq_fused", "gptq", "lut", "e8p",
]  # fmt: skip
"""Of a table of measured kernels; those of the second line are `capacity/hardware/weight_kernels.toml`'s."""
_NOMINAL_DIMENSION = (
    4096  # of a matrix, where a scale spans a whole row or tensor: for `bits_per_weight` only
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationName:
    """A name of `--quantization`: its other spellings, and the `quant_method`s of checkpoints that it also names.

    `vllm` is what vLLM calls such a checkpoint; under `unflagged` spellings it is left to choose the kernel.
    """

    name: str
    aliases: tuple[str, ...] = ()
    unflagged: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    vllm: str | None = None

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases, *self.unflagged)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How a matrix of `rows` (outputs) x `columns` (inputs) is stored, and what multiplies it.

    One scale (and zero point) covers `block_rows` x `block_columns` weights; 0 means the whole dimension.
    `names`: what stands for it in `--quantization`.
    `nested_scale_bits` are shared by `nested_group` scales (NF4's double quantization, GGUF's super-blocks);
    `tensor_scale_bits` come once for each matrix. Alignment padding of files is left out (below 0.01 %).
    """

    name: str
    value_bits: float
    compute_dtype: ComputeDtype  # what the tensor cores multiply, where the hardware has it
    needs_dtype: ComputeDtype | None = None  # tensor cores that `kernel` is written for, if it is not that
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
    family: FormatFamily = "other"  # which loader of an engine reads it
    quality: str = ""  # whose published scores speak for it (`capacity.planning.quality`); "": nobody's
    names: tuple[QuantizationName, ...] = ()
    aliases: tuple[str, ...] = ()  # of the format itself, besides those of its names
    source: str

    @property
    def bits_per_weight(self) -> float:
        """True bits per weight, scales and zero points included, in a large matrix (4096 wide where it matters)."""
        return self.matrix_bytes(_NOMINAL_DIMENSION, _NOMINAL_DIMENSION) * 8 / _NOMINAL_DIMENSION**2

    @property
    def bytes_per_weight(self) -> float:
        """`bits_per_weight` / 8."""
        return self.bits_per_weight / 8

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
        needed = self.needs_dtype or self.compute_dtype
        if needed in hardware_dtypes or self.fallback_kernel is None:
            return Execution(kernel=self.kernel, compute_dtype=self.compute_dtype, note=None)
        note = f"{self.name}: no {needed} tensor cores here; weights are dequantized to 16 bit"
        return Execution(kernel=self.fallback_kernel, compute_dtype="bf16", note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What a format becomes on given hardware: GEMM family, roof, and a note where it is not the native one."""

    kernel: Kernel
    compute_dtype: ComputeDtype
    note: str | None
