"""What every reference table is read into: rows by (GPU, engine, kernel), the form, and the constants to fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from capacity.hardware import HardwareProfile, load_profile
from capacity.hardware.calibration import Constants, Measurement, Parameter
from capacity.hardware.coefficients import (
    Coefficients,
)

PROFILES = {
    "a100": "a100-sxm-80gb",
    "h100": "h100-sxm-80gb",
    "h200": "h200-sxm-141gb",
    "b200": "b200-sxm-180gb",
    "gb200": "gb200-nvl72",
    "l40s": "l40s-48gb",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator family: its tables by (GPU, engine, kernel), the form, and the constants to fit."""

    name: str  # the field of KernelFamily
    parameters: tuple[Parameter, ...]
    predict: Callable[[Constants, Any], float]
    tables: dict[tuple[str, str, str], list[Measurement[Any]]]
    pools: Callable[[tuple[str, str, str]], Hashable]
    held_out_by: str
    sources: dict[tuple[str, str, str], str]
    lines: dict[
        tuple[str, str, str], list[tuple[str, int]]
    ]  # file and row of each measurement, in `tables`' order


@lru_cache(maxsize=8)
def profile_of(gpu: str) -> HardwareProfile:
    """The profile of a GPU as the tables call it."""
    return load_profile(PROFILES[gpu])


class _Made:
    """The coefficient set of the constants asked for last: a fit asks for the same ones row after row."""

    constants: Constants | None = None
    value: Any = None


def made(kind: type[Coefficients], constants: Constants) -> Any:
    """`constants` as a coefficient set, without validation; what is not fitted has no effect."""
    if _Made.constants is not constants or not isinstance(_Made.value, kind):
        neutral = {"compute_fraction": 1.0, "sharpness": 1.0}  # of kernels whose fit has neither
        known = {name: value for name, value in neutral.items() if name in kind.model_fields}
        _Made.constants, _Made.value = constants, kind.model_construct(**{**known, **constants})
    return _Made.value


def path_of(measured: Path, name: str) -> Path:
    """A reference table: the library's are compressed, those that ship with the tests are not."""
    whole = measured / f"{name}.csv.gz"
    return whole if whole.is_file() else measured / f"{name}.csv"


def read(measured: Path, name: str) -> pd.DataFrame:
    """One reference table, each row with the name of its `file`."""
    return pd.read_csv(path_of(measured, name), low_memory=False).assign(file=name)


def fraction(name: str, start: float, spread: float | None = None, *, low: float = 0.02) -> Parameter:
    return Parameter(name=name, start=start, low=low, high=1.0, spread=spread)


def latency(name: str, start: float, spread: float | None = None, *, high: float = 3e-4) -> Parameter:
    return Parameter(name=name, start=start, low=1e-7, high=high, spread=spread)


def sharpness(start: float, spread: float | None = None, *, low: float = 1.0) -> Parameter:
    return Parameter(name="sharpness", start=start, low=low, high=16.0, spread=spread)


class Collected:
    """Rows and sources of an operator family while its tables are read."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str, str], list[Measurement[Any]]] = {}
        self.sources: dict[tuple[str, str, str], str] = {}
        self.lines: dict[tuple[str, str, str], list[tuple[str, int]]] = {}

    def add(
        self, key: tuple[str, str, str], record: Any, row: Any, *, table: str, group: Hashable, **more: Any
    ) -> None:
        """One measured `record` of the table called `table`, in the form's `row`; `more`: fields of Measurement."""
        measured = {"seconds": record.latency_us * 1e-6, **more}
        self.tables.setdefault(key, []).append(Measurement(row=row, group=group, **measured))
        self.sources[key] = source_of(table, record)
        self.lines.setdefault(key, []).append((record.file, record.Index))


def source_of(table: str, row: Any) -> str:
    kernel = str(row.kernel_source).rsplit("/", 1)[-1][:40]
    return f"aiconfigurator-core 0.12.0, {table}: {row.engine} {row.engine_version} {kernel}"


class QuantizedTable(NamedTuple):
    """How a table's format is called here: kernel, roof, bits of a weight and of an activation."""

    kernel: str
    dtype: str
    weight_bits: float
    activation_bits: float


FORMATS = {
    "bfloat16": QuantizedTable("bf16", "bf16", 16, 16),
    "fp8": QuantizedTable("fp8", "fp8", 8, 8),
    "fp8_block": QuantizedTable("fp8_block", "fp8", 8 + 32 / 128**2, 8),
    "nvfp4": QuantizedTable("nvfp4", "fp4", 4.5, 4.5),
    "sq": QuantizedTable("int8", "int8", 8, 8),
    "int8_wo": QuantizedTable("w8a16", "bf16", 8, 16),
    "int4_wo": QuantizedTable("w4a16", "bf16", 4.156, 16),
    "w4a16_mxfp4": QuantizedTable("mxfp4", "bf16", 4.25, 16),
}
