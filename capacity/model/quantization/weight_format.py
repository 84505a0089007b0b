"""All weight formats: layout of a matrix in memory, including scales and zero points, and its kernel."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from capacity.base.data_files import Table, make_row, read_rows
from capacity.base.errors import UnknownName

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
"""Keys of tables of kernel times; `capacity/hardware/weight_kernels.toml` has those from bnb4 on."""
_NOMINAL_DIMENSION = 4096  # for `bits_per_weight` if a scale spans a whole row or tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationName:
    """A value of `--quantization`, with its other spellings and the `quant_method`s of checkpoints in this format.

    `vllm`: value of vLLM's own `--quantization` flag for this checkpoint. The spellings in `unflagged` do not need that
    flag, because vLLM selects the kernel itself.
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
    """Storage format of a matrix of `rows` (outputs) x `columns` (inputs), and the kernel that multiplies it.

    One scale (and zero point) covers `block_rows` x `block_columns` weights; 0 means the whole dimension. `names`:
    values of `--quantization` that select the format. `nested_group` scales share `nested_scale_bits` more bits (NF4's
    double quantization, GGUF's super-blocks); `tensor_scale_bits` are stored once per matrix. Alignment padding of
    files is not included (below 0.01 %).
    """

    name: str
    value_bits: float
    compute_dtype: ComputeDtype  # of the tensor cores, if the hardware supports it
    needs_dtype: ComputeDtype | None = None  # tensor cores that `kernel` requires, if different
    kernel: Kernel
    scale_bits: int = 0
    zero_point_bits: int = 0
    block_rows: int = 1
    block_columns: int = 0
    nested_scale_bits: int = 0
    nested_group: int = 0
    tensor_scale_bits: int = 0
    activation: str = "16-bit"  # format of the activations in the product
    min_compute_capability: float = 0.0  # NVIDIA's, for `kernel` at `compute_dtype`
    fallback_kernel: Kernel | None = None  # if the hardware lacks `compute_dtype`
    family: FormatFamily = "other"  # selects an engine's loader
    quality: str = ""  # format with published scores (`capacity.planning.quality`); "": none
    names: tuple[QuantizationName, ...] = ()
    aliases: tuple[str, ...] = ()  # of the format itself, in addition to those of its names
    source: str

    @property
    def bits_per_weight(self) -> float:
        """Return the bits per weight of a 4096 x 4096 matrix, with scales and zero points."""
        return self.matrix_bytes(_NOMINAL_DIMENSION, _NOMINAL_DIMENSION) * 8 / _NOMINAL_DIMENSION**2

    def matrix_bytes(self, rows: int, columns: int) -> float:
        """Return the bytes of one rows x columns matrix with its scales and zero points."""
        scales = math.ceil(rows / (self.block_rows or rows))
        scales *= math.ceil(columns / (self.block_columns or columns))
        nested = math.ceil(scales / self.nested_group) if self.nested_group else 0
        bits = (
            rows * columns * self.value_bits
            + scales * (self.scale_bits + self.zero_point_bits)
            + nested * self.nested_scale_bits
            + self.tensor_scale_bits
        )
        return bits / 8

    def execution(self, hardware_dtypes: Collection[str]) -> "Execution":
        """Return how a GPU runs this format; `hardware_dtypes`: its tensor-core dtypes (keys of its FLOP/s table)."""
        needed = self.needs_dtype or self.compute_dtype
        if needed in hardware_dtypes or self.fallback_kernel is None:
            return Execution(kernel=self.kernel, compute_dtype=self.compute_dtype, note=None)
        note = f"{self.name}: no {needed} tensor cores on this device, so weights are dequantized to 16 bit"
        return Execution(kernel=self.fallback_kernel, compute_dtype="bf16", note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Execution of a weight format on a GPU: GEMM kernel, compute dtype, and a note if it is a fallback."""

    kernel: Kernel
    compute_dtype: ComputeDtype
    note: str | None


TABLE = Path(__file__).with_name("weight_formats.json")


@cache
def weight_formats() -> dict[str, WeightFormat]:
    """Return all weight formats by name. Raises MalformedFile."""
    return read_rows(TABLE, _make_format)


def _make_format(name: str, names: tuple[Table, ...] = (), **fields: Any) -> WeightFormat:
    found = tuple(make_row(TABLE, name, QuantizationName, each) for each in names)
    return WeightFormat(name=name, names=found, **fields)


@cache
def named_formats() -> dict[str, tuple[QuantizationName, WeightFormat]]:
    """Return the name and the weight format for every spelling of `--quantization`."""
    return {
        spelling: (name, stored)
        for stored in weight_formats().values()
        for name in stored.names
        for spelling in name.spellings
    }


@cache
def _spellings() -> dict[str, WeightFormat]:
    formats = weight_formats()
    return {
        **{spelling: stored for spelling, (_, stored) in named_formats().items()},
        **{alias: stored for stored in formats.values() for alias in stored.aliases},
        **{name.replace("_", "-"): stored for name, stored in formats.items()},
    }


def find_format(name: str) -> WeightFormat:
    """Return the storage format of this name or alias, ignoring case and treating `_` as `-`. Raises UnknownName.

    This is the format of one matrix; `scheme_for` resolves names of `--quantization`, which may mix formats within a
    model (GGUF's Q4_K_M).
    """
    stored = _spellings().get(name.strip().lower().replace("_", "-"))
    if stored is None:
        raise UnknownName("weight format", name, weight_formats(), aliases=_spellings())
    return stored


def grouped_int_format(bits: int, group_size: int, *, zero_point: bool) -> WeightFormat:
    """Return the format of weight-only integers; `group_size` 0 or less: one scale per output row.

    Each group has one FP16 scale and optionally one zero point of `bits` bits. GPTQ's `g_idx` (4 bytes per input,
    dropped at loading unless act-order is on) is not included: 0.2 % at 4 bit.
    """
    group = f"g{group_size}{'' if zero_point else '-sym'}" if group_size > 0 else "channel"
    name = f"int{bits}-{group}"
    return weight_formats().get(name) or WeightFormat(
        name=name,
        value_bits=bits,
        compute_dtype="bf16",
        kernel="w4a16" if bits <= 4 else "w8a16",
        scale_bits=16,
        zero_point_bits=bits if zero_point else 0,
        block_columns=max(group_size, 0),
        min_compute_capability=7.5,
        family="int-weight-only",
        quality="int4" if bits == 4 else "",
        source="AutoGPTQ and AutoAWQ checkpoint layout (qweight, scales FP16, qzeros), 2023-2024; datasheet",
    )
