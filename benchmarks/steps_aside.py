"""Measured whole steps that made nothing here, not even the intervals: only judged.

- Splitwise (ISCA 2024, MIT): prompts of Llama-2-70B on 2, 4 and 8 A100 under vLLM of 2023, medians of repeated trials.
  Prompts of under 1,024 tokens in all are left out, where that engine's launches, 20 to 65 ms, hide the GPU; and
  batches of over eight. What the times hold besides today's kernels: one prompt of up to 2,048 tokens is what vidur
  measured of that engine's kernels on such a machine (products, NCCL, norms and sums apart), to 2 % on two GPUs and
  with 14 ms of the host more on eight. Steps of 4,096 tokens take 90 to 190 ms more, on four and eight GPUs alike, and
  batches up to 25 % more than one prompt of as many tokens; no source says why (the paper shows the throughput of
  prompts fall beyond 2,048 tokens). They stay in, and are most of what is off.
- TensorRT-LLM 0.5 (2023, Apache-2.0): first-token times of Llama-2 on A100, H100 and L40S, in whole milliseconds (7 ms
  may be 6.5). The document of 0.6.1 prints them again ("the following data is from TensorRT-LLM v0.5"): counted once.
  Its engines take NCCL for every all-reduce and two products for gate and up, with kernels between that were fused
  later: with 128 tokens 50 us a layer more than today's, on H100 and H200 alike; only that release's, not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reference_tables.form import read
from step_evidence import Evidence, step_model

from capacity.step import prefill_shape

SPLITWISE_MIN_TOKENS = 1024
SPLITWISE_MAX_BATCH = 8
TRTLLM_VERSIONS = ("TensorRT-LLM v0.5.x",)
TRTLLM_GPUS = {"A100 SXM 80GB": "a100-sxm-80gb", "H100 SXM 80GB": "h100-sxm-80gb", "L40S": "l40s-48gb"}
TRTLLM_MODELS = {"LLaMA 7B": "llama-2-7b", "LLaMA 70B": "llama-2-70b"}


def aside(measured: Path) -> Iterator[Evidence]:
    """Every step of both sources."""
    yield from _splitwise(measured)
    yield from _tensorrt_llm(measured)


def _splitwise(measured: Path) -> Iterator[Evidence]:
    table = read(measured, "splitwise")
    table = table[table.metric == "ttft_ms"]
    for key, rows in table.groupby(["tp", "input_len", "batch_or_concurrency"]):
        tensor, tokens, batch = (int(value) for value in key)
        if tokens * batch < SPLITWISE_MIN_TOKENS or batch > SPLITWISE_MAX_BATCH:
            continue
        yield _prefill(
            "Splitwise",
            "a100-sxm-80gb",
            "vllm",
            "llama-2-70b",
            "",
            tensor,
            batch,
            tokens,
            rows.value.median(),
        )


def _tensorrt_llm(measured: Path) -> Iterator[Evidence]:
    table = read(measured, "trtllm_perf_v05_v09")
    for r in table[table.metric == "ttft_ms"].itertuples():
        if r.engine not in TRTLLM_VERSIONS or r.model not in TRTLLM_MODELS:
            continue
        yield _prefill(
            "TensorRT-LLM 0.5",
            TRTLLM_GPUS[r.gpu],
            "tensorrt-llm",
            TRTLLM_MODELS[r.model],
            r.weight_precision,
            int(r.tp),
            int(r.batch_or_concurrency),
            int(r.input_len),
            r.value,
        )


def _prefill(
    source: str,
    gpu: str,
    engine: str,
    model: str,
    weights: str,
    tensor: int,
    batch: int,
    tokens: int,
    ms: float,
) -> Evidence:
    fp8 = weights == "fp8"
    steps = step_model(
        gpu,
        model,
        engine,
        quantization="fp8" if fp8 else None,
        kv_cache_dtype="fp8" if fp8 else "auto",
        tensor_parallel_size=tensor,
    )
    return Evidence(
        source=source,
        gpu=gpu,
        engine=engine,
        model=model,
        regime="prefill",
        group=f"{source} {gpu} {model}",
        measured_s=ms / 1e3,
        predicted_s=steps.step_seconds(prefill_shape(batch, tokens)),
    )
