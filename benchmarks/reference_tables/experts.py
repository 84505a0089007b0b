"""Fused experts under balanced routing."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from capacity.hardware.calibration import Constants
from capacity.hardware.coefficients import (
    MoeCoefficients,
)
from capacity.step.expert_load import moe_seconds
from reference_tables.form import (
    FORMATS,
    Collected,
    Operator,
    QuantizedTable,
    fraction,
    latency,
    made,
    profile_of,
    read,
    sharpness,
)


class ExpertRow(NamedTuple):
    flops: float
    moved_bytes: float
    routed_bytes: float
    flops_per_s: float
    hbm_bytes_per_s: float


TWO_MATRIX_SHAPES = {(2688, 1856), (2048, 5120), (1024, 2688), (8192, 5120), (4096, 2688)}
LOCAL_ROUTING = (
    "trtllm",
)  # its kernels permute the rank's own tokens; the others' sort those of the whole batch
GENERATIONS = {"h100": "hopper", "h200": "hopper", "b200": "blackwell", "gb200": "blackwell"}
# Engines on Blackwell take TensorRT-LLM's generated kernels through FlashInfer; where these refuse a shape, the
# collector fell back on kernels of another library, which no model that is served there takes.
FALLBACKS = {"sglang": ("triton",), "vllm": ("cutlass", "marlin_marlinexperts")}
OTHER_EXPERT_KERNELS = ("nongated", "situ", "min_latency")


def predict_experts(constants: Constants, row: ExpertRow) -> float:
    """Seconds of one layer's routed experts."""
    return moe_seconds(
        row.flops,
        row.moved_bytes,
        row.routed_bytes,
        flops_per_s=row.flops_per_s,
        hbm_bytes_per_s=row.hbm_bytes_per_s,
        constants=made(MoeCoefficients, constants),
    )


def experts(measured: Path) -> Operator:
    """Fused experts under balanced routing, at most eight GPUs."""
    frame = pd.concat([read(measured, "silicon_moe"), read(measured, "silicon_moe_b200")])
    collected = Collected()
    for r in frame.itertuples():
        if r.distribution != "balanced" or r.moe_tp_size * r.moe_ep_size > 8:
            continue
        if any(word in r.kernel_source for word in OTHER_EXPERT_KERNELS):
            continue
        if (r.hidden_size, r.inter_size) in TWO_MATRIX_SHAPES or (
            "modeloptfp8" in r.kernel_source and r.gpu[0] == "h"
        ):
            continue
        if GENERATIONS.get(r.gpu) == "blackwell" and r.quant != "int4_wo" and _is_fallback(r):
            continue
        table = FORMATS[r.quant]
        kernel = "w4a16" if r.quant == "int4_wo" else table.kernel
        key = (r.gpu, r.engine, kernel)
        shape = (r.hidden_size, r.inter_size / r.moe_tp_size, r.num_experts / r.moe_ep_size, r.topk)
        collected.add(key, r, expert_row(r, table), table="moe", group=shape)
    return Operator(
        name="moe",
        parameters=(
            fraction("compute_fraction", 0.4, 0.5),
            fraction("bandwidth_fraction", 0.8, 0.5),
            sharpness(2.0, 0.2),
            latency("fixed_s", 3.5e-5, 0.5),
            fraction("routed_fraction", 0.3, 0.5, low=0.01),
        ),
        predict=predict_experts,
        tables=collected.tables,
        pools=_pool,
        held_out_by="expert shape",
        sources=collected.sources,
        lines=collected.lines,
    )


def _pool(key: tuple[str, str, str]) -> Hashable:
    """Tables of one kernel: of the sister GPU, and of engines that call the same library."""
    gpu, engine, kernel = key
    generation = GENERATIONS.get(gpu)
    if generation is None:
        return gpu
    shared = generation == "blackwell" and engine in FALLBACKS and kernel != "w4a16"
    return generation, "flashinfer" if shared else engine, kernel


def _is_fallback(r: Any) -> bool:
    return any(word in r.kernel_source for word in FALLBACKS.get(r.engine, ()))


def expert_row(r: Any, table: QuantizedTable) -> ExpertRow:
    profile = profile_of(r.gpu)
    pairs = r.num_tokens * r.topk / r.moe_ep_size
    touched = max(1.0, min(r.num_experts, r.num_tokens * r.topk) / r.moe_ep_size)
    intermediate = r.inter_size / r.moe_tp_size
    matrices = 3 * r.hidden_size * intermediate
    routed = pairs if r.engine in LOCAL_ROUTING else r.num_tokens * r.topk
    activations = r.hidden_size * (table.activation_bits / 8 + 2.0) + intermediate * 3 * 2.0
    return ExpertRow(
        flops=2.0 * pairs * matrices,
        moved_bytes=touched * matrices * table.weight_bits / 8 + pairs * activations,
        routed_bytes=routed * r.hidden_size * 2.0,
        flops_per_s=profile.dense_flops_per_s[table.dtype],
        hbm_bytes_per_s=profile.hbm_bytes_per_s,
    )
