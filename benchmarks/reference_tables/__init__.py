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
- SGLang's attention on A100: the collector ran its FlashAttention 3 backend on every GPU, and SGLang runs FlashInfer on
  Ampere (docs.sglang.io, attention backend). 0.505 of the bandwidth in decode, where FlashInfer on an L40S reaches
  0.80 to 0.86; FlashAttention 2 as measured in vLLM stands for it;
- absorbed MLA of TensorRT-LLM 1.0 on A100: does not fit any physical form (44 / 110 %);
- NCCL among four and eight L40S: that machine's messages go through host memory (`collectives.PEERS_OF_MACHINE`);
- eager all-reduce: it measures the launch.
"""

from __future__ import annotations

from pathlib import Path

from reference_tables.attention import decode_attention, mla, prefill_attention
from reference_tables.collectives import all_reduce, nccl
from reference_tables.experts import LOCAL_ROUTING, experts
from reference_tables.form import PROFILES, Operator
from reference_tables.gemm import gemm

__all__ = ["LOCAL_ROUTING", "PROFILES", "Operator", "all_reduce", "gemm", "operators"]


def operators(measured: Path) -> tuple[Operator, ...]:
    """All operator families with tables, in the order in which profiles list them."""
    return (
        gemm(measured, quantized=False),
        gemm(measured, quantized=True),
        prefill_attention(measured),
        decode_attention(measured, split=True),
        decode_attention(measured, split=False),
        mla(measured, decode=False),
        mla(measured, decode=True),
        experts(measured),
        all_reduce(measured),
        nccl(measured),
    )
