"""Every flag of every verb with a value that is not its default, and what stands beside it where it then counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
import typer
from typer.main import get_command
from typer.testing import CliRunner

from capacity.cli.main import app

SMALL = "llama-3.1-8b --gpu h100"
LOAD = "--isl 600 --osl 60 --request-rate 12 --num-prompts 60"
OF_EACH_KIND = "--method bf16 --method awq-int4 --method smoothquant --method fp8-tensor --method kv-int8"
BASES = {  # a question of each verb that takes the flags of specs
    "fit": SMALL,
    "estimate": f"{SMALL} --isl 3000 --osl 60 --batch-size 8",
    "explain": f"{SMALL} --isl 3000 --osl 60 --batch-size 8",
    "simulate": f"{SMALL} {LOAD}",
    "cost": f"{SMALL} --isl 600 --osl 60 --request-rate 9 --concurrency 60 --num-prompts 200 --price 2",
    "cascade": f"{SMALL} {LOAD} --price 2 --small llama-3.2-1b --escalation-rate 0.4 --cache-hit-rate 0.1",
    "curve": f"{SMALL} --isl 600 --osl 60 --num-prompts 60 --slo ttft:p95:500ms --rates 4,12 --replications 1",
    "tornado": f"{SMALL} {LOAD} --price 2",
    "advise": f"{SMALL} {LOAD} --price 2",
    "stack": f"{SMALL} {LOAD} --price 2",
    "quantize": f"{SMALL} --price 2 {OF_EACH_KIND}",
    "speculate": f"{SMALL} --batches 1,8",
    "scale": f"{SMALL} --price 2",
    "attention-io": SMALL,
    "beam-search": SMALL,
    "batching": f"{SMALL} {LOAD}",
}
CLICK_ERRORS = typer.BadParameter.__mro__[2]  # of the click that typer brings
FEW_BLOCKS = "--max-model-len 1024 --num-gpu-blocks-override 150"
SHARED = "--random-prefix-len 512 --num-prefixes 4"
MANY = "--random-prefix-len 256 --num-prefixes 12"
PICTURED = "--isl 60 --osl 20 --request-rate 9 --num-prompts 20 --images-per-prompt 1"
VALUES = {
    "acceptance": "0.5", "acceptance-spread": "1", "adapter-skew": "2", "api-server-count": "4",
    "audio-seconds": "12", "audio-tokens": "90",
    "arrivals": "ramp --end-request-rate 30 --ramp-s 2", "async-scheduling": "off", "cudagraph-padding": "off",
    "attn-implementation": "eager", "moe-backend": "triton", "autoscale-interval-s": "1",
    "autoscale-max-replicas": "3 --autoscale-target-requests 4 --replica-startup-s 1", "autoscale-target-requests": "2",
    "trace-sessions-per-s": "0.5",
    "route-up-to-tokens": "200 --router by-prompt-length --replicas 2",
    "route-up-to-requests": "2 --router by-prompt-length --replicas 2",
    "router-ttft-s": "0.02 --router within-ttft --replicas 2",
    "cache-salts": "40", "priority-shares": "0:1,1:1",
    "batch-size": "16", "block-size": "64", "burstiness": "0.2", "client-length-cv": "2", "client-zipf": "0.1",
    "change": "hbm=x2",
    "clients": "5", "concurrency": "3", "cpu-offload-gb": "4", "host-cpu": "epyc-9755", "n-gpu-layers": "20",
    "data-parallel-size": "2", "day-length-s": "4", "day-peak-to-mean": "2",
    "decode-autoscale-max-replicas": "3 --autoscale-interval-s 0.5 --autoscale-target-requests 1 --replica-startup-s 1",
    "decode-autoscale-target-requests": "1", "decode-context-parallel-size": "2", "decode-router": "round-robin",
    "draft": "llama-3.2-1b",
    "draft-layers": "16", "draft-tensor-parallel-size": "1", "dtype": "float32", "enable-chunked-prefill": "off",
    "enable-expert-parallel": "on", "enable-lora": "on", "enable-prefix-caching": "off", "end-request-rate": "30",
    "enforce-eager": "on", "evidence": "on", "language-model-only": "on", "indexer-kv-dtype": "fp8",
    "engine": "vllm@0.8", "front-end-input-token-s": "1e-5", "front-end-output-token-s": "1e-3",
    "front-end-request-s": "0.02",
    "gpu": "h200", "gpu-memory-utilization": "0.2", "input-len": "300", "input-len-cv": "2", "kv-cache-dtype": "fp8",
    "kv-eviction": "snapkv --kv-budget 128", "kv-budget": "256",
    "image-size": "640x480", "image-tokens": "90", "images-per-prompt": "2",
    "kv-cache-memory-bytes": "1073741824", "kv-layout": "contiguous", "kv-offloading-backend": "lmcache",
    "kv-offloading-bytes-per-s": "1e8", "kv-offloading-disk-bytes-per-s": "1e8", "kv-offloading-disk-latency-s": "1",
    "kv-offloading-disk-size": "4 --kv-offloading-disk-bytes-per-s 1e9", "kv-offloading-size": "1",
    "kv-transfer-bytes-per-s": "1e8", "kv-transfer-config": '{"kv_role":"kv_producer"}', "kv-transfer-layerwise": "on",
    "kv-transfer-link": "pcie", "length-correlation": "0.9", "length-distribution": "gamma",
    "long-prefill-token-threshold": "64", "long-requests": "clip", "lora-read-bytes-per-s": "1e7", "max-cpu-loras": "2",
    "max-lora-rank": "64", "max-loras": "2", "max-model-len": "512", "max-num-batched-tokens": "128 --max-num-seqs 64",
    "max-num-scheduled-tokens": "256", "max-num-seqs": "4", "max-outstanding-requests": "2", "max-queued-requests": "1",
    "max-cudagraph-capture-size": "8", "scheduler-recv-interval": "30",
    "max-request-tokens": "650", "max-tokens": "400", "max-tokens-cv": "2",
    "mean-time-between-failures-s": "2 --recovery-s 1", "num-adapters": "3", "num-gpu-blocks-override": "300",
    "num-prefixes": "9", "num-prompts": "50", "num-samples": "2", "num-speculative-tokens": "2",
    "off-request-rate": "3", "off-s": "2", "on-s": "2", "output-len": "30", "output-len-cv": "2",
    "pipeline-parallel-size": "2", "preemption-mode": "swap", "prefill-replicas": "1", "prefill-schedule-interval": "4",
    "prefix-zipf": "2", "price": "3", "price-file": "no.csv", "price-instance": "p5.48xlarge", "price-provider": "AWS",
    "price-tier": "on-demand", "price-mix": "on-demand=0.5,spot=0.5", "owned-cost": "purchase=250000,gpus=8,years=5",
    "quantization": "fp8", "ramp-s": "4", "random-prefix-len": "512",
    "random-range-ratio": "0.5", "recovery-s": "3", "replica-startup-s": "0.5", "replicas": "2", "request-rate": "5",
    "requests-per-day": "200000", "power-cap": "300",
    "request-timeout-s": "0.5", "requests-of-lost-replicas": "fail", "role": "decode", "router": "least-kv",
    "scale-down-delay-s": "0.5", "scheduler-reserve-full-isl": "off", "scheduling": "static",
    "scheduling-policy": "priority", "seed": "7", "speculative-config": '{"method":"ngram"}', "speculator": "ngram",
    "step-noise": "0.1", "step-noise-seed": "3", "structured-output": "each", "top-p": "0.95",
    "top-k": "40", "repetition-penalty": "1.1",
    "override-generation-config": '{"top_p": 0.9}', "swap-space": "0.001",
    "tensor-parallel-size": "2", "think-time-s": "3", "trace": "requests.csv", "trace-from-s": "2",
    "trace-rate-factor": "2", "trace-sessions": "closed", "trace-spread-ticks": "on", "trace-time-scale": "2",
    "trace-until-s": "3", "turns": "3", "use-cache": "off",
    "use-case": "rag", "user-loop": "closed", "users": "20 --think-time-s 3",
    "response-s": "9", "watermark": "0.5",
    # keywords of questions
    "api": "DeepInfra", "api-cache-write-multiple": "2", "api-cached-fraction": "0.5", "api-cached-multiple": "0.5",
    "api-input-price": "0.3 --api-output-price 0.5", "api-output-price": "0.9 --api-input-price 0.3",
    "api-price-file": "no.csv", "axis": "pipeline", "batches": "1,4", "beam-widths": "1,3", "batching-window-s": "3",
    "client-latency-s": "0.2", "co2-g-per-kwh": "300", "confidence": "0.5", "context-tokens": "2048",
    "contexts": "4K", "deadline-hours": "9", "documents": "9000", "draft-tokens": "2", "goodput": "ttft:100",
    "grid-region": "france", "hourly-rates": ",".join("123" * 8), "interruptions-per-hour": "0.1",
    "large-batch": "32", "list": "on",
    "max-batch": "4", "method": "ngram", "methods": "fp8", "most-gpus": "2", "peak-rate": "20",
    "peak-to-mean": "3", "rates": "3,9", "replications": "2", "requests-per-user-hour": "5", "restart-s": "60",
    "sample-interval": "0.1", "simulate": "on", "slo": "ttft:p95:90ms", "slo-window": "2s",
    "spread": "off", "textbook": "on",
    "tpot-s": "8", "batch-api": "openai", "idle-hours-per-day": "5", "growth": "40", "months": "3",
    # of a cascade
    "small": "llama-3.2-3b", "escalation-rate": "0.9", "escalate-by": "prompt", "judge-s": "2", "judge-usd": "0.01",
    "small-gpu": "l4", "small-tensor-parallel-size": "2", "small-quantization": "fp8", "small-output-len": "20",
    "api-ttft-s": "1", "api-tpot-s": "0.1 --api-ttft-s 1", "small-api": "DeepInfra", "small-api-input-price": "0.3",
    "small-api-output-price": "0.3", "small-api-ttft-s": "1", "small-api-tpot-s": "0.1 --small-api-ttft-s 1",
    "cache-hit-rate": "0.6", "embedding-model": "bge-m3", "embedding-gpu": "l4", "cache-lookup-s": "1",
    "embedding-price": "3", "cache-store-usd-per-month": "900",
    "target-utilization": "0.2",
}  # fmt: skip
IN_PART = (
    "llama-3.1-8b --gpu rtx-4090 --engine llama.cpp -q gguf-q4_k_m --max-model-len 2048 "
    "--isl 600 --osl 20 --request-rate 0.5 --num-prompts 10"
)
CASCADE = """schema = "capacity/deployment/v1"
model = "llama-3.2-3b"
pools = [{gpu = "h100", model = "llama-3.2-1b", route_escalation_rate = 0.4}, {gpu = "h100"}]
traffic = {input_len = 600, output_len = 20, request_rate = 9, num_prompts = 20}
service = {router = "cascade", cache_hit_rate = 0.1}
"""
INSTEAD = {  # of the base question of `simulate`, where a flag counts on no such model or requests
    **dict.fromkeys(("escalate-by", "judge-s", "cache-hit-rate", "cache-lookup-s"), "--deployment {cascade}"),
    "n-gpu-layers": IN_PART,
    "host-cpu": f"{IN_PART} --n-gpu-layers 20",
    "scheduler-recv-interval": f"{SMALL} --engine sglang --isl 600 --osl 20 --request-rate 9 --num-prompts 20",
    "decode-context-parallel-size": "qwen3-30b-a3b --gpu h100 -tp 8 --isl 600 --osl 20 "
    "--request-rate 9 --num-prompts 20",
    "moe-backend": "qwen3-30b-a3b --gpu b200 --isl 600 --osl 20 --request-rate 9 --num-prompts 20",
    "enable-expert-parallel": "qwen3-30b-a3b --gpu h100 -tp 2 --isl 600 --osl 20 --request-rate 9 --num-prompts 20",
    **dict.fromkeys(
        (
            "trace-from-s", "trace-until-s", "trace-sessions", "trace-sessions-per-s", "trace-time-scale",
            "trace-rate-factor",
        ),
        f"{SMALL} --trace {{trace}}",
    ),
    "trace-spread-ticks": f"{SMALL} --trace {{coarse}}",
    "indexer-kv-dtype": "minimax-m3 --gpu b200 -tp 4 --quantization nvfp4 --isl 600 --osl 20 --request-rate 9 "
    "--num-prompts 20 --random-range-ratio 0",
    "language-model-only": "gemma-3-4b --gpu h100 --isl 600 --osl 20 --request-rate 9 --num-prompts 20",
    "images-per-prompt": "gemma-3-4b --gpu h100 --isl 60 --osl 20 --request-rate 9 --num-prompts 20",
    "audio-seconds": "qwen2-audio-7b --gpu h100 --isl 60 --osl 20 --request-rate 9 --num-prompts 20",
    "audio-tokens": "qwen2-audio-7b --gpu h100 --isl 60 --osl 20 --request-rate 9 --num-prompts 20 --audio-seconds 9",
    "image-tokens": f"gemma-3-4b --gpu h100 {PICTURED}",
    "image-size": f"qwen3.5-35b-a3b --gpu h200 --image-size 64x64 {PICTURED}",
    "scheduling-policy": f"{SMALL} --trace {{trace}} --max-num-seqs 1",
    "users": f"{SMALL} --isl 600 --osl 60 --num-prompts 60",
    **dict.fromkeys(
        ("user-loop", "response-s"), f"{SMALL} --isl 600 --osl 60 --num-prompts 60 --users 20 --think-time-s 3"
    ),
}  # fmt: skip
BESIDE = {  # where a flag counts, if not on the base question
    "cache-salts": "--random-prefix-len 512",
    "priority-shares": "--scheduling-policy priority --max-num-seqs 1 --priority-shares 0:1",
    "attn-implementation": "--max-model-len 4096",
    "block-size": "--input-len 1000 --output-len 100",  # else whole blocks of both sizes
    "acceptance": "--speculator eagle3", "acceptance-spread": "--speculator eagle3",
    "kv-budget": "--kv-eviction snapkv --kv-budget 64", "draft-layers": "--speculator layer-skip",
    "adapter-skew": "--max-loras 1 --num-adapters 8", "api-server-count": "--front-end-input-token-s 1e-5",
    "autoscale-interval-s": "--autoscale-max-replicas 3 --autoscale-target-requests 4 --replica-startup-s 1",
    "autoscale-target-requests": "--autoscale-max-replicas 3 --replica-startup-s 1 --autoscale-interval-s 1 "
    "--autoscale-target-requests 30",
    "replica-startup-s": "--autoscale-max-replicas 3 --autoscale-target-requests 4 --autoscale-interval-s 1 "
    "--replica-startup-s 3",
    "scale-down-delay-s": "--autoscale-max-replicas 3 --autoscale-target-requests 2 --autoscale-interval-s 0.5 "
    "--replica-startup-s 0.1 --arrivals on-off --on-s 1 --off-s 3",
    "client-length-cv": "--clients 5", "client-zipf": "--clients 5",
    "day-length-s": "--arrivals diurnal --day-length-s 9", "day-peak-to-mean": "--arrivals diurnal --day-length-s 9",
    "decode-autoscale-max-replicas": "--replicas 2 --prefill-replicas 1",
    "decode-autoscale-target-requests": "--replicas 2 --prefill-replicas 1 --decode-autoscale-max-replicas 3 "
    "--autoscale-target-requests 9 --replica-startup-s 0.1 --autoscale-interval-s 0.5",
    "decode-router": "--replicas 3 --prefill-replicas 1",
    "draft-tensor-parallel-size": "-tp 2 --draft llama-3.2-1b", "end-request-rate": "--arrivals ramp --ramp-s 2 "
    "--end-request-rate 20", "ramp-s": "--arrivals ramp --ramp-s 2 --end-request-rate 20",
    "enable-chunked-prefill": "--max-model-len 1024 --max-num-batched-tokens 1024",
    "enable-prefix-caching": SHARED, "input-len-cv": "--length-distribution gamma",
    "output-len-cv": "--length-distribution gamma", "length-correlation": "--length-distribution gamma",
    "kv-offloading-size": f"{FEW_BLOCKS} {MANY}",
    "kv-offloading-backend": f"{FEW_BLOCKS} {MANY} --kv-offloading-size 1",
    "kv-offloading-bytes-per-s": f"{FEW_BLOCKS} {MANY} --kv-offloading-size 1",
    "kv-offloading-disk-bytes-per-s": f"{FEW_BLOCKS} {MANY} --kv-offloading-size 0.5 --kv-offloading-disk-size 4 "
    "--kv-offloading-disk-bytes-per-s 1e9",
    "kv-offloading-disk-latency-s": f"{FEW_BLOCKS} {MANY} --kv-offloading-size 0.5 --kv-offloading-disk-size 4 "
    "--kv-offloading-disk-bytes-per-s 1e9",
    "kv-offloading-disk-size": f"{FEW_BLOCKS} {MANY} --kv-offloading-size 0.5",
    "kv-transfer-bytes-per-s": "--replicas 2 --prefill-replicas 1",
    "kv-transfer-layerwise": "--replicas 2 --prefill-replicas 1",
    "kv-transfer-link": "--replicas 2 --prefill-replicas 1", "long-requests": "--max-request-tokens 650 "
    "--random-range-ratio 0.5", "lora-read-bytes-per-s": "--max-loras 1 --max-cpu-loras 2 --num-adapters 8",
    "max-cpu-loras": "--max-loras 1 --max-cpu-loras 8 --num-adapters 8 "
    "--lora-read-bytes-per-s 1e9 --num-prompts 200 --request-rate 4",
    "max-lora-rank": "--max-loras 1 --num-adapters 8", "max-request-tokens": "--random-range-ratio 0.5",
    "max-tokens": "--engine sglang --max-model-len 1024 --num-gpu-blocks-override 4000",
    "max-tokens-cv": "--engine sglang --max-model-len 1024 --num-gpu-blocks-override 4000 --max-tokens 400",
    "num-adapters": "--max-loras 1", "num-prefixes": "--random-prefix-len 512", "prefix-zipf": SHARED,
    "num-speculative-tokens": "--speculator eagle3", "off-request-rate": "--arrivals on-off --on-s 1 --off-s 1",
    "off-s": "--arrivals on-off --on-s 1 --off-s 1", "on-s": "--arrivals on-off --on-s 1 --off-s 1",
    "prefill-replicas": "--replicas 2", "preemption-mode": f"--engine vllm@0.6 {FEW_BLOCKS} --output-len 300",
    "swap-space": f"--engine vllm@0.6 {FEW_BLOCKS} --output-len 300 --preemption-mode swap",
    "recovery-s": "--mean-time-between-failures-s 2 --recovery-s 1",
    "requests-of-lost-replicas": "--mean-time-between-failures-s 2 --recovery-s 1", "router": "--replicas 2",
    "scheduler-reserve-full-isl": f"{FEW_BLOCKS} --max-num-batched-tokens 256", "step-noise-seed": "--step-noise 0.1",
    "slo-window": "--slo ttft:p95:90ms",
    "think-time-s": "--turns 3", "watermark": FEW_BLOCKS,
    "batch-api": "--documents 90 --deadline-hours 9 --api-input-price 1 --api-output-price 1",
    "idle-hours-per-day": "--documents 90 --deadline-hours 9", "months": "--growth 40",
    "embedding-gpu": "--embedding-model bge-m3",
    "small-api-input-price": "--small-api-output-price 0.5", "small-api-output-price": "--small-api-input-price 0.5",
    "small-api-ttft-s": "--small-api-input-price 0.5 --small-api-output-price 0.5",
    "small-api-tpot-s": "--small-api-input-price 0.5 --small-api-output-price 0.5 --small-api-ttft-s 1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line said: its JSON, or its refusal."""

    answer: Any
    refusal: str


def ask(line: str) -> Asked:
    """A command line's answer as JSON, or its one line of refusal."""
    from capacity.base.errors import CapacityError

    try:
        result = CliRunner().invoke(
            app, [*line.split(), "--format", "json"], standalone_mode=False, catch_exceptions=False
        )
    except CapacityError as error:
        return Asked(None, str(error))
    except CLICK_ERRORS as error:
        return Asked(None, error.format_message())
    return Asked(json.loads(result.stdout), "")


def options(verb: str) -> Iterator[tuple[str, click.Parameter]]:
    """The flags of a verb as its parser has them, by name without dashes."""
    command = get_command(app).commands[verb]  # type: ignore[attr-defined]
    made = command.make_context(verb, [], resilient_parsing=True).command
    for parameter in made.params:
        if parameter.param_type_name == "option":
            yield str(parameter.name).replace("_", "-"), parameter


def spelled(name: str) -> str:
    """A flag with its value, as it is typed."""
    value = VALUES[name]
    return {"on": f"--{name}", "off": f"--no-{name}"}.get(value, f"--{name} {value}")
