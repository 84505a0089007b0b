"""Measured kernels as calibration reads them: which rows, in which form, held out by what, and what is left out, why.

The tables are those of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), sampled. Left out:
- matrices under 8 MB of weights, and decode attention over 0.7 to 1.5 x the L2 cache: the collector repeats a
  kernel on the same few buffers, which then stay in L2; in serving other layers run between;
- GEMMs with N or K under 512: no model has them;
- vLLM's modelopt FP8 experts on Hopper: 13 to 19 % of HBM, a kernel that nobody should choose;
- experts with two matrices (`nongated`, Nemotron's shapes), `situ` and `min_latency` kernels: other operators;
- TensorRT-LLM decode attention of more than 16 query heads to a KV head: there it falls back to a kernel up to 20
  times slower, which no model with grouped queries meets;
- TensorRT-LLM 1.0 decode attention on A100: a third of its rows are faster than HBM (none is in the sample);
- absorbed MLA of TensorRT-LLM 1.0 on A100: does not fit any physical form (44 / 110 %);
- eager all-reduce: it measures the launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from capacity.hardware import HardwareProfile, load_profile
from capacity.hardware.calibration import Constants, Measurement, Parameter
from capacity.hardware.coefficients import (
    AllReduceCoefficients,
    AttentionCoefficients,
    Coefficients,
    CollectiveCoefficients,
    GemmCoefficients,
    MoeCoefficients,
)
from capacity.step.collectives import all_reduce_seconds, nccl_seconds, ring_all_reduce_bytes
from capacity.step.operators import attention_seconds, gemm_seconds, moe_seconds

PROFILES = {
    "a100": "a100-sxm-80gb",
    "h100": "h100-sxm-80gb",
    "h200": "h200-sxm-141gb",
    "b200": "b200-sxm-180gb",
    "gb200": "gb200-nvl72",
    "l40s": "l40s-48gb",
}
MIN_WEIGHT_BYTES = 8e6
MIN_GEMM_DIMENSION = 512
MIN_KV_OVER_L2 = 1.5  # decode KV larger than this comes from HBM
MAX_HOT_KV_OVER_L2 = 0.7  # smaller than this sits in L2; between the two nobody knows
L2_SAVING = {"l40s": 0.9}  # 1 - HBM/L2 bandwidth, else 0.6: assumed, from a ratio of 2.5 (GDDR6: 10)
MIN_PREFILL_TOKENS = 512
MAX_TRTLLM_GROUP = 16
PREFERRED_KERNEL = {  # where an engine has several, the one it chooses by itself
    ("sglang", "16bit"): "trtllm_mha",
    ("sglang", "8bit"): "trtllm_mha",
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


def read(measured: Path, name: str) -> pd.DataFrame:
    """One reference table."""
    return pd.read_csv(measured / f"{name}.csv.gz")


def _fraction(name: str, start: float, spread: float | None = None, *, low: float = 0.02) -> Parameter:
    return Parameter(name=name, start=start, low=low, high=1.0, spread=spread)


def _latency(name: str, start: float, spread: float | None = None, *, high: float = 3e-4) -> Parameter:
    return Parameter(name=name, start=start, low=1e-7, high=high, spread=spread)


def _sharpness(start: float, spread: float | None = None, *, low: float = 1.0) -> Parameter:
    return Parameter(name="sharpness", start=start, low=low, high=16.0, spread=spread)


# GEMM


class GemmRow(NamedTuple):
    m: float
    n: float
    k: float
    weight_bytes: float
    activation_bits: float
    flops_per_s: float
    hbm_bytes_per_s: float


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
GEMM_PARAMETERS = (
    _fraction("compute_fraction", 0.7),
    _fraction("bandwidth_fraction", 0.8),
    _sharpness(3.0),
    _latency("fixed_s", 4e-6),
    Parameter(name="per_k_s", start=2e-10, low=1e-13, high=1e-8),
)
QUANTIZE_PARAMETER = _fraction("quantize_fraction", 0.3, low=0.005)


def predict_gemm(constants: Constants, row: GemmRow) -> float:
    """Seconds of one product."""
    return gemm_seconds(
        row.m,
        row.n,
        row.k,
        weight_bytes=row.weight_bytes,
        activation_bits=row.activation_bits,
        flops_per_s=row.flops_per_s,
        hbm_bytes_per_s=row.hbm_bytes_per_s,
        constants=made(GemmCoefficients, constants),
    )


def gemm(measured: Path, *, quantized: bool) -> Operator:
    """GEMMs with 16-bit activations, or those that quantize them (one constant more)."""
    tables: dict[tuple[str, str, str], list[Measurement[Any]]] = {}
    sources: dict[tuple[str, str, str], str] = {}
    for gpu in ("a100", "h100", "h200", "b200", "l40s"):
        frame = read(measured, f"silicon_gemm_{gpu}")
        profile = profile_of(gpu)
        for r in frame.itertuples():
            table = FORMATS[r.quant]
            weights = r.n * r.k * table.weight_bits / 8
            if (table.activation_bits < 16) != quantized or min(r.n, r.k) < MIN_GEMM_DIMENSION:
                continue
            if weights < MIN_WEIGHT_BYTES:
                continue
            key = (gpu, r.engine, table.kernel)
            row = GemmRow(
                r.m,
                r.n,
                r.k,
                weights,
                table.activation_bits,
                profile.dense_flops_per_s[table.dtype],
                profile.hbm_bytes_per_s,
            )
            tables.setdefault(key, []).append(
                Measurement(row=row, seconds=r.latency_us * 1e-6, group=(r.n, r.k))
            )
            sources[key] = _source("gemm", r)
    return Operator(
        name="gemm",
        parameters=(*GEMM_PARAMETERS, QUANTIZE_PARAMETER) if quantized else GEMM_PARAMETERS,
        predict=predict_gemm,
        tables=tables,
        pools=lambda key: key,
        held_out_by="N, K",
        sources=sources,
    )


def _source(table: str, row: Any) -> str:
    kernel = str(row.kernel_source).rsplit("/", 1)[-1][:40]
    return f"aiconfigurator-core 0.12.0, {table}: {row.engine} {row.engine_version} {kernel}"


# attention


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
        preferred = PREFERRED_KERNEL.get((str(engine), str(kv)))
        chosen = table[table["kernel_source"] == preferred]
        yield (str(gpu), str(engine), str(kv)), chosen if len(chosen) else table


def decode_attention(measured: Path) -> Operator:
    """Decode attention. Where the repeated KV sits in L2, what reading it from HBM takes longer is added."""
    tables: dict[tuple[str, str, str], list[Measurement[Any]]] = {}
    sources: dict[tuple[str, str, str], str] = {}
    for key, table in _preferred(read(measured, "silicon_attention_generation")):
        profile = profile_of(key[0])
        rows = []
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
            rows.append(
                Measurement(row=row, seconds=r.latency_us * 1e-6 + cold_s, group=group, regime=regime)
            )
            sources[key] = _source("decode attention", r)
        if rows:
            tables[key] = rows
    return Operator(
        name="decode_attention",
        parameters=(
            _fraction("bandwidth_fraction", 0.85, 0.3),
            _latency("fixed_s", 1e-5, 0.3),
            _latency("occupancy_s", 1.5e-6, 0.3, high=2e-5),
            _latency("per_doubling_s", 5e-7, 0.3, high=1e-5),
            _sharpness(2.0, 0.15),
        ),
        predict=predict_attention,
        tables=tables,
        pools=lambda key: "blackwell" if "b200" in key[0] else key[0],
        held_out_by="heads, batch",
        sources=sources,
    )


def prefill_attention(measured: Path) -> Operator:
    """Causal prefill attention of whole prompts of at least 512 tokens."""
    tables: dict[tuple[str, str, str], list[Measurement[Any]]] = {}
    sources: dict[tuple[str, str, str], str] = {}
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
            tables.setdefault(key, []).append(Measurement(row=row, seconds=r.latency_us * 1e-6, group=group))
            sources[key] = _source("prefill attention", r)
    return Operator(
        name="prefill_attention",
        parameters=(
            _fraction("compute_fraction", 0.6),
            _fraction("bandwidth_fraction", 0.4),
            _latency("fixed_s", 1.5e-5),
        ),
        predict=predict_attention,
        tables=tables,
        pools=lambda key: key,
        held_out_by="heads",
        sources=sources,
    )


# MLA: DeepSeek-V3's dimensions, which the tables were measured with
MLA_LATENT, MLA_ROPE, MLA_NOPE, MLA_VALUE = 512, 64, 128, 128


def mla(measured: Path, *, decode: bool) -> Operator:
    """MLA of TensorRT-LLM and SGLang: expanded prefill, or absorbed decode."""
    name = "mla_decode" if decode else "mla_prefill"
    frame = read(measured, "silicon_mla_generation" if decode else "silicon_mla_context")
    tables: dict[tuple[str, str, str], list[Measurement[Any]]] = {}
    sources: dict[tuple[str, str, str], str] = {}
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
        tables.setdefault(key, []).append(Measurement(row=row, seconds=r.latency_us * 1e-6, group=group))
        sources[key] = _source(name.replace("_", " "), r)
    prefill = (
        _fraction("compute_fraction", 0.5),
        _fraction("bandwidth_fraction", 0.4),
        _latency("fixed_s", 1.5e-5),
    )
    absorbed = (_sharpness(1.5), Parameter(name="occupancy_s", start=3e-6, low=1e-8, high=5e-5))
    return Operator(
        name=name,
        parameters=(*prefill, *absorbed) if decode else prefill,
        predict=predict_attention,
        tables=tables,
        pools=lambda key: key,
        held_out_by="heads, batch",
        sources=sources,
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


# experts


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
    frame = read(measured, "silicon_moe")
    tables: dict[tuple[str, str, str], list[Measurement[Any]]] = {}
    sources: dict[tuple[str, str, str], str] = {}
    for r in frame.itertuples():
        if r.distribution != "balanced" or r.moe_tp_size * r.moe_ep_size > 8:
            continue
        if any(word in r.kernel_source for word in OTHER_EXPERT_KERNELS):
            continue
        if (r.hidden_size, r.inter_size) in TWO_MATRIX_SHAPES or (
            "modeloptfp8" in r.kernel_source and r.gpu[0] == "h"
        ):
            continue
        table = FORMATS[r.quant]
        kernel = "w4a16" if r.quant == "int4_wo" else table.kernel
        key = (r.gpu, r.engine, kernel)
        tables.setdefault(key, []).append(
            Measurement(
                row=_expert_row(r, table),
                seconds=r.latency_us * 1e-6,
                group=(r.hidden_size, r.inter_size / r.moe_tp_size, r.num_experts / r.moe_ep_size, r.topk),
            )
        )
        sources[key] = _source("moe", r)
    return Operator(
        name="moe",
        parameters=(
            _fraction("compute_fraction", 0.4, 0.5),
            _fraction("bandwidth_fraction", 0.8, 0.5),
            _sharpness(2.0, 0.2),
            _latency("fixed_s", 3.5e-5, 0.5),
            _fraction("routed_fraction", 0.3, 0.5, low=0.01),
        ),
        predict=predict_experts,
        tables=tables,
        pools=lambda key: ("hopper", *key[1:]) if key[0] in ("h100", "h200") else key[0],
        held_out_by="expert shape",
        sources=sources,
    )


def _expert_row(r: Any, table: QuantizedTable) -> ExpertRow:
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


# collectives


class MessageRow(NamedTuple):
    kind: str
    message_bytes: float
    ranks: int
    link_bytes_per_s: float


ALL_REDUCE_ENGINES = {
    "vLLM_custom_graph": "vllm",
    "SGLang_CustomAllReduce_graph": "sglang",
    "TRTLLM": "trtllm",
}


def predict_all_reduce(constants: Constants, row: MessageRow) -> float:
    """Seconds of one engine's all-reduce."""
    return all_reduce_seconds(
        row.message_bytes,
        row.ranks,
        link_bytes_per_s=row.link_bytes_per_s,
        constants=made(AllReduceCoefficients, constants),
    )


def all_reduce(measured: Path) -> Operator:
    """The engines' own all-reduce among 2 to 8 GPUs, under CUDA graphs."""
    tables: dict[tuple[str, str, str], list[Measurement[Any]]] = {}
    sources: dict[tuple[str, str, str], str] = {}
    for r in read(measured, "silicon_allreduce").itertuples():
        engine = ALL_REDUCE_ENGINES.get(r.kernel_source)
        if engine is None or r.num_gpus > 8 or not profile_of(r.gpu).scale_up.kind.startswith("nvlink"):
            continue
        key = (r.gpu, engine, "all_reduce")
        row = MessageRow("all_reduce", float(r.bytes), r.num_gpus, profile_of(r.gpu).scale_up.bytes_per_s)
        group = int(math.log2(r.bytes)) // 2
        tables.setdefault(key, []).append(Measurement(row=row, seconds=r.latency_us * 1e-6, group=group))
        sources[key] = _source("all-reduce", r)
    return Operator(
        name="all_reduce",
        parameters=(
            _latency("one_shot_fixed_s", 4e-6),
            _fraction("one_shot_fraction", 0.5),
            _latency("two_shot_fixed_s", 8e-6),
            _fraction("two_shot_fraction", 0.65),
            Parameter(name="two_shot_gain", start=1.1, low=0.7, high=2.0),
            Parameter(name="per_rank_s", start=1e-7, low=1e-9, high=1e-5),
            Parameter(name="sharpness", start=1.0, low=0.4, high=3.0),
        ),
        predict=predict_all_reduce,
        tables=tables,
        pools=lambda key: key,
        held_out_by="message size",
        sources=sources,
    )


NCCL_KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "alltoall": "all_to_all"}


def sent_bytes(kind: str, message_bytes: float, ranks: int) -> float:
    """Bytes that leave a rank; all-gather and all-to-all messages are totals over ranks."""
    if kind == "all_reduce":
        return ring_all_reduce_bytes(message_bytes, ranks)
    return message_bytes * (ranks - 1) / ranks


def predict_nccl(constants: Constants, row: MessageRow) -> float:
    """Seconds of a NCCL collective."""
    return nccl_seconds(
        sent_bytes(row.kind, row.message_bytes, row.ranks),
        row.ranks,
        link_bytes_per_s=row.link_bytes_per_s,
        constants=made(CollectiveCoefficients, constants),
    )


def nccl(measured: Path) -> Operator:
    """NCCL among 2 to 8 GPUs of a node."""
    tables: dict[tuple[str, str, str], list[Measurement[Any]]] = {}
    sources: dict[tuple[str, str, str], str] = {}
    frames = pd.concat([read(measured, "silicon_allreduce"), read(measured, "silicon_nccl_other")])
    for r in frames[frames["engine"] == "nccl"].itertuples():
        if r.op not in NCCL_KINDS or r.num_gpus > 8:
            continue
        profile = profile_of(r.gpu)
        link = profile.scale_up if profile.scale_up.kind.startswith("nvlink") else profile.pcie
        kind = NCCL_KINDS[r.op]
        key = (r.gpu, "nccl", kind)
        row = MessageRow(kind, float(r.bytes), r.num_gpus, link.bytes_per_s)
        group = int(math.log2(r.bytes)) // 2
        tables.setdefault(key, []).append(Measurement(row=row, seconds=r.latency_us * 1e-6, group=group))
        sources[key] = _source(f"nccl {kind}", r)
    return Operator(
        name="nccl",
        parameters=(
            _latency("fixed_s", 6e-6),
            _latency("per_rank_s", 1.5e-6),
            _fraction("bandwidth_fraction", 0.75),
            _sharpness(0.7, low=0.3),
        ),
        predict=predict_nccl,
        tables=tables,
        pools=lambda key: key,
        held_out_by="message size",
        sources=sources,
    )


def operators(measured: Path) -> tuple[Operator, ...]:
    """All operator families with tables, in the order in which profiles list them."""
    return (
        gemm(measured, quantized=False),
        gemm(measured, quantized=True),
        prefill_attention(measured),
        decode_attention(measured),
        mla(measured, decode=False),
        mla(measured, decode=True),
        experts(measured),
        all_reduce(measured),
        nccl(measured),
    )
