"""Every storage format of a matrix, each with its names, its family and the kernel that multiplies it."""

from functools import cache
from pathlib import Path
from typing import Any

from capacity.base.data_files import Table, make_row, read_rows
from capacity.base.errors import UnknownName
from capacity.model.quantization.weight_format import QuantizationName, WeightFormat

TABLE = Path(__file__).with_name("weight_formats.json")


@cache
def weight_formats() -> dict[str, WeightFormat]:
    """All formats by name. Raises MalformedFile."""
    return read_rows(TABLE, _make_format)


def _make_format(name: str, names: tuple[Table, ...] = (), **fields: Any) -> WeightFormat:
    found = tuple(make_row(TABLE, name, QuantizationName, each) for each in names)
    return WeightFormat(name=name, names=found, **fields)


@cache
def named_formats() -> dict[str, tuple[QuantizationName, WeightFormat]]:
    """Return every spelling of `--quantization`, with its name and its weight format."""
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


def known_formats() -> tuple[str, ...]:
    """Names of every storage format of a matrix."""
    return tuple(weight_formats())


def find_format(name: str) -> WeightFormat:
    """The storage format of this name or alias, whatever its case and `_` or `-`. Raises UnknownName.

    A format is of one matrix; `--quantization` names, which mix formats within a model (GGUF's Q4_K_M), are
    resolved by `scheme_for`.
    """
    stored = _spellings().get(name.strip().lower().replace("_", "-"))
    if stored is None:
        raise UnknownName("weight format", name, weight_formats(), aliases=_spellings())
    return stored


def grouped_int_format(bits: int, group_size: int, *, zero_point: bool) -> WeightFormat:
    """Weight-only integers of any width and group (`group_size` 0 or less: one scale for each output).

    One FP16 scale (and one zero point of `bits`) for each group. GPTQ's `g_idx` (4 bytes for each input, dropped at
    loading unless act-order is on) is left out: 0.2 % at 4 bit.
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
