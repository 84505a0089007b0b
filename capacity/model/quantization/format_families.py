"""Weight formats that differ in a few numbers: grouped integers, llama.cpp's blocks, the textbooks', their authors'."""

from __future__ import annotations

from capacity.model.quantization.weight_format import Kernel, WeightFormat
from capacity.model.quantization.weight_format import QuantizationName as Name


def grouped_int(
    bits: int,
    group: int,
    *,
    zero_point: bool = True,
    kernel: Kernel | None = None,
    names: tuple[Name, ...] = (),
) -> WeightFormat:
    """Weight-only integers with one FP16 scale (and one zero point of `bits`) for each `group` inputs.

    `kernel`: where it is not Marlin's. GPTQ's `g_idx` (4 bytes for each input, dropped at loading unless act-order
    is on) is left out: 0.2 % at 4 bit.
    """
    name = f"int{bits}-g{group}{'' if zero_point else '-sym'}" if group > 0 else f"int{bits}-channel"
    return WeightFormat(
        name=name if kernel is None else f"{name}-{kernel}",
        value_bits=bits,
        compute_dtype="bf16",
        kernel=kernel or ("w4a16" if bits <= 4 else "w8a16"),
        scale_bits=16,
        zero_point_bits=bits if zero_point else 0,
        block_columns=max(group, 0),
        min_compute_capability=7.5,
        family="int-weight-only",
        quality="int4" if bits == 4 else "",
        names=names,
        source="AutoGPTQ and AutoAWQ checkpoint layout (qweight, scales FP16, qzeros), 2023-2024; datasheet",
    )


def gguf_block(
    name: str, bits: float, *, block: int = 32, scale: int = 16, minimum: int = 0, per_256: int = 0
) -> WeightFormat:
    """A block format of llama.cpp: `scale` (and `minimum`) bits a block, and `per_256` bits of a super-block."""
    return WeightFormat(
        name=f"gguf-{name}",
        value_bits=bits,
        compute_dtype="bf16",
        kernel="gguf",
        scale_bits=scale,
        zero_point_bits=minimum,
        block_columns=block,
        nested_scale_bits=per_256,
        nested_group=256 // block if per_256 else 0,
        family="gguf",
        source="ggml-common.h block structures (ggml-org/llama.cpp), 2026; datasheet",
    )


def tensor_int8(name: str, *, scale_bits: int) -> WeightFormat:
    """INT8 with one scale (and one zero) for a whole matrix: the textbooks'."""
    return WeightFormat(
        name=name,
        value_bits=8,
        compute_dtype="int8",
        kernel="int8",
        tensor_scale_bits=scale_bits,
        min_compute_capability=7.5,
        fallback_kernel="w8a16",
        family="int8",
        names=(Name(name=name),),
        source="LLM.int8() paper, arXiv 2208.07339, section 2: one scale for each tensor",
    )


def of_authors(name: str, bits: float, *aliases: str, kernel: Kernel, source: str) -> WeightFormat:
    """A format with kernels of its authors, made for HF Transformers; `bits` hold all that is stored."""
    return WeightFormat(
        name=name,
        value_bits=bits,
        compute_dtype="bf16",
        kernel=kernel,
        min_compute_capability=8.0,
        family="research",
        names=(Name(name=name, aliases=aliases),),
        source=source,
    )
