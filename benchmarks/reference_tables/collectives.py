"""All-reduce of engines, and collectives of NCCL."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from capacity.hardware.calibration import Constants, Parameter
from capacity.hardware.coefficients import (
    AllReduceCoefficients,
    CollectiveCoefficients,
)
from capacity.step.collectives import (
    all_reduce_seconds,
    nccl_seconds,
    ring_all_reduce_bytes,
    two_shot_fraction,
)
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
    """Seconds of one engine's all-reduce. The gain by ranks reaches at most the link's peak rate."""
    found = made(AllReduceCoefficients, constants)
    reached = min(two_shot_fraction(row.ranks, found), 1.0)
    return all_reduce_seconds(
        row.message_bytes,
        row.ranks,
        link_bytes_per_s=row.link_bytes_per_s,
        constants=found.model_copy(update={"two_shot_fraction": reached, "two_shot_gain": 1.0}),
    )


def all_reduce(measured: Path) -> Operator:
    """The engines' own all-reduce among 2 to 8 GPUs, under CUDA graphs."""
    collected = Collected()
    for r in read(measured, "silicon_allreduce").itertuples():
        engine = ALL_REDUCE_ENGINES.get(r.kernel_source)
        if engine is None or r.num_gpus > 8 or not profile_of(r.gpu).scale_up.kind.startswith("nvlink"):
            continue
        key = (r.gpu, engine, "all_reduce")
        row = MessageRow("all_reduce", float(r.bytes), r.num_gpus, profile_of(r.gpu).scale_up.bytes_per_s)
        group = int(math.log2(r.bytes)) // 2
        collected.add(key, r, row, table="all-reduce", group=group)
    return Operator(
        name="all_reduce",
        parameters=(
            latency("one_shot_fixed_s", 4e-6),
            fraction("one_shot_fraction", 0.5),
            latency("two_shot_fixed_s", 8e-6),
            fraction("two_shot_fraction", 0.65),
            Parameter(name="two_shot_gain", start=1.1, low=0.7, high=2.0),
            Parameter(name="per_rank_s", start=1e-7, low=1e-9, high=1e-5),
            Parameter(name="sharpness", start=1.0, low=0.4, high=3.0),
        ),
        predict=predict_all_reduce,
        tables=collected.tables,
        pools=lambda key: key,
        held_out_by="message size",
        sources=collected.sources,
        lines=collected.lines,
    )


PEERS_OF_MACHINE = {"l40s": 2}
"""GPUs among which a table's machine lets peers read each other's memory; rows of more GPUs are left out, by name.

On the L40S machine a pair moves 20 GB/s (all-reduce, 32 MiB and more), four GPUs 5.1 and eight 1.2 GB/s each: NCCL
2.27 goes through host memory there beyond one PCIe switch. TensorRT-LLM's documentation names such a fault (0.18.2,
performance overview, Known Issues: all-reduce on AMD hosts since NCCL 2.23.4, cured by NCCL_P2P_LEVEL=SYS), and its
own L40S servers have 16 GB/s with four and with eight (70B, 2,048 tokens, 0.8 and 0.9). One fit to all of it was 34
to 41 % off."""

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
    collected = Collected()
    frames = pd.concat([read(measured, "silicon_allreduce"), read(measured, "silicon_nccl_other")])
    for r in frames[frames["engine"] == "nccl"].itertuples():
        if r.op not in NCCL_KINDS or r.num_gpus > PEERS_OF_MACHINE.get(r.gpu, 8):
            continue
        profile = profile_of(r.gpu)
        link = profile.scale_up if profile.scale_up.kind.startswith("nvlink") else profile.pcie
        kind = NCCL_KINDS[r.op]
        key = (r.gpu, "nccl", kind)
        row = MessageRow(kind, float(r.bytes), r.num_gpus, link.bytes_per_s)
        group = int(math.log2(r.bytes)) // 2
        table = f"nccl {kind}" + (f" of {PEERS_OF_MACHINE[r.gpu]} GPUs" if r.gpu in PEERS_OF_MACHINE else "")
        collected.add(key, r, row, table=table, group=group)
    return Operator(
        name="nccl",
        parameters=(
            latency("fixed_s", 6e-6),
            latency("per_rank_s", 1.5e-6),
            fraction("bandwidth_fraction", 0.75),
            sharpness(0.7, low=0.3),
        ),
        predict=predict_nccl,
        tables=collected.tables,
        pools=lambda key: key,
        held_out_by="message size",
        sources=collected.sources,
        lines=collected.lines,
    )
