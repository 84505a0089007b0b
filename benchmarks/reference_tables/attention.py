"""Attention: decode and prefill over grouped queries, and multi-head latent attention."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from capacity.hardware.calibration import Constants, Parameter
from capacity.hardware.coefficients import (
    AttentionCoefficients,
)
from capacity.step.operators import attention_seconds
from reference_tables.form import (
    Collected,
    Operator,
    fraction,
    latency,
    made,
    profile_of,
    read,
    sharpness,
)

MIN_KV_OVER_L2 = 1.5  # decode KV larger than this comes from HBM
MAX_HOT_KV_OVER_L2 = 0.7  # smaller than this sits in L2; between the two nobody knows
L2_SAVING = {"l40s": 0.9}  # 1 - HBM/L2 bandwidth, else 0.6: assumed, from a ratio of 2.5 (GDDR6: 10)
MIN_PREFILL_TOKENS = 512
MAX_TRTLLM_GROUP = 16
PREFERRED_KERNEL = {  # where an engine has several, the one it chooses by itself
    ("sglang", "16bit"): "trtllm_mha",
    ("sglang", "8bit"): "trtllm_mha",
}
UNSPLIT = {("l40s", "trtllm", "8bit")}
"""Tables of decode kernels that do not split a context over blocks: few sequences of 4,096 tokens and more take 16 to
18 ns a token, whatever their bytes (1 to 8 sequences, 1 to 8 KV heads), where the same engine's 16-bit rows take what
HBM allows."""
NOT_SERVED = {("a100", "sglang")}  # FlashAttention 3, where SGLang itself chooses FlashInfer


class AttentionRow(NamedTuple):
    flops: float
    moved_bytes: float
    kv_head_rows: float
    mean_context: float
    sm_count: float
    flops_per_s: float
    hbm_bytes_per_s: float


def predict_attention(constants: Constants, row: AttentionRow) -> float:
    """Seconds of one layer's attention."""
    return attention_seconds(
        row.flops,
        row.moved_bytes,
        kv_head_rows=row.kv_head_rows,
        mean_context=row.mean_context,
        sm_count=row.sm_count,
        flops_per_s=row.flops_per_s,
        hbm_bytes_per_s=row.hbm_bytes_per_s,
        constants=made(AttentionCoefficients, constants),
    )


def _kv_key(dtype: str) -> str:
    return "8bit" if dtype == "fp8" else "16bit"


def _preferred(frame: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    """Tables by (GPU, engine, KV dtype), of one kernel each."""
    kernels = frame.assign(kv=frame["kv_cache_dtype"].map(_kv_key))
    for (gpu, engine, kv), table in kernels.groupby(["gpu", "engine", "kv"]):
        if (gpu, engine) in NOT_SERVED:
            continue
        preferred = PREFERRED_KERNEL.get((str(engine), str(kv)))
        chosen = table[table["kernel_source"] == preferred]
        yield (str(gpu), str(engine), str(kv)), chosen if len(chosen) else table


DECODE_PARAMETERS = (
    fraction("bandwidth_fraction", 0.85, 0.3),
    latency("fixed_s", 1e-5, 0.3),
    latency("occupancy_s", 1.5e-6, 0.3, high=2e-5),
    latency("per_doubling_s", 5e-7, 0.3, high=1e-5),
    sharpness(2.0, 0.15),
)
WALK_PARAMETER = Parameter(name="per_token_s", start=1e-8, low=1e-12, high=1e-6)


def decode_attention(measured: Path, *, split: bool) -> Operator:
    """Decode attention by kernels that split contexts over blocks, or by those that do not (one constant more).

    Where the repeated KV sits in L2, what reading it from HBM takes longer is added.
    """
    collected = Collected()
    for key, table in _preferred(read(measured, "silicon_attention_generation")):
        if (key not in UNSPLIT) is not split:
            continue
        profile = profile_of(key[0])
        for r in table.itertuples():
            kv_bytes = (
                2.0 * r.batch_size * r.seq_kv * r.num_kv_heads * r.head_dim * (1 if key[2] == "8bit" else 2)
            )
            if key[1] == "trtllm" and r.num_heads > MAX_TRTLLM_GROUP * r.num_kv_heads:
                continue
            hot = kv_bytes < MIN_KV_OVER_L2 * profile.l2_bytes
            if hot and kv_bytes > MAX_HOT_KV_OVER_L2 * profile.l2_bytes:
                continue
            cold_s = L2_SAVING.get(key[0], 0.6) * kv_bytes / profile.hbm_bytes_per_s if hot else 0.0
            row = AttentionRow(
                flops=4.0 * r.batch_size * r.seq_kv * r.num_heads * r.head_dim,
                moved_bytes=kv_bytes + 4.0 * r.batch_size * r.num_heads * r.head_dim,
                kv_head_rows=r.batch_size * r.num_kv_heads,
                mean_context=r.seq_kv,
                sm_count=profile.sm_count,
                flops_per_s=profile.dense_flops_per_s["bf16"],
                hbm_bytes_per_s=profile.hbm_bytes_per_s,
            )
            group = (r.num_heads, r.num_kv_heads, r.batch_size)
            regime = "L2" if hot else "HBM"
            seconds = r.latency_us * 1e-6 + cold_s
            collected.add(key, r, row, table="decode attention", group=group, seconds=seconds, regime=regime)
    return Operator(
        name="decode_attention",
        parameters=DECODE_PARAMETERS if split else (*DECODE_PARAMETERS, WALK_PARAMETER),
        predict=predict_attention,
        tables=collected.tables,
        pools=lambda key: "blackwell" if "b200" in key[0] else key[0],
        held_out_by="heads, batch",
        sources=collected.sources,
        lines=collected.lines,
    )


def prefill_attention(measured: Path) -> Operator:
    """Causal prefill attention of whole prompts of at least 512 tokens."""
    collected = Collected()
    for key, table in _preferred(read(measured, "silicon_attention_context")):
        profile = profile_of(key[0])
        for r in table.itertuples():
            if r.isl < MIN_PREFILL_TOKENS:
                continue
            kv_bytes = (
                2.0 * r.batch_size * r.isl * r.num_kv_heads * r.head_dim * (1 if key[2] == "8bit" else 2)
            )
            row = AttentionRow(
                flops=2.0 * r.batch_size * r.isl * (r.isl + 1) * r.num_heads * r.head_dim,
                moved_bytes=kv_bytes + 4.0 * r.batch_size * r.isl * r.num_heads * r.head_dim,
                kv_head_rows=r.batch_size * r.num_kv_heads,
                mean_context=0.0,
                sm_count=profile.sm_count,
                flops_per_s=profile.dense_flops_per_s["bf16"],
                hbm_bytes_per_s=profile.hbm_bytes_per_s,
            )
            group = (r.num_heads, r.num_kv_heads)
            collected.add(key, r, row, table="prefill attention", group=group)
    return Operator(
        name="prefill_attention",
        parameters=(
            fraction("compute_fraction", 0.6),
            fraction("bandwidth_fraction", 0.4),
            latency("fixed_s", 1.5e-5),
        ),
        predict=predict_attention,
        tables=collected.tables,
        pools=lambda key: key,
        held_out_by="heads",
        sources=collected.sources,
        lines=collected.lines,
    )


# MLA: DeepSeek-V3's dimensions, which the tables were measured with
MLA_LATENT, MLA_ROPE, MLA_NOPE, MLA_VALUE = 512, 64, 128, 128


def mla(measured: Path, *, decode: bool) -> Operator:
    """MLA of TensorRT-LLM and SGLang: expanded prefill, or absorbed decode."""
    name = "mla_decode" if decode else "mla_prefill"
    frame = read(measured, "silicon_mla_generation" if decode else "silicon_mla_context")
    collected = Collected()
    for r in frame.itertuples():
        if decode and r.gpu == "a100":
            continue
        key = (r.gpu, r.engine, _kv_key(r.kv_cache_dtype))
        profile = profile_of(r.gpu)
        flops, moved = _mla_decode_work(r) if decode else _mla_prefill_work(r)
        row = AttentionRow(
            flops=flops,
            moved_bytes=moved,
            kv_head_rows=r.batch_size,
            mean_context=0.0,
            sm_count=profile.sm_count,
            flops_per_s=profile.dense_flops_per_s["bf16"],
            hbm_bytes_per_s=profile.hbm_bytes_per_s,
        )
        group = (r.num_heads, r.batch_size)
        collected.add(key, r, row, table=name.replace("_", " "), group=group)
    prefill = (
        fraction("compute_fraction", 0.5),
        fraction("bandwidth_fraction", 0.4),
        latency("fixed_s", 1.5e-5),
    )
    absorbed = (sharpness(1.5), Parameter(name="occupancy_s", start=3e-6, low=1e-8, high=5e-5))
    return Operator(
        name=name,
        parameters=(*prefill, *absorbed) if decode else prefill,
        predict=predict_attention,
        tables=collected.tables,
        pools=lambda key: key,
        held_out_by="heads, batch",
        sources=collected.sources,
        lines=collected.lines,
    )


def _mla_prefill_work(r: Any) -> tuple[float, float]:
    width = r.num_heads * (MLA_NOPE + MLA_ROPE + MLA_VALUE)
    flops = r.batch_size * width * r.isl * (r.isl + 1.0)
    return flops, 2 * 2.0 * r.batch_size * r.isl * width


def _mla_decode_work(r: Any) -> tuple[float, float]:
    context = r.isl + r.step
    width = 2 * MLA_LATENT + MLA_ROPE
    cache_bytes = context * (MLA_LATENT + MLA_ROPE) * (1.0 if r.kv_cache_dtype == "fp8" else 2.0)
    flops = 2.0 * r.batch_size * context * r.num_heads * width
    return flops, r.batch_size * (cache_bytes + r.num_heads * width * 2.0)
