"""Kernels that others measured in other ways, to which nothing here was fitted: a check from outside.

Vidur (Microsoft, MIT) profiled linear layers with PyTorch and NCCL collectives on A100 and H100 in 2024; whole
microseconds. They are predicted by the constants that vLLM's 16-bit products and NCCL's all-reduce have in the
profiles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capacity.hardware.calibration import Measurement
from reference_tables.collectives import MessageRow, predict_nccl
from reference_tables.form import Operator, profile_of, read
from reference_tables.gemm import (
    GEMM_PARAMETERS,
    MIN_GEMM_DIMENSION,
    MIN_WEIGHT_BYTES,
    GemmRow,
    predict_gemm,
)

MIN_MESSAGE_BYTES = 2**20  # smaller ones: the rank skew that this source says it includes


def elsewhere(measured: Path) -> tuple[Operator, ...]:
    """Operators of other sources; their rows' constants are the profiles' own."""
    return (_vidur_products(measured), _vidur_all_reduce(measured))


def _gpu(text: str) -> str:
    return text.split("-")[0].lower()


def _vidur_products(measured: Path) -> Operator:
    found = _Rows()
    for r in read(measured, "vidur_mlp_ops").itertuples():
        if not r.op.startswith("gemm") or min(r.n, r.k) < MIN_GEMM_DIMENSION:
            continue
        weights = 2.0 * r.n * r.k
        if weights < MIN_WEIGHT_BYTES:
            continue
        gpu = _gpu(r.gpu)
        profile = profile_of(gpu)
        row = GemmRow(r.m, r.n, r.k, weights, 16, profile.dense_flops_per_s["bf16"], profile.hbm_bytes_per_s)
        found.add((gpu, "vllm", "bf16"), r, row)
    return found.operator("gemm", GEMM_PARAMETERS, predict_gemm)


def _vidur_all_reduce(measured: Path) -> Operator:
    found = _Rows()
    for r in read(measured, "vidur_network").itertuples():
        inside = f"devices_per_node={r.num_gpus};" in r.notes and "DGX" in r.gpu
        if r.op != "all_reduce" or not inside or r.size_bytes < MIN_MESSAGE_BYTES:
            continue
        gpu = _gpu(r.gpu)
        link = profile_of(gpu).scale_up.bytes_per_s
        row = MessageRow("all_reduce", float(r.size_bytes), int(r.num_gpus), link)
        found.add((gpu, "nccl", "all_reduce"), r, row)
    return found.operator("nccl", (), predict_nccl)


class _Rows:
    """Rows of one source while they are read."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str, str], list[Measurement[Any]]] = {}
        self.lines: dict[tuple[str, str, str], list[tuple[str, int]]] = {}

    def add(self, key: tuple[str, str, str], record: Any, row: Any) -> None:
        self.tables.setdefault(key, []).append(
            Measurement(row=row, seconds=record.time_us * 1e-6, group=record.Index)
        )
        self.lines.setdefault(key, []).append((record.file, record.Index))

    def operator(self, name: str, parameters: Any, predict: Any) -> Operator:
        return Operator(
            name=name,
            parameters=parameters,
            predict=predict,
            tables=self.tables,
            pools=lambda key: key,
            held_out_by="source: nothing was fitted to it",
            sources=dict.fromkeys(self.tables, "vidur"),
            lines=self.lines,
        )
