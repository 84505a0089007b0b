"""Measured whole steps beside predicted ones: what the step model is judged by, and nothing in it was fitted to.

- `published`: figures transcribed from public documents, `tests/data/published_steps.csv`: first-token times of
  TensorRT-LLM, token times of gpt-fast and LMDeploy. Libraries without a server: no host time. TensorRT-LLM's
  documents build engines without a checkpoint: weights are drawn from +-sqrt(6/(rows + columns)) (its parameter.py),
  in FP8 all of them subnormal numbers, whose few bits take little power: L40S, at 350 W the most throttled, is 20 %
  quicker with them in 2,048 tokens than tables and saturated servers (0.14) let a model be.
- `step_log`: every step of a vLLM 0.15 server (gpt-oss-120b, TP4, a 141 GB Hopper). Contexts are not in the log;
  2,500 tokens stand for them (1,000 to 5,000 change the median error by a point).
- `served`: TPOT at a fixed concurrency c (InferenceX and gap-analysis runs collected in aiconfigurator 0.12). The
  formula is a decode step of c rows plus the prefills of the others that fall on it, (c - 1)/output of one prefill.
  It is no test of a step where prefills take much of the time, so rows where they take over a quarter are left out;
  the simulator is the judge of those. Left out besides: DeepSeek-R1 on TensorRT-LLM (runs with and without
  multi-token prediction, unlabelled), gpt-oss labelled fp8 on TensorRT-LLM (a third of the time that HBM allows),
  and concurrencies of 512 and more (labels disagree).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from reference_tables.form import path_of, read

from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.model.quantization import scheme_for
from capacity.step import StepShape, decode_shape, prefill_shape
from capacity.step.model import StepModel
from capacity.step.setting import HostTime, StepSetting, graph_sizes

PUBLISHED = Path(__file__).parent.parent / "tests" / "data" / "published_steps.csv"
NO_HOST = HostTime(graph_sizes=graph_sizes(512))
STEP_LOG = "vllm_iteration_log_gptoss120b_tp4"
SERVED = ("silicon_e2e_dense", "silicon_e2e_moe")
LOG_CONTEXT_TOKENS = 2500
LOG_WARM_UP_STEPS = 10
MAX_PREFILL_SHARE = 0.25
MAX_CONCURRENCY = 512

GPUS = {"h100_sxm": "h100-sxm-80gb", "h200_sxm": "h200-sxm-141gb", "b200_sxm": "b200-sxm-180gb"}
ENGINES = {"vllm": "vllm", "trtllm": "tensorrt-llm", "sglang": "sglang"}
MODELS = {
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "zhipuai/GLM-5": "glm-5.2",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
}
AS_PUBLISHED = ("gpt-oss-120b", "kimi-k2.5")  # checkpoints that are quantized as they come


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One measured time with its prediction; `group` is what is left out together."""

    source: str
    gpu: str
    engine: str
    model: str
    regime: str  # prefill, decode, decode_moe
    group: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted_s / self.measured_s - 1.0


@lru_cache(maxsize=512)
def step_model(
    gpu: str,
    model: str,
    engine: str,
    *,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    data_parallel_size: int = 1,
    expert_parallel: bool = False,
    with_host: bool = False,
) -> StepModel:
    """A step model by names; without host time unless asked."""
    spec = load_model(model)
    setting = StepSetting(
        model=spec,
        profile=load_profile(gpu),
        engine=find_engine(engine),
        scheme=scheme_for(spec, quantization) if quantization else None,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tensor_parallel_size,
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=expert_parallel,
        host=None if with_host else NO_HOST,
    )
    return StepModel(setting)


def published(path: Path = PUBLISHED) -> Iterator[Evidence]:
    """Steps from public documents."""
    formats = {"fp8": "fp8", "int8": "int8-weight-only"}
    for r in pd.read_csv(path).itertuples():
        steps = step_model(
            r.gpu,
            r.model,
            r.engine,
            quantization=formats.get(r.weights),
            kv_cache_dtype="fp8" if r.weights == "fp8" else "auto",
            tensor_parallel_size=r.tensor_parallel_size,
        )
        of = prefill_shape if r.phase == "prefill" else decode_shape
        yield Evidence(
            source=r.source.split(" ")[0],
            gpu=r.gpu,
            engine=r.engine,
            model=r.model,
            regime=r.phase,
            group=f"{r.source} {r.gpu} {r.weights}",
            measured_s=r.seconds,
            predicted_s=steps.step_seconds(of(r.sequences, r.tokens)),
        )


def step_log(measured: Path) -> Iterator[Evidence]:
    """Every step of the vLLM log after warm-up; the empty half of an asynchronous pair is left out."""
    steps = step_model("h200-sxm-141gb", "gpt-oss-120b", "vllm@0.15", tensor_parallel_size=4, with_host=True)
    window = load_model("gpt-oss-120b").window_tokens
    for r in read(measured, STEP_LOG).itertuples():
        if r.iteration < LOG_WARM_UP_STEPS or r.elapsed_ms < 0.5:
            continue
        shape = _log_shape(r, window)
        yield Evidence(
            source="vLLM log",
            gpu="h200-sxm-141gb",
            engine="vllm",
            model="gpt-oss-120b",
            regime="prefill" if r.context_requests else "decode_moe",
            group=f"vLLM log {'mixed' if r.context_requests else 'decode'}",
            measured_s=r.elapsed_ms / 1e3,
            predicted_s=steps.step_seconds(shape),
        )


def _log_shape(r: Any, window: int | None) -> StepShape:
    shape = StepShape()
    if r.context_requests:
        tokens = max(1, r.context_tokens // r.context_requests)
        shape = prefill_shape(r.context_requests, tokens, window_tokens=window)
    decode = decode_shape(r.generation_requests, LOG_CONTEXT_TOKENS, window_tokens=window)
    return shape._replace(
        decode_sequences=decode.decode_sequences,
        decode_context_tokens=decode.decode_context_tokens,
        decode_window_context_tokens=decode.decode_window_context_tokens,
    )


def served(measured: Path, table: str) -> Iterator[Evidence]:
    """TPOT of `silicon_e2e_dense` or `silicon_e2e_moe` by the closed formula."""
    for r in read(measured, table).itertuples():
        if _mislabelled(r):
            continue
        steps = _served_model(r)
        window = steps.model.window_tokens
        prompt, output = int(r.isl * r.length_scale), r.osl * r.length_scale
        rows = int(r.batch_size)
        decode_s = steps.step_seconds(decode_shape(rows, int(prompt + output / 2), window_tokens=window))
        others_s = (rows - 1) / output * steps.step_seconds(prefill_shape(1, prompt, window_tokens=window))
        if others_s > MAX_PREFILL_SHARE * (decode_s + others_s):
            continue
        yield Evidence(
            source=f"served {table.rsplit('_', 1)[1]}",
            gpu=steps.profile.name,
            engine=r.backend,
            model=steps.model.name,
            regime="decode_moe" if steps.model.is_moe else "decode",
            group=f"{steps.profile.name} {r.backend} {steps.model.name} {r.precision}",
            measured_s=r.silicon_tpot_ms / 1e3,
            predicted_s=decode_s + others_s,
        )


def _mislabelled(r: Any) -> bool:
    if pd.isna(r.concurrency) or r.concurrency >= MAX_CONCURRENCY:
        return True
    if r.backend != "trtllm":
        return False
    return "DeepSeek-R1" in r.model_path or (r.model_path == "openai/gpt-oss-120b" and r.precision == "fp8")


def _served_model(r: Any) -> StepModel:
    name = MODELS[r.model_path]
    precision = r.precision if isinstance(r.precision, str) else "bf16"
    block = precision == "fp8" and load_model(name).is_moe
    quantization = {"fp8": "fp8_block" if block else "fp8", "fp4": "nvfp4"}.get(precision)
    data_ranks = 1 if pd.isna(r.attention_dp_size) else int(r.attention_dp_size)
    return step_model(
        GPUS[r.system],
        name,
        ENGINES[r.backend],
        quantization=None if name in AS_PUBLISHED else quantization,
        kv_cache_dtype="fp8" if r.backend == "trtllm" and precision != "bf16" else "auto",
        tensor_parallel_size=int(r.tp_size),
        data_parallel_size=data_ranks,
        expert_parallel=r.moe_ep_size > 1,
    )


def all_evidence(measured: Path | None) -> tuple[Evidence, ...]:
    """Everything at hand: the published figures, and what tables there are in the folder."""
    found = [*published()]
    if measured is not None and measured.is_dir():
        found += step_log(measured)
        for table in SERVED:
            if path_of(measured, table).is_file():
                found += served(measured, table)
    return tuple(found)
