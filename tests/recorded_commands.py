"""The commands of `recorded_answers`, by name, as tables to extend.

A case of several lines is several commands in one folder; the last one's answer is recorded, with every exit code and
every file that was written. `FILES` of `recorded_files` lie in the folder.
"""

from __future__ import annotations

import itertools

POOL = "llama-3.1-8b --gpu h100"
TIGHT = "--kv-cache-memory-bytes 320M --max-model-len 2048"  # 2,560 tokens: requests are preempted
LENGTHS = "--isl 500 --osl 50"
LOAD = f"{LENGTHS} --rate 20 --num-prompts 60"
BURST = f"{LENGTHS} --rate inf --num-prompts 60 --random-range-ratio 0.5"
SHARED = "--isl 200 --osl 40 --rate 20 --num-prompts 60 --random-prefix-len 800 --num-prefixes 12"
SIMULATE = f"simulate {POOL} {LOAD}"
MOE = "qwen3-30b-a3b --gpu h100"
SMALL_PLAN = (
    "--gpus h100 --tensor-parallel-sizes 1 --quantizations default --kv-cache-dtypes auto "
    "--max-num-batched-tokens default --workers 1 --time-limit-s 0 --isl 300 --osl 30 --num-prompts 60 "
    "--replications 1 --rate 10"
)
PLAN = f"plan llama-3.1-8b {SMALL_PLAN} --slo ttft:p95:500ms tpot:p95:40ms"


def asked(verb: str, questions: dict[str, str]) -> dict[str, str]:
    """Questions of one verb with JSON answers: what follows the verb, by name."""
    return {f"{verb}/{name}": f"{verb} {rest} --format json" for name, rest in questions.items()}


def each(values: str, question: str) -> dict[str, str]:
    """One question of each of some values, put in for `*`."""
    return {value: question.replace("*", value) for value in values.split()}


def named(prefix: str, questions: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}/{name}": question for name, question in questions.items()}


def options(common: str, flags: dict[str, str]) -> dict[str, str]:
    """A common question with one more option each."""
    return {name: f"{common} {flag}" for name, flag in flags.items()}


# what there is to choose from

ONE_GPU = """codellama-34b deepseek-r1-distill-llama-70b deepseek-r1-distill-llama-8b deepseek-r1-distill-qwen-32b
deepseek-v2-lite gemma-2-27b gemma-2-9b gemma-3-12b gemma-3-27b gemma-3-4b glm-4-9b glm-4.5-air glm-4.7-flash
gpt-oss-120b gpt-oss-20b llama-2-13b llama-2-70b llama-2-7b llama-3-70b llama-3-8b llama-3.1-70b llama-3.1-8b
llama-3.2-1b llama-3.2-3b llama-3.3-70b llama-68m mistral-7b-v0.1 mistral-7b
mistral-nemo-12b mistral-small-24b mixtral-8x7b phi-3-mini phi-4 qwen2.5-0.5b
qwen2.5-1.5b qwen2.5-14b qwen2.5-32b qwen2.5-3b qwen2.5-72b qwen2.5-7b qwen2.5-coder-32b qwen3-0.6b qwen3-1.7b
qwen3-14b qwen3-30b-a3b-2507 qwen3-30b-a3b qwen3-32b qwen3-4b qwen3-8b qwen3-coder-30b-a3b qwen3-next-80b-a3b
qwen3.5-122b-a10b qwen3.5-35b-a3b tinyllama-1.1b yi-34b"""
EIGHT_GPUS = """deepseek-r1 deepseek-v2 deepseek-v3.2 deepseek-v3 glm-4.5 glm-4.7 glm-5.2 kimi-k2-thinking kimi-k2.5
kimi-k2 llama-3.1-405b llama-4-maverick llama-4-scout minimax-m2 mistral-large-2407 mixtral-8x22b
qwen3-235b-a22b-2507 qwen3-235b-a22b qwen3-coder-480b-a35b qwen3.5-397b-a17b"""
FAMILIES = """llama-3.1-8b qwen2.5-7b gemma-2-9b gemma-3-12b mistral-7b-v0.1 gpt-oss-20b mixtral-8x7b qwen3-30b-a3b
deepseek-v2-lite glm-4.7-flash qwen3-next-80b-a3b qwen3.5-35b-a3b phi-3-mini tinyllama-1.1b"""
GPUS = """a100-pcie-40gb a100-pcie-80gb a100-sxm-40gb a100-sxm-80gb a10g-24gb b200-sxm-180gb b300-sxm-288gb
gb200-nvl72 h100-nvl-94gb h100-pcie-80gb h100-sxm-80gb h200-nvl-141gb h200-sxm-141gb l4-24gb l40s-48gb mi300x-192gb
rtx-4090-24gb rtx-5090-32gb rtx-pro-6000-96gb"""
ENGINES = """vllm vllm@0.6 vllm@0.8-v0 vllm@0.8 vllm@0.11 vllm@0.15 vllm@0.19 vllm@0.33 sglang sglang@0.5 trtllm tgi
llama.cpp ollama hf-transformers deepspeed-mii naive static"""
QUANTIZATIONS = """fp32 bf16 fp16 fp8 fp8-channel fp8-block mxfp8 int8 int8-weight-only llm-int8 gptq-int8 gptq-int4
gptq-int3 awq int4-g128 int4-g128-sym int4-g32 int4-g32-sym nf4 mxfp4 nvfp4 q4_k_m q8_0 gguf experts-int8 modelopt
compressed-tensors fbgemm-fp8 fp9"""
KV_DTYPES = "auto fp8 fp8_e4m3 fp8_e5m2 nvfp4 int8 int4 bfloat16 fp7"
CONFIGS = """dense experts awq gptq gptq3 bnb bnb8 fp8 fp8block modelopt compressed mxfp4 unheard"""
SPECULATORS = "self-draft ngram medusa-tree eagle-tree eagle2-tree eagle3-tree eagle3"
ROUTERS = "round-robin least-outstanding least-kv prefix-aware session-sticky"
SCHEMAS = """fit estimate simulation explain plan fleet cost cascade curve diff tornado advise deployment sweep-file
sweep quantize frontier load-sweep gpu-comparison speculate kv cache-curve scale batching engines textbook
speculators attention-io definition"""
VERBS = """fit estimate explain frontier simulate schedule models gpus schema plan fleet cost cascade curve tornado
advise diff sweep from-vllm quantize speculate scale attention-io batching charts kv cache-curve engines
validate calibrate compare watch dashboard"""

# memory

POOL_OF_FIT = {
    "tp": "-tp 2",
    "pp": "-pp 2",
    "tp-pp": "-tp 2 -pp 2",
    "dp": "-dp 2",
    "dtype": "--dtype half",
    "dtype-float32": "--dtype float32",
    "model-len": "--max-model-len 25.6k",
    "model-len-auto": "--max-model-len auto",
    "utilization": "--gpu-memory-utilization 0.8",
    "kv-bytes": "--kv-cache-memory-bytes 20G",
    "seqs": "--max-num-seqs 64",
    "budget": "--max-num-batched-tokens 2k",
    "block-size": "--block-size 32",
    "eager": "--enforce-eager",
    "offload": "--kv-offloading-size 64",
    "contiguous": "--kv-layout contiguous --max-model-len 4096",
    "blocks": "--num-gpu-blocks-override 20000",
    "too-few-blocks": "--num-gpu-blocks-override 100",
    "replicas-of-a-file": "--deployment priced.toml",
    "context-parallel": "-dcp 1",
    "underscores": "--max_num_seqs=64 --gpu-mem-util 0.85",
}
FIT = {
    **named("quantization", each(QUANTIZATIONS, f"{POOL} -q *")),
    **named("quantization-b200", each("fp8 mxfp8 mxfp4 nvfp4", "llama-3.1-70b --gpu b200 -q *")),
    **named("quantization-moe", each("fp8-block int4 mxfp4 experts-int8", "qwen3-30b-a3b --gpu b200 -q *")),
    **named("kv-dtype", each(KV_DTYPES, f"{POOL} --kv-cache-dtype *")),
    **named("engine", each(ENGINES, "llama-3.1-8b --gpu a100 --engine *")),
    **named("engine-mla", each("vllm@0.6 vllm sglang trtllm", "deepseek-v2-lite --gpu h100 --engine *")),
    **named("config", each(CONFIGS, "*.json --gpu l4")),
    **named("option", options(POOL, POOL_OF_FIT)),
    "ep": "qwen3-30b-a3b --gpu h100 -tp 2 -ep",
    "ep-dp": "deepseek-v3 --gpu h200 -dp 8 -ep",
    "too-large": "llama-3.1-405b --gpu l4",
    "deployment": "--deployment one.toml",
    "deployment-flag-wins": "--deployment one.toml -tp 2 --gpu a100",
}

# closed form

ESTIMATE = {
    **named("preset", each(ONE_GPU, f"* --gpu b300 {LENGTHS} --concurrency 16")),
    **named("preset", each(EIGHT_GPUS, f"* --gpu b300 -tp 8 {LENGTHS} --concurrency 16")),
    **named("gpu", each(GPUS, f"llama-3.1-8b --gpu * --max-model-len 8192 {LENGTHS} --concurrency 8")),
    **named(
        "gpu-quantized",
        each(GPUS, f"llama-3.1-8b --gpu * -q fp8 --max-model-len 8192 {LENGTHS} --batch-size 4"),
    ),
    **named("engine", each(ENGINES, f"{POOL} --engine * --max-model-len 8192 {LENGTHS} --concurrency 8")),
    **named("tp", each("2 4 8", f"llama-3.1-70b --gpu h200 -tp * {LENGTHS} --concurrency 32")),
    **named("context", each("1000 10000 100000", f"{POOL} --isl * --osl 100 --concurrency 2")),
    "pp": f"llama-3.1-70b --gpu h100 -tp 2 -pp 2 {LENGTHS} --concurrency 8",
    "two-nodes": f"llama-3.1-405b --gpu h100 -tp 16 {LENGTHS} --concurrency 8",
    "one-token": f"{POOL} --isl 500 --osl 1 --batch-size 4",
    "dp": f"{POOL} -dp 2 {LENGTHS} --concurrency 8",
    "dp-moe": f"{MOE} -dp 2 -ep {LENGTHS} --batch-size 8",
    "dp-wide": f"deepseek-r1 --gpu h200 -dp 8 -ep --max-model-len 8192 {LENGTHS} --concurrency 256",
    "waiting": f"{POOL} --max-num-seqs 8 {LENGTHS} --concurrency 100",
    "price": f"{POOL} {LENGTHS} --batch-size 8 --price 2.50",
    "price-by-gpu": f"{POOL} {LENGTHS} --batch-size 8 --price h100=2.50",
    "price-provider": f"{POOL} {LENGTHS} --batch-size 8 --price-tier on-demand --price-provider RunPod",
    "price-instance": f"{POOL} -tp 8 {LENGTHS} --batch-size 8 --price-tier on-demand --price-instance p5.48xlarge",
    "price-file": f"{POOL} {LENGTHS} --batch-size 8 --price-tier on-demand --price-file prices.csv",
    **named("tier", each("on-demand reserved spot owned", f"{POOL} {LENGTHS} --batch-size 8 --price-tier *")),
}
EXPLAIN = {
    **named(
        "model",
        each("llama-3.1-8b gpt-oss-20b qwen3-next-80b-a3b", f"* --gpu b200 {LENGTHS} --concurrency 8"),
    ),
    "batch": f"{POOL} -tp 2 {LENGTHS} --batch-size 64",
    "moe-dp": f"{MOE} -dp 2 -ep {LENGTHS} --concurrency 8",
    **named("term", each("ttft tpot ridge acceptance goodput kv-cache prefill", "*")),
    "term-of-a-model": f"ridge {POOL} {LENGTHS} --concurrency 8",
    "term-with-a-price": f"ttft {POOL} {LENGTHS} --batch-size 8",
}

# simulated

POOL_OF_SIMULATE = {
    "tp": "-tp 2",
    "pp": "-pp 2",
    "dp": "-dp 2",
    "dtype": "--dtype float16",
    "quantization": "-q awq",
    "kv-dtype": "--kv-cache-dtype fp8",
    "model-len": "--max-model-len 1024",
    "utilization": "--gpu-memory-utilization 0.5",
    "kv-bytes": "--kv-cache-memory-bytes 500M --max-model-len 2048",
    "seqs": "--max-num-seqs 4",
    "budget": "--max-num-batched-tokens 256",
    "scheduled": "--max-num-batched-tokens 1024 --max-num-scheduled-tokens 300",
    "block-size": "--block-size 64",
    "unchunked": "--no-enable-chunked-prefill",
    "uncached": "--no-enable-prefix-caching",
    "async": "--async-scheduling",
    "sync": "--no-async-scheduling",
    "eager": "--enforce-eager",
    "long-prefill": "--long-prefill-token-threshold 128",
    "prefill-interval": "--prefill-schedule-interval 4",
    "static": "--scheduling static --max-num-seqs 8",
    "samples": "--n 3",
    "blocks": "--num-gpu-blocks-override 160 --max-model-len 2048",
    "replicas": "--replicas 3",
    "naive-static": "--engine static",
    "series": "--series series.csv --sample-interval 0.25",
    "records": "--records records.csv",
    "timeline": "--timeline timeline.json",
    "save-trace": "--save-trace saved.jsonl",
    "write-deployment": "--write-deployment written.toml",
    "goodput": "--goodput ttft:100 tpot:8 e2el:400",
    "slo-met": "--slo ttft:p95:500ms tpot:p99:50ms",
    "slo-unmet": "--slo ttft:p95:1ms --slo e2el:2000",
    "replications": "--replications 3",
    "seed": "--seed 12",
}
SCARCE = {
    "preempted": "",
    "priority-fcfs": "--scheduling-policy priority",
    "watermark": "--watermark 0.05",
    "reserve": "--scheduler-reserve-full-isl --max-num-batched-tokens 256",
    "no-reserve": "--no-scheduler-reserve-full-isl --max-num-batched-tokens 256",
    "v0": "--engine vllm@0.6",
    "v0-swap": "--engine vllm@0.6 --preemption-mode swap --swap-space 1",
    "v0-small-swap": "--engine vllm@0.6 --preemption-mode swap --swap-space 0.01",
    "sglang": "--engine sglang",
    "trtllm": "--engine trtllm",
    "tgi": "--engine tgi",
    "contiguous": "--kv-layout contiguous",
    "pp": "-pp 2",
    "drafts": "--speculator ngram --num-speculative-tokens 3 --acceptance 0.6",
}
OFFLOAD = {
    "none": "",
    "cpu": "--kv-offloading-size 1",
    "cpu-small": "--kv-offloading-size 0.2",
    "lmcache": "--kv-offloading-size 1 --kv-offloading-backend lmcache",
    "rate": "--kv-offloading-size 1 --kv-offloading-bytes-per-s 2e9",
    "instant": "--kv-offloading-size 1 --kv-offloading-bytes-per-s inf",
    "disk": "--kv-offloading-size 0.2 --kv-offloading-disk-size 10 --kv-offloading-disk-bytes-per-s 3e9 "
    "--kv-offloading-disk-latency-s 0.002",
    "connector": """--kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", """
    """"kv_connector_extra_config": {"cpu_bytes_to_use": 1073741824}}'""",
    "dp": "-dp 2 --kv-offloading-size 1",
    "tp": "-tp 2 --kv-offloading-size 1",
}
DRAFTS = {
    **each(SPECULATORS, "--speculator *"),
    "acceptance": "--speculator eagle --acceptance 0.7",
    "acceptance-by-position": "--speculator eagle3 --num-speculative-tokens 3 --acceptance 0.9,0.7,0.5",
    "acceptance-length": "--speculator ngram --num-speculative-tokens 4 --acceptance length:2.3",
    "config": """--speculative-config '{"method": "eagle3", "num_speculative_tokens": 2}'""",
    "two-gpus": "-tp 2 --speculator eagle3",
}
ARRIVALS = {
    "open": "--rate 20",
    "constant": "--rate 20 --burstiness inf",
    "bursty": "--rate 20 --burstiness 0.3",
    "at-once": "--rate inf",
    "closed": "--concurrency 8",
    "closed-ranges": "--concurrency 8 --random-range-ratio 0.8",
    "lognormal": "--rate 20 --length-distribution lognormal --input-len-cv 0.8 --output-len-cv 1.5",
    "gamma": "--rate 20 --length-distribution gamma --length-correlation 0.6",
    "on-off": "--arrivals on-off --rate 40 --on-s 1 --off-s 2 --off-request-rate 2",
    "ramp": "--arrivals ramp --rate 5 --end-request-rate 40 --ramp-s 4",
    "diurnal": "--arrivals diurnal --rate 15 --day-peak-to-mean 1.8 --day-length-s 5",
    "clients": "--rate 20 --clients 20 --client-zipf 1.2 --client-length-cv 0.8 --burstiness 0.5",
    "client-prefixes": "--rate 20 --clients 5 --random-prefix-len 256",
    "sessions": "--rate 5 --turns 4 --think-time-s 0.5",
    "prefixes": "--rate 20 --random-prefix-len 512 --num-prefixes 10 --prefix-zipf 1.1",
    "clipped": "--rate 20 --random-range-ratio 0.9 --max-request-tokens 600 --long-requests clip",
    "dropped": "--rate 20 --random-range-ratio 0.9 --max-request-tokens 600 --long-requests drop",
    "batch": "--concurrency 4 --scheduling static --max-num-seqs 4",
    "overloaded": "--rate 500",
}
TRACES = {
    **each("plain.csv plain.csv.gz priority.csv sessions.csv azure.csv burstgpt.csv", "*"),
    **each("mooncake.jsonl coarse.jsonl chats.jsonl agentic.jsonl", "*"),
    "priorities": f"priority.csv --scheduling-policy priority --max-num-seqs 4 {TIGHT}",
    "stdin": "-",
    "window": "plain.csv --trace-from-s 0.5 --trace-until-s 2",
    "spread": "coarse.jsonl --trace-spread-ticks",
    "closed-sessions": "sessions.csv --trace-sessions closed",
    "closed-chats": "chats.jsonl --trace-sessions closed",
    "slower": "plain.csv --trace-time-scale 2",
    "faster": "plain.csv --trace-rate-factor 3",
    "first": "plain.csv --num-prompts 10",
    "concurrent": "agentic.jsonl --concurrency 2",
    "clipped": "plain.csv --max-request-tokens 500 --long-requests clip",
    "sticky": "chats.jsonl --replicas 3 --router session-sticky",
    "prefix-aware": "mooncake.jsonl --replicas 3 --router prefix-aware",
}
SERVED = {
    **named("router", each(ROUTERS, f"{SHARED} --replicas 3 --turns 2 --router *")),
    "queue-limit": f"{BURST} --max-num-seqs 4 --max-queued-requests 10",
    "outstanding-limit": f"{BURST} --replicas 2 --max-outstanding-requests 3",
    "timeout": f"{BURST} --max-num-seqs 4 --request-timeout-s 0.8",
    "failures": f"{LOAD} --replicas 3 --mtbf 2 --recovery 1",
    "failures-fail": f"{LOAD} --replicas 3 --mtbf 2 --recovery 1 --requests-of-lost-replicas fail",
    "failures-replicated": f"{LOAD} --replicas 2 --mtbf 2 --recovery 1 --replications 2",
    "autoscaled": f"{LOAD} --rate 60 --max-replicas 4 --target-requests 4 --startup 0.5 "
    "--autoscale-interval-s 0.5 --scale-down-delay-s 1",
    "disaggregated": f"{LOAD} --replicas 3 --prefill-replicas 1",
    "disaggregated-routers": f"{SHARED} --replicas 4 --prefill-replicas 2 --router prefix-aware "
    "--decode-router least-kv",
    **named(
        "link",
        each("infiniband nvlink pcie", f"{LOAD} --replicas 2 --prefill-replicas 1 --kv-transfer-link *"),
    ),
    "link-rate": f"{LOAD} --replicas 2 --prefill-replicas 1 --kv-transfer-bytes-per-s 1e9",
    "disaggregated-timeout": f"{BURST} --replicas 2 --prefill-replicas 1 --request-timeout-s 0.5 {TIGHT}",
    "disaggregated-failures": f"{LOAD} --replicas 4 --prefill-replicas 2 --mtbf 2 --recovery 0.5",
    "disaggregated-autoscaled": f"{LOAD} --rate 60 --replicas 2 --prefill-replicas 1 --max-replicas 2 "
    "--target-requests 4 --startup 0.5 --autoscale-interval-s 0.5 --decode-autoscale-max-replicas 3 "
    "--decode-autoscale-target-requests 6",
}
RANKS = {
    "lock-step": "-dp 2",
    "lock-step-ep": "-dp 4 -ep",
    "ep": "-tp 2 -ep",
    "replicas": "-dp 2 --replicas 2",
    "offload": "-dp 2 --kv-offloading-size 4",
    "sglang": "-dp 2 -ep --engine sglang",
    "timeline": "-dp 2 --timeline timeline.json",
}
SETUPS = {
    "pp": f"{POOL} -pp 2",
    "drafts": f"{POOL} --speculator eagle3",
    "offload": f"{POOL} --kv-offloading-size 1",
    "replicas": f"{POOL} --replicas 3 --router least-outstanding",
    "disaggregated": f"{POOL} --replicas 3 --prefill-replicas 2",
    "lock-step": f"{MOE} -dp 2 -ep",
    "windows": "gemma-3-12b --gpu h100",
    "states": "qwen3-next-80b-a3b --gpu b300",
    "v0": f"{POOL} --engine vllm@0.6",
    "sglang": f"{POOL} --engine sglang",
    "tgi": f"{POOL} --engine tgi",
    "trtllm": f"{POOL} --engine trtllm",
}
LOADS = {
    "turns": f"{LENGTHS} --rate 5 --num-prompts 60 --turns 3 --think-time-s 0.3",
    "loop": f"{LENGTHS} --concurrency 12 --num-prompts 60 --random-range-ratio 0.7",
    "impatient": f"{BURST} --max-num-seqs 8 --request-timeout-s 1.5",
    "tight": f"{SHARED} --rate 60 --kv-cache-memory-bytes 1G --max-model-len 2048",
    "samples": f"{LOAD} --n 2 --max-num-seqs 16",
}
LONG = {
    "stream": f"{POOL} --isl 800 --osl 200 --rate 15 --num-prompts 1500 --random-range-ratio 0.9",
    "loop": f"{POOL} --isl 800 --osl 200 --concurrency 64 --num-prompts 1000 --random-range-ratio 0.9",
    "replicas": f"{POOL} {SHARED.replace('60', '1000')} --rate 60 --replicas 4 --router prefix-aware",
    "disaggregated": f"{POOL} --isl 800 --osl 200 --rate 25 --num-prompts 800 --replicas 3 --prefill-replicas 1",
    "day": f"{POOL} --isl 600 --osl 150 --length-distribution gamma --clients 100 --burstiness 0.3 --rate 20 "
    "--num-prompts 800 --arrivals diurnal --day-length-s 40 --random-prefix-len 256 --replicas 2",
    "offload": f"{POOL} {SHARED.replace('60', '800')} --kv-cache-memory-bytes 2G --max-model-len 4096 "
    "--kv-offloading-size 2 --num-prefixes 40",
    "lock-step": f"{MOE} -dp 4 -ep --isl 500 --osl 100 --rate 40 --num-prompts 600",
    "preempted": f"{POOL} {BURST.replace('60', '600')} --kv-cache-memory-bytes 1G --max-model-len 2048",
}
IN_BLOCKS = {
    "--kv-cache-memory-bytes 320M": 2560,
    "--kv-cache-memory-bytes 1G": 8192,
}  # of one token of Llama 8B


def in_blocks(line: str) -> str:
    """The memory of KV as blocks, where the engine's settings have no bytes of it."""
    for text, blocks in IN_BLOCKS.items() if "--engine sglang" in line or "--engine tgi" in line else ():
        line = line.replace(text, f"--num-gpu-blocks-override {blocks}")
    return line


SIMULATED = {
    **named("long", LONG),
    **{
        f"{setup}/{load}": in_blocks(f"{SETUPS[setup]} {LOADS[load]}")
        for setup, load in itertools.product(SETUPS, LOADS)
    },
    **named("option", options(f"{POOL} {LOAD}", POOL_OF_SIMULATE)),
    **named(
        "scarce", {name: in_blocks(line) for name, line in options(f"{POOL} {BURST} {TIGHT}", SCARCE).items()}
    ),
    **named("offload", options(f"{POOL} {SHARED} {TIGHT}", OFFLOAD)),
    **named("drafts", options(f"{POOL} {LOAD}", DRAFTS)),
    **named("arrivals", options(f"{POOL} {LENGTHS} --num-prompts 60", ARRIVALS)),
    **named("trace", options(f"{POOL} --trace", TRACES)),
    **named("service", options(POOL, SERVED)),
    **named("ranks", options(f"{MOE} {LOAD}", RANKS)),
    **named(
        "family",
        each(FAMILIES, f"* --gpu b300 {LENGTHS} --rate 20 --num-prompts 30 --random-range-ratio 0.5"),
    ),
    **named("family-prefixes", each(FAMILIES, f"* --gpu b300 {SHARED}")),
    **named("large", each(EIGHT_GPUS, f"* --gpu b300 -tp 8 {LENGTHS} --rate 20 --num-prompts 20")),
    **named("engine", each(ENGINES, f"{POOL} --engine * {LOAD} --max-model-len 8192")),
    **named("engine-prefixes", each(ENGINES, f"{POOL} --engine * {SHARED} --max-model-len 8192")),
    **named("engine-loop", each(ENGINES, f"{POOL} --engine * {LENGTHS} --concurrency 6 --num-prompts 30")),
    **named(
        "gpu", each(GPUS, f"llama-3.2-3b --gpu * --max-model-len 8192 {LENGTHS} --rate 10 --num-prompts 30")
    ),
    "mtp": f"deepseek-v3 --gpu b300 -tp 8 {LOAD} --speculator mtp",
    "dp-mla": f"deepseek-v3 --gpu h200 -dp 8 -ep --max-model-len 8192 {LOAD}",
    "file": "--deployment one.toml",
    "file-disaggregated": "--deployment disaggregated.toml",
    "file-disaggregated-records": "--deployment disaggregated.toml --records r.csv --series s.csv",
    "file-mixed": "--deployment mixed.toml",
    "file-priced": "--deployment priced.toml --seed 3",
}

# planned

COST = {
    "plain": "",
    "replicas": "--replicas 3 --requests-per-user-hour 12 --co2-g-per-kwh 400",
    "api": "--api DeepInfra",
    "api-cached": "--api all --api-cached-fraction 0.5",
    "api-file": "--api all --api-price-file api-prices.csv --api-cached-fraction 0.3",
    "api-price": "--api-input-price 0.2 --api-output-price 0.6 --api-cached-fraction 0.4 --api-cached-multiple 0.25 "
    "--api-cache-write-multiple 1.25",
    "spot": "--interruptions-per-hour 0.1 --restart-s 300",
    "batch-job": "--documents 100000 --deadline-hours 4",
}
CURVE = {
    "plain": "",
    "slo": "--slo ttft:p95:200ms --requests-per-user-hour 10",
    "rates": "--rates 5,20,80 --replications 2 --price 2",
    "day": "--slo ttft:p95:200ms --peak-rate 60 --peak-to-mean 1.4",
    "hours": f"--slo ttft:p95:200ms --hourly-rates {','.join(map(str, range(10, 34)))}",
    "confidence": "--slo ttft:p95:200ms --confidence 0.5 --replicas 2",
    "html": "--slo ttft:p95:200ms --output curve.html",
}
PLANNED = {
    "gpus": "--objective gpus",
    "cost": "--price h100=2.5",
    "energy": "--objective energy",
    "latency": "--objective latency --max-gpus 4",
    "tier": "--price-tier on-demand",
    "budget": "--price h100=2.5 --budget 5",
    "confidence": "--objective gpus --confidence 0.5",
    "no-alternatives": "--objective gpus --no-alternatives",
    "aggregated": "--objective gpus --serving aggregated",
    "disaggregated": "--objective gpus --serving disaggregated",
    "engines": "--objective gpus --engines vllm,sglang,trtllm",
    "formats": "--objective gpus --quantizations default,fp8,int4 --kv-cache-dtypes auto,fp8 --max-quality-loss 0.01",
    "gpu-types": "--price-tier on-demand --gpus h100,l40s,a100",
    "limits": "--objective gpus --max-num-seqs default,32 --max-num-batched-tokens default,512",
    "switches": "--objective gpus --no-chunked-prefill --no-prefix-caching",
    "speculators": "--objective gpus --speculators none,ngram --num-speculative-tokens 2 --acceptance 0.6",
    "routers": "--objective gpus --rate 200 --routers round-robin,least-outstanding",
    "parallel": "--objective gpus --tensor-parallel-sizes 1,2 --pipeline-parallel-sizes 1,2",
    "memory": "--objective gpus --max-model-len 4096 --gpu-memory-utilization 0.5",
    "prefixes": "--objective gpus --rate 100 --random-prefix-len 1000 --num-prefixes 8",
    "replications": "--objective gpus --replications 2",
    "goodput": "--objective gpus --slo ttft:400 --goodput-target 0.9",
    "files": "--price h100=2.5 --output plan",
    "two-workers": "--objective gpus --workers 2 --rate 100",
}
FLEET = (
    "llama-3.1-8b --gpus h100,l40s --price h100=4,l40s=1 --tensor-parallel-sizes 1 --quantizations default "
    "--kv-cache-dtypes auto --max-num-batched-tokens default --speculators none --workers 1 --time-limit-s 0 "
    "--isl 1500 --osl 40 --length-distribution lognormal --input-len-cv 2 --num-prompts 300 --replications 1 --rate 80 "
    "--slo ttft:p90:600ms"
)
FLEETS = {
    "thresholds": "",
    "three": "--split-at 500,2500 --max-pools 3",
    "one": "--max-pools 1",
    "by-request": "--split-by request --split-at 1000",
    "each-pool": "--split-at 1000 --slo-of pool",
    "sides": "--split-at 1000 --short-gpus l40s --long-gpus h100",
    "gpus": "--split-at 1000 --objective gpus",
    "reserve": "--split-at 1000 --availability 0.99 --mtbf 100000 --recovery 3600 --spare-replicas 1",
    "day": "--split-at 1000 --peak-to-mean 1.8",
    "unmet": "--split-at 1000 --slo ttft:p95:1ms",
}
TRACED_PLAN = (
    "--gpus h100 --tensor-parallel-sizes 1 --quantizations default --objective gpus "
    "--workers 1 --time-limit-s 0"
)
DEPLOYED = f"{POOL} --isl 300 --osl 30 --rate 10 --num-prompts 60"
PLANNING = {
    **asked("cost", options(f"{DEPLOYED} --price 2", COST)),
    **asked("curve", options(f"{POOL} --isl 300 --osl 30 --num-prompts 60", CURVE)),
    **asked("plan", {name: f"{PLAN[5:]} {more}" for name, more in PLANNED.items()}),
    **asked(
        "plan",
        {
            "moe": f"qwen3-30b-a3b {SMALL_PLAN} --data-parallel-sizes 1,2 --expert-parallel --objective gpus "
            "--slo ttft:p95:500ms",
            "unmet": f"llama-3.1-8b {SMALL_PLAN} --objective gpus --slo ttft:p95:1ms",
            "trace": f"llama-3.1-8b {TRACED_PLAN} --trace mooncake.jsonl --slo ttft:p95:1s",
        },
    ),
    **asked("fleet", options(FLEET, FLEETS)),
    **asked(
        "tornado",
        {
            "plain": f"{DEPLOYED} --price 2",
            "replicas": f"{DEPLOYED} --replicas 2",
            "drafts-prefixes": f"{POOL} {SHARED} --speculator ngram --price-tier spot",
            "trace": f"{POOL} --trace mooncake.jsonl",
            "file": "--deployment priced.toml",
        },
    ),
    **asked(
        "advise",
        {
            "plain": f"{DEPLOYED} --price 2",
            "prefixes": f"{POOL} {SHARED} --replicas 2 --rate 60",
            "moe": f"{MOE} -tp 2 --isl 300 --osl 30 --rate 10 --num-prompts 30",
            "sglang": f"{DEPLOYED} --engine sglang",
            "file": "--deployment priced.toml",
        },
    ),
    **asked(
        "diff",
        {
            "two": "one.toml two.toml",
            "replicated": "one.toml two.toml --replications 3 --seed 1",
            "same": "one.toml one.toml",
            "priced": "priced.toml one.toml",
        },
    ),
    **asked(
        "sweep",
        {
            "grid": "grid.toml --workers 1 --export rows.csv",
            "zipped": "zipped.toml --workers 1",
            "random": "random.toml --workers 1 --export rows.csv",
            "html": "grid.toml --workers 1 --export rows.html",
            "two-workers": "grid.toml --workers 2 --export rows.csv",
        },
    ),
}

# techniques

MIXED_LENGTHS = "--isl 200 --osl 50 --random-range-ratio 0.8 --num-prompts 40"
TECHNIQUES = {
    **asked(
        "quantize",
        {
            "plain": POOL,
            "priced": f"{POOL} --price 2.50 --isl 2000 --osl 100 --large-batch 128",
            "methods": "llama-3.1-70b --gpu h200 --method fp8-tensor --method awq-int4",
            **named("gpu", each("a100 l4 b200 mi300x", "llama-3.1-8b --gpu *")),
            "moe": "qwen3-30b-a3b --gpu h100",
            "own-format": "gpt-oss-20b --gpu h100",
            "engine": f"{POOL} --engine trtllm",
        },
    ),
    **asked(
        "speculate",
        {
            **named("method", each(SPECULATORS, f"{POOL} --method * --batch-sizes 1,16,64")),
            "draft-model": "llama-3.1-70b --gpu h200 -tp 2 --method draft-model --draft llama-3.2-1b -k 4",
            "chain": f"{POOL} --method eagle3 --context 8192 -k 3",
            "acceptance": f"{POOL} --method eagle --acceptance 0.8",
            "mtp": "deepseek-v3 --gpu b200 -tp 8 --method mtp",
            "simulated": f"{POOL} --method ngram --simulate --batch-sizes 2,8",
            "textbook": "--textbook",
            "list": "--list",
        },
    ),
    **asked(
        "scale",
        {
            "tensor": f"{POOL} --tpot 10 --price 2",
            "pipeline": f"{POOL} --axis pipeline --isl 20000 --most-gpus 4",
            "expert": "qwen3-30b-a3b --gpu h100 --axis expert --most-gpus 4",
            "data": "qwen3-30b-a3b --gpu h100 --axis data --most-gpus 4 --concurrency 64",
            "two-nodes": "llama-3.1-405b --gpu h100 --most-gpus 16",
        },
    ),
    **asked("attention-io", {**each("llama-3.1-8b gemma-3-12b qwen3-8b", "* --gpu a100 --contexts 1K,32K")}),
    **asked(
        "batching",
        {
            "plain": f"{POOL} --max-model-len 4096 {MIXED_LENGTHS} --batch-size 8",
            "rate": f"{POOL} {MIXED_LENGTHS} --rate 10 --batching-window 0.05 --no-spread",
            "chart": f"{POOL} --max-model-len 4096 {MIXED_LENGTHS} --no-spread --chart chart.html",
            "trace": f"{POOL} --trace plain.csv --no-spread",
        },
    ),
    **asked(
        "kv",
        {
            "families": FAMILIES.replace("\n", " "),
            "gpus": "llama-3.1-8b deepseek-v3 --gpu h100 --gpu l4 --window 2044",
            "window": "mistral-7b-v0.1 gemma-2-9b --gpu a100 --window 1024 --sinks 8 --contexts 8K,64K",
            "formats": "llama-3.1-70b --gpu h200 --kv-cache-dtype fp8 -q fp8 -tp 2 --batch-size 64",
            "engine": "llama-3.1-8b --gpu h100 --engine tgi",
        },
    ),
    **asked(
        "cache-curve",
        {
            "mooncake": "mooncake.jsonl --capacity-tokens 4K,16K,64K",
            "chats": "chats.jsonl --capacity-tokens 512,4K",
            "engine": "mooncake.jsonl --as-engine --block-tokens 256 --replicas 3",
            "served": f"mooncake.jsonl --model {POOL} --price 2 --plan grok",
            "served-tp": "chats.jsonl --model llama-3.1-70b --gpu h200 -tp 2 --num-prompts 20",
            "agentic": "agentic.jsonl",
        },
    ),
    **asked("engines", {"h100": "", "l4-claims": "--gpu l4 --claims", "b200": "--gpu b200"}),
}

# checked against measurements

VALIDATED = {
    **asked(
        "compare",
        {
            "bench": "bench.json --gpu h100",
            "log": f"bench.json --model {POOL} --server-log server.log -tp 1",
            "closed": f"closed.json --model {POOL}",
            "fitted": f"bench.json closed.json --model {POOL} --fit-overheads",
        },
    ),
    **asked("calibrate", {"cpu": "cpu.jsonl --name mine --out profiles"}),
    "calibrate/table": "calibrate cpu.jsonl --name mine --out profiles",
    "compare/table": f"compare bench.json --model {POOL}",
}

# in words, as tables, and in steps

AS_TABLE = {
    "fit": f"fit {POOL}",
    "fit-too-large": "fit llama-3.1-405b --gpu l4",
    "estimate": f"estimate {POOL} {LENGTHS} --concurrency 8 --price-tier spot",
    "explain": f"explain {POOL} {LENGTHS} --batch-size 8",
    "term": "explain ttft",
    "term-of-a-model": f"explain ridge {POOL} {LENGTHS} --concurrency 8",
    "simulate": SIMULATE,
    "simulate-served": f"{SIMULATE} --replicas 3 --mtbf 2 --recovery 1 --goodput ttft:100 --slo ttft:p95:1s",
    "simulate-disaggregated": "simulate --deployment disaggregated.toml",
    "simulate-drafts": f"{SIMULATE} --speculator eagle3-tree",
    "simulate-ranks": f"simulate {MOE} {LOAD} -dp 2",
    "simulate-offload": f"simulate {POOL} {SHARED} {TIGHT} --kv-offloading-size 1",
    "simulate-replicated": f"{SIMULATE} --replications 2",
    "models": "models",
    "gpus": "gpus",
    "frontier": "frontier llama-3.1-8b --gpus h100,l4 --quantizations default,fp8 --isl 300 --osl 30 --price 2",
    "plan": f"{PLAN} --price h100=2.5",
    "plan-unmet": f"plan llama-3.1-8b {SMALL_PLAN} --objective gpus --slo ttft:p95:1ms",
    "fleet": f"fleet {FLEET} --split-at 500,2500 --max-pools 3",
    "fleet-unmet": f"fleet {FLEET} --split-at 1000 --slo ttft:p95:1ms",
    "cost": f"cost {DEPLOYED} --price 2 --api DeepInfra --documents 1000 --deadline-hours 1",
    "cascade": f"cascade {DEPLOYED} --price 2 --small llama-3.2-1b --escalation-rate 0.3 --cache-hit-rate 0.1",
    "curve": f"curve {POOL} --isl 300 --osl 30 --num-prompts 60 --slo ttft:p95:200ms --peak-rate 60",
    "tornado": f"tornado {DEPLOYED} --price 2",
    "advise": f"advise {DEPLOYED} --price 2",
    "diff": "diff one.toml two.toml",
    "diff-replicated": "diff one.toml two.toml --replications 3",
    "sweep": "sweep grid.toml --workers 1",
    "quantize": f"quantize {POOL}",
    "speculate": f"speculate {POOL}",
    "textbook": "speculate --textbook",
    "speculators": "speculate --list",
    "scale": f"scale {POOL} --tpot 10",
    "attention-io": f"attention-io {POOL}",
    "batching": f"batching {POOL} --max-model-len 4096 {MIXED_LENGTHS} --batch-size 8",
    "kv": "kv llama-3.1-8b deepseek-v3 --gpu h100 --window 2044",
    "cache-curve": f"cache-curve mooncake.jsonl --replicas 2 --model {POOL}",
    "engines": "engines --claims",
}
AS_CSV = """fit estimate explain frontier simulate simulate-replicated models gpus plan fleet cost cascade curve
tornado advise diff diff-replicated sweep quantize speculate scale attention-io batching kv cache-curve engines
textbook speculators"""
SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
STEPS = {
    "models/json": "models --format json",
    "gpus/json": "gpus --format json",
    "version": "--version",
    "bare": "",
    "help": "--help",
    **named("help", each(VERBS, "* --help")),
    "schema/names": "schema",
    **named("schema", each(SCHEMAS, "schema *")),
    **named("table", AS_TABLE),
    **named("csv", {name: f"{AS_TABLE[name]} --format csv" for name in AS_CSV.split()}),
    **named("schedule", each("vllm-v1 vllm-v1-async vllm-v0", "schedule scenarios.jsonl --policy *")),
    **named(
        "schedule",
        {
            "oracle-v1": "schedule v1_named.jsonl.gz --policy vllm-v1",
            "oracle-v1-async": "schedule v1async_named.jsonl.gz --policy vllm-v1-async",
            "oracle-v0": "schedule v0_named.jsonl.gz --policy vllm-v0",
        },
    ),
    "schedule/one": "schedule scenario.json",
    "schedule/table": "schedule scenarios.jsonl --format table",
    "schedule/gantt": "schedule scenarios.jsonl --policy vllm-v1-async --format gantt",
    "schedule/radix": "schedule radix.json --policy sglang-radix",
    "schedule/radix-table": "schedule radix.json --policy sglang-radix --format table",
    "charts/8b": f"charts {POOL} -o charts",
    "charts/moe": f"charts {MOE} -o charts",
    "from-vllm/plain": f"from-vllm '{SERVE} -tp 2 --max-model-len 8192 --port 8000' --gpu h100",
    "from-vllm/many": f"from-vllm '{SERVE} --quantization fp8 --kv_cache_dtype=fp8 --max-num-seqs 64 "
    "--no-enable-prefix-caching --enable-expert-parallel --block-size 32 --gpu-memory-utilization 0.85' --gpu h200",
    "from-vllm/written": f"from-vllm '{SERVE} -q fp8 --served-model-name x' --gpu h100 --output own.toml\n"
    "fit --deployment own.toml --format json",
    "from-vllm/speculative": f"""from-vllm "{SERVE} --speculative-config '{{\\"method\\": \\"ngram\\", """
    """\\"num_speculative_tokens\\": 3}'" --gpu h100""",
    "from-vllm/fit": f"fit --from-vllm '{SERVE} -tp 2 --seed 7' --gpu h100 --format json",
    "from-vllm/simulate": f"simulate --from-vllm '{SERVE} --max-num-seqs 8' --gpu h100 {LOAD} --format json",
    "from-vllm/cost": f"cost --from-vllm '{SERVE} -tp 2' --gpu h100 --price 2 {LOAD} --format json",
    "written/estimate": f"estimate {POOL} -tp 2 {LENGTHS} --concurrency 8 --price 2 --write-deployment mine.toml\n"
    "estimate --deployment mine.toml --format json",
    "written/simulate": f"simulate {POOL} {SHARED} --replicas 2 --router prefix-aware --write-deployment mine.toml\n"
    "simulate --deployment mine.toml --format json",
    "written/trace": f"{SIMULATE} --save-trace saved.jsonl\nsimulate {POOL} --trace saved.jsonl --format json",
    "written/prefix-trace": f"simulate {POOL} {SHARED} --save-trace saved.jsonl\ncache-curve saved.jsonl --format json",
    "written/sweep": "sweep grid.toml --workers 1\nsweep grid.toml --workers 1 --retry-failed --format json",
    "written/diff": f"{SIMULATE} --write-deployment a.toml\nfrom-vllm '{SERVE} -q fp8' --gpu h100 --output b.toml\n"
    "diff a.toml b.toml --format json",
    "written/plan": f"{PLAN} --objective gpus --output plan --format json",
    "written/fleet": f"fleet {FLEET} --split-at 1000 --output fleet.toml\n"
    "simulate --deployment fleet.toml --format json",
    "written/profile": "calibrate cpu.jsonl --name mine --out profiles\ngpus --profiles profiles --format json",
    "written/calibrated": "calibrate cpu.jsonl --name mine --out profiles\n"
    f"estimate qwen2.5-0.5b --gpu cpu@mine --profiles profiles {LENGTHS} --batch-size 2 --format json",
}

# refusals: what cannot be asked

REFUSED = {
    "verb": f"fits {POOL}",
    "model": "fit lama-3.1-8b --gpu h100",
    "no-model": "fit --gpu h100",
    "gpu": "fit llama-3.1-8b --gpu h10",
    "no-gpu": "fit llama-3.1-8b",
    "empty-gpu": "fit llama-3.1-8b --gpu=",
    "flag": f"fit {POOL} --tensor-paralel-size 2",
    "tp": f"fit {POOL} -tp 3",
    "tp-zero": f"fit {POOL} -tp 0",
    "tp-word": f"fit {POOL} -tp two",
    "heads": "fit qwen2.5-7b --gpu h100 -tp 8",
    "pp": f"fit {POOL} -pp 64",
    "engine": f"fit {POOL} --engine vlm",
    "old-engine": f"fit {POOL} --engine vllm@0.1",
    "engine-format": f"fit {POOL} --engine ollama -q awq",
    "utilization": f"fit {POOL} --gpu-memory-utilization 1.5",
    "model-len": f"fit {POOL} --max-model-len 1000000000",
    "format": f"fit {POOL} --format xml",
    "idle": f"fit {POOL} --kv-offloading-backend lmcache",
    "idle-lengths": f"{SIMULATE} --output-len-cv 1",
    "idle-arrivals": f"{SIMULATE} --arrivals ramp --on-s 1",
    "no-file": f"fit {POOL} --deployment nowhere.toml",
    "misspelt-file": "fit --deployment misspelt.toml",
    "broken-file": "fit --deployment broken.toml",
    "two-pools": "fit --deployment mixed.toml",
    "two-pools-flag": "simulate --deployment mixed.toml -tp 2",
    "profiles": f"fit {POOL} --profiles nowhere",
    "write": f"fit {POOL} --write-deployment nowhere/x.toml",
    "context-parallel": f"fit {POOL} -dcp 2",
    "both-drafts": f"""fit {POOL} --speculator eagle --speculative-config '{{"method": "ngram"}}'""",
    "drafts": f"estimate {POOL} {LENGTHS} --batch-size 1 --speculator eagle",
    "pasted": "fit --from-vllm 'sglang serve x' --gpu h100",
    "load": f"estimate {POOL} {LENGTHS}",
    "two-loads": f"estimate {POOL} {LENGTHS} --batch-size 1 --concurrency 1",
    "no-output": f"estimate {POOL} --isl 10 --batch-size 1",
    "long-request": f"estimate {POOL} --isl 131072 --osl 1 --batch-size 1",
    "batch": f"estimate {POOL} {LENGTHS} --batch-size 100000",
    "large-batch": f"estimate {POOL} --isl 100000 --osl 1000 --batch-size 64",
    "price": f"estimate {POOL} {LENGTHS} --batch-size 1 --price cheap",
    "tier": f"estimate {POOL} {LENGTHS} --batch-size 1 --price-tier free",
    "too-large": f"estimate llama-3.1-405b --gpu l4 {LENGTHS} --batch-size 1",
    "term": "explain tttf",
    "traffic": f"simulate {POOL}",
    "rate": f"simulate {POOL} {LENGTHS} --rate nan",
    "batch-of-a-run": f"simulate {POOL} {LENGTHS} --batch-size 4",
    "goodput": f"{SIMULATE} --goodput speed:5",
    "slo": f"{SIMULATE} --slo ttft:p95",
    "router": f"{SIMULATE} --router fastest",
    "swap": f"{SIMULATE} --preemption-mode swap",
    "role": f"{SIMULATE} --role prefill",
    "prefill-replicas": f"{SIMULATE} --prefill-replicas 1",
    "speculator": f"{SIMULATE} --speculator eagle7",
    "mtp": f"{SIMULATE} --speculator mtp",
    "draft-model": f"""{SIMULATE} --speculative-config '{{"model": "llama-3.2-1b", "num_speculative_tokens": 3}}'""",
    "drafts-of-sglang": f"{SIMULATE} --engine sglang --speculator eagle3",
    "drafts-of-ranks": f"simulate {MOE} {LOAD} -dp 2 --speculator ngram",
    "ranks-that-prefill": f"simulate {MOE} {LOAD} -dp 2 --replicas 2 --prefill-replicas 1",
    "timeline": "simulate --deployment disaggregated.toml --timeline t.json",
    "plan-slos": f"{PLAN} --objective gpus --slo ttft:p95:1ms",
    "acceptance": f"{SIMULATE} --speculator eagle --acceptance 2",
    "transfer-config": f"""{SIMULATE} --kv-transfer-config '{{"kv_role": "kv_thief"}}'""",
    "trace-and-lengths": f"simulate {POOL} {LENGTHS} --trace plain.csv",
    "replicated-trace": f"simulate {POOL} --trace plain.csv --replications 2",
    **named(
        "trace",
        each(
            "nowhere.csv empty.csv ragged.csv negative.csv columns.csv no.jsonl", f"simulate {POOL} --trace *"
        ),
    ),
    "scenario": "schedule plain.csv",
    "policy": "schedule scenario.json --policy vllm-v2",
    "schema": "schema fits",
    "plan-slo": f"plan llama-3.1-8b {SMALL_PLAN} --objective gpus",
    "plan-price": PLAN,
    "fleet-loop": f"fleet {FLEET} --concurrency 4",
    "fleet-mtbf": f"fleet {FLEET} --mtbf 1000",
    "fleet-pools": f"fleet {FLEET} --max-pools 0",
    "plan-objective": f"{PLAN} --objective beauty",
    "plan-workers": f"{PLAN} --objective gpus --workers 0",
    "plan-too-large": f"{PLAN} --objective gpus --gpus l4 --max-model-len 131072",
    "plan-queue": f"plan llama-3.1-8b {SMALL_PLAN} --objective gpus --slo tpot:p95:40ms",
    "cost-price": f"cost {DEPLOYED}",
    "curve-rates": f"curve {DEPLOYED} --rates 1,x",
    "diff-traffic": "diff quiet.toml quiet.toml",
    "diff-pools": "diff one.toml mixed.toml",
    "sweep-unequal": "sweep unequal.toml",
    "sweep-file": "sweep one.toml",
    "quantize-method": f"quantize {POOL} --method awq-like",
    "speculate-method": f"speculate {POOL} --method eagle7",
    "speculate-fit": "speculate llama-3.3-70b --gpu h100",
    "speculate-draft": f"speculate {POOL} --method draft-model",
    "scale-axis": f"scale {POOL} --axis diagonal",
    "scale-experts": f"scale {POOL} --axis data",
    "kv-contexts": "kv llama-3.1-8b --contexts -4",
    "cache-curve": "cache-curve plain.csv",
    "cache-curve-gpu": "cache-curve mooncake.jsonl --model llama-3.1-8b",
    "cache-curve-plan": "cache-curve mooncake.jsonl --plan free",
    "batching-traffic": f"batching {POOL}",
    "batching-drafts": f"batching {POOL} {MIXED_LENGTHS} --speculator ngram",
    "attention-io": "attention-io deepseek-v3 --gpu b200 -tp 8",
    "engines": "engines --gpu h999",
    "compare": "compare plain.csv --gpu h100",
    "calibrate": "calibrate plain.csv",
    "validate": "validate --campaign nowhere.toml --format xml",
}

COMMANDS = {
    **PLANNING,  # the slowest first
    **VALIDATED,
    **asked("simulate", SIMULATED),
    **TECHNIQUES,
    **asked("fit", FIT),
    **asked("estimate", ESTIMATE),
    **asked("explain", EXPLAIN),
    **STEPS,
    **named("refused", REFUSED),
}
