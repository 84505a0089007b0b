"""What to type next: the command that launches a deployment, its Kubernetes manifest, the benchmark that checks it.

Flags are those of vLLM 0.33, SGLang 0.5.23 and TensorRT-LLM 1.x (`trtllm-serve`), 2026-11. Only what was asked for
is written; what an engine's command line cannot say is a note.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capacity.deployment import Pool
from capacity.errors import UnknownName
from capacity.workload.slo import Slo

PORT = 8000
IMAGES = {
    "vllm": "vllm/vllm-openai:latest",
    "sglang": "lmsysorg/sglang:latest",
    "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:latest",
}
STARTUP_S = 3600  # a large checkpoint is still loading: the server must not be killed meanwhile
ONLINE_FORMATS = (
    "fp8",
    "bf16",
    "fp16",
    "bitsandbytes",
    "nf4",
)  # made from the 16-bit checkpoint while loading


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command as its words, and what it cannot say."""

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The command, quoted for a shell, a flag a line."""
        lines: list[list[str]] = [[]]
        for word in self.words:
            if word.startswith("--") and lines[-1]:
                lines.append([])
            lines[-1].append(shlex.quote(word))
        return " \\\n    ".join(" ".join(line) for line in lines)


def launch_command(engine: str, model_id: str, pool: Pool) -> Launch:
    """The command of `engine` (vllm, sglang, tensorrt-llm) for one replica. Raises UnknownName."""
    makers = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm}
    name = engine.partition("@")[0].strip().lower()
    if name not in makers:
        raise UnknownName("engine to launch", engine, makers)
    return makers[name](model_id, pool)


def _flags(values: Sequence[tuple[str, Any]]) -> list[str]:
    """`--flag value` for what is given; True stands alone, None and False are left out."""
    words: list[str] = []
    for flag, value in values:
        if value is None or value is False:
            continue
        words += [flag] if value is True else [flag, str(value)]
    return words


def _vllm(model_id: str, pool: Pool) -> Launch:
    switches = [
        ("--enable-chunked-prefill", pool.enable_chunked_prefill),
        ("--enable-prefix-caching", pool.enable_prefix_caching),
        ("--async-scheduling", pool.async_scheduling),
    ]
    flags = [
        ("--tensor-parallel-size", _above(pool.tensor_parallel_size, 1)),
        ("--pipeline-parallel-size", _above(pool.pipeline_parallel_size, 1)),
        ("--data-parallel-size", _above(pool.data_parallel_size, 1)),
        ("--enable-expert-parallel", pool.enable_expert_parallel),
        ("--quantization", _online(pool.quantization)),
        ("--kv-cache-dtype", None if pool.kv_cache_dtype == "auto" else pool.kv_cache_dtype),
        ("--max-model-len", pool.max_model_len),
        ("--gpu-memory-utilization", pool.gpu_memory_utilization),
        ("--max-num-seqs", pool.max_num_seqs),
        ("--max-num-batched-tokens", pool.max_num_batched_tokens),
        ("--block-size", pool.block_size),
        ("--enforce-eager", pool.enforce_eager),
        ("--long-prefill-token-threshold", pool.long_prefill_token_threshold or None),
        ("--scheduling-policy", None if pool.scheduling_policy == "fcfs" else pool.scheduling_policy),
        ("--num-gpu-blocks-override", pool.num_gpu_blocks_override),
        ("--kv-offloading-size", pool.kv_offloading_size),
        ("--kv-offloading-backend", None if pool.kv_offloading_size is None else pool.kv_offloading_backend),
        ("--preemption-mode", None if pool.preemption_mode == "recompute" else pool.preemption_mode),
        ("--swap-space", None if pool.preemption_mode == "recompute" else pool.swap_space),
    ]
    named = [
        flag if value else flag.replace("--", "--no-", 1) for flag, value in switches if value is not None
    ]
    words = ["vllm", "serve", model_id, *_flags(flags), *named, "--port", str(PORT)]
    return Launch(words=tuple(words), notes=_checkpoint_notes(pool))


def _sglang(model_id: str, pool: Pool) -> Launch:
    cache = {"fp8": "fp8_e4m3"}.get(pool.kv_cache_dtype, pool.kv_cache_dtype)
    attention_ranks = pool.enable_expert_parallel and pool.data_parallel_size > 1
    tensor = pool.tensor_parallel_size * (
        pool.data_parallel_size if attention_ranks else 1
    )  # as SGLang counts
    flags = [
        ("--model-path", model_id),
        ("--tp-size", _above(tensor, 1)),
        ("--pp-size", _above(pool.pipeline_parallel_size, 1)),
        ("--dp-size", _above(pool.data_parallel_size, 1)),
        ("--enable-dp-attention", attention_ranks),
        ("--ep-size", tensor if pool.enable_expert_parallel else None),
        ("--quantization", _online(pool.quantization)),
        ("--kv-cache-dtype", None if cache == "auto" else cache),
        ("--context-length", pool.max_model_len),
        ("--mem-fraction-static", pool.gpu_memory_utilization),
        ("--max-running-requests", pool.max_num_seqs),
        (
            "--chunked-prefill-size",
            -1 if pool.enable_chunked_prefill is False else pool.max_num_batched_tokens,
        ),
        ("--disable-radix-cache", pool.enable_prefix_caching is False),
        ("--disable-cuda-graph", pool.enforce_eager),
        ("--port", PORT),
    ]
    notes = _checkpoint_notes(pool)
    if pool.gpu_memory_utilization is not None:
        notes += ("--mem-fraction-static holds weights and KV only: not the same share as vLLM's",)
    return Launch(words=("python", "-m", "sglang.launch_server", *_flags(flags)), notes=notes)


def _tensorrt_llm(model_id: str, pool: Pool) -> Launch:
    tensor = pool.tensor_parallel_size * pool.data_parallel_size  # attention DP divides these
    flags = [
        ("--tp_size", _above(tensor, 1)),
        ("--pp_size", _above(pool.pipeline_parallel_size, 1)),
        ("--ep_size", tensor if pool.enable_expert_parallel else None),
        ("--max_batch_size", pool.max_num_seqs),
        ("--max_num_tokens", pool.max_num_batched_tokens),
        ("--max_seq_len", pool.max_model_len),
        ("--kv_cache_free_gpu_memory_fraction", pool.gpu_memory_utilization),
        ("--port", PORT),
    ]
    notes: tuple[str, ...] = ()
    if pool.data_parallel_size > 1:
        notes += (
            "attention over data-parallel ranks is set in the file of --extra_llm_api_options: "
            "enable_attention_dp: true",
        )
    if pool.quantization:
        notes += (
            f"{pool.quantization} weights: name a checkpoint in that format; trtllm-serve does not quantize",
        )
    if pool.kv_cache_dtype != "auto":
        notes += (
            f"an {pool.kv_cache_dtype} KV cache is set in the file of --extra_llm_api_options: "
            f"kv_cache_config: {{dtype: {pool.kv_cache_dtype}}}",
        )
    if pool.gpu_memory_utilization is not None:
        notes += (
            "--kv_cache_free_gpu_memory_fraction is of the memory left after loading: not the same share",
        )
    return Launch(words=("trtllm-serve", "serve", model_id, *_flags(flags)), notes=notes)


def _above(value: int, least: int) -> int | None:
    return value if value > least else None


def _online(quantization: str | None) -> str | None:
    """What the engine makes of the 16-bit checkpoint while loading; other formats are the checkpoint's own."""
    return quantization if quantization in ONLINE_FORMATS else None


def _checkpoint_notes(pool: Pool) -> tuple[str, ...]:
    if pool.quantization is None or pool.quantization in ONLINE_FORMATS:
        return ()
    return (f"{pool.quantization} weights: put a checkpoint in that format in place of the model's name",)


def bench_command(
    model_id: str,
    *,
    slos: Sequence[Slo],
    requests: int,
    request_rate_per_s: float,
    input_tokens: float,
    output_tokens: float,
    replay: str | None = None,
    metadata: Sequence[tuple[str, object]] = (),
) -> Launch:
    """`vllm bench serve` with the same arrivals: lengths and rate, or `replay`, the arguments of a timed trace
    (`write_timed_trace` gives them)."""
    notes: tuple[str, ...] = ()
    if replay is not None:
        data = shlex.split(replay)
        notes = ("set PYTHONHASHSEED for prompts that are the same each time",)
    else:
        rate = "inf" if math.isinf(request_rate_per_s) else f"{request_rate_per_s:g}"
        data = _flags(
            [
                ("--dataset-name", "random"),
                ("--random-input-len", round(input_tokens)),
                ("--random-output-len", max(round(output_tokens), 1)),
                ("--request-rate", rate),
                ("--num-prompts", requests),
                ("--ignore-eos", True),
            ]
        )
    limits = [f"{slo.metric}:{slo.limit_s * 1e3:g}" for slo in slos if slo.metric != "itl"]
    words = ["vllm", "bench", "serve", "--model", model_id, "--base-url", f"http://localhost:{PORT}"]
    words += data
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"]
    words += ["--goodput", *limits] if limits else []
    words += ["--save-result", "--save-detailed"]
    words += ["--metadata", *(f"{key}={value}" for key, value in metadata)] if metadata else []
    return Launch(words=tuple(words), notes=notes)


def kubernetes_manifest(name: str, launch: Launch, pool: Pool, replicas: int) -> str:
    """A Deployment and a Service: GPUs per replica, shared memory for NCCL, probes that wait for the weights."""
    engine = pool.engine.partition("@")[0]
    if pool.num_gpus > 8:
        span = f"# {pool.num_gpus} GPUs of one engine span nodes: use a LeaderWorkerSet; the pod below is one node's\n"
    else:
        span = ""
    label = _dns_name(name)
    command = "\n".join(f"            - {json.dumps(word)}" for word in launch.words)
    probe = f"httpGet: {{path: /health, port: {PORT}}}"
    return f"""{span}apiVersion: apps/v1
kind: Deployment
metadata:
  name: {label}
spec:
  replicas: {replicas}
  selector:
    matchLabels: {{app: {label}}}
  template:
    metadata:
      labels: {{app: {label}}}
    spec:
      nodeSelector: {{}}  # the label by which your nodes name {pool.gpu}
      containers:
        - name: engine
          image: {json.dumps(IMAGES.get(engine, engine))}
          command:
{command}
          ports:
            - containerPort: {PORT}
          resources:
            limits:
              nvidia.com/gpu: {min(pool.num_gpus, 8)}
          startupProbe:
            {probe}
            periodSeconds: 10
            failureThreshold: {STARTUP_S // 10}
          readinessProbe:
            {probe}
            periodSeconds: 5
          livenessProbe:
            {probe}
            periodSeconds: 15
            failureThreshold: 4
          volumeMounts:
            - {{name: shm, mountPath: /dev/shm}}
      volumes:
        - name: shm
          emptyDir: {{medium: Memory, sizeLimit: 16Gi}}
---
apiVersion: v1
kind: Service
metadata:
  name: {label}
spec:
  selector: {{app: {label}}}
  ports:
    - port: 80
      targetPort: {PORT}
"""


def _dns_name(text: str) -> str:
    """`text` as Kubernetes names things: lower case, digits, hyphens, at most 63."""
    kept = "".join(c if c.isalnum() and c.isascii() else "-" for c in text.lower())
    return kept.strip("-")[:63].strip("-") or "llm"
