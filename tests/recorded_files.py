"""The small files that recorded cases read: traces of every kind, deployments, sweeps, scenarios, configs, prices.

All are made by arithmetic, without random numbers, so that every checkout makes the same bytes.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

Row = tuple[float, int, int]  # arrival in seconds, prompt tokens, output tokens


def rows(count: int = 60, gap_s: float = 0.05) -> list[Row]:
    """Requests of uneven lengths at uneven times."""
    return [
        (round(i * gap_s + i * 7 % 5 / 100, 3), 100 + i * 37 % 900, 5 + i * 11 % 60) for i in range(count)
    ]


def table(header: str, lines: list[str]) -> str:
    return "\n".join([header, *lines]) + "\n"


def json_lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


# traces


def plain() -> str:
    return table("arrival_s,prompt_tokens,output_tokens", [f"{t},{given},{out}" for t, given, out in rows()])


def prioritised() -> str:
    """Bursts of three, each more urgent than the one before."""
    lines = [f"{i // 3 * 0.02},{200 + i * 37 % 900},{5 + i * 11 % 60},{-i}" for i in range(60)]
    return table("arrival_s,prompt_tokens,output_tokens,priority", lines)


def sessions() -> str:
    """Ten sessions of three turns, each a think time after the one before."""
    lines = [
        f"{i * 0.2 + turn * 2},{200 + turn * 300},{10 + i},{i},{i + (turn - 1) * 10 if turn else -1},{turn * 0.5}"
        for turn in range(3)
        for i in range(10)
    ]
    return table("arrival_s,prompt_tokens,output_tokens,session,after_request,think_s", lines)


def azure() -> str:
    lines = [
        f"2023-11-16 18:15:{10 + i // 4}.{i % 4}805900,{300 + i * 31 % 500},{5 + i % 40}" for i in range(60)
    ]
    return table("TIMESTAMP,ContextTokens,GeneratedTokens", lines)


def burstgpt() -> str:
    lines = [f"{5 + i // 3},{i % 7},{200 + i * 13 % 400},{i * 5 % 50}" for i in range(60)]
    return table("Timestamp,Session ID,Request tokens,Response tokens", lines)


def hashed(count: int = 60, tick: int = 10) -> list[dict[str, Any]]:
    """Mooncake's kind: milliseconds, blocks of 512 tokens, five system prompts of two blocks."""
    return [
        {
            "timestamp": i * 40 // tick * tick,
            "input_length": 1100 + i % 5 * 512,
            "output_length": 5 + i * 7 % 40,
            "hash_ids": [i % 5 * 2, i % 5 * 2 + 1, *(1000 + i * 10 + part for part in range(1 + i % 5))],
        }
        for i in range(count)
    ]


def chats() -> str:
    """Qwen-Bailian's kind: seconds, blocks of 16 tokens, chats of three turns that grow on one another."""
    return json_lines(
        [
            {
                "chat_id": chat * 3 + turn,
                "parent_chat_id": chat * 3 + turn - 1 if turn else -1,
                "timestamp": chat * 0.3 + turn * 4.5,
                "input_length": 160 * (turn + 1),
                "output_length": 12 + chat,
                "type": "text",
                "turn": turn + 1,
                "hash_ids": [chat * 100 + block for block in range(10 * (turn + 1))],
            }
            for turn in range(3)
            for chat in range(12)
        ]
    )


def agentic(count: int = 4) -> str:
    """Coding sessions with a subagent each; the last duplicates the first."""
    columns = [
        "t",
        "in",
        "out",
        "prefix_parent",
        "prefix_blocks",
        "api_time",
        "think_time",
        "subagent",
        "stop",
    ]
    requests = [
        [0.0, 1000, 20, -1, 0, 5.0, 0.0, None, "tool_use"],
        [8.0, 1100, 30, 0, 15, 2.0, 3.0, None, "tool_use"],
        [9.0, 140, 10, -1, 0, None, 0.0, "helper", ""],
        [12.0, 200, 10, 2, 2, 1.0, 1.5, "helper", ""],
        [20.0, 1200, 0, 1, 17, None, None, None, ""],
        [30.0, 1300, 40, 1, 17, 4.0, None, None, "end_turn"],
    ]
    record = {"tool_tokens": 100, "system_tokens": 50, "block_size": 64, "cols": columns, "req": requests}
    copies = [{"id": str(i), "dup_of": None, **record} for i in range(count)]
    return json_lines([*copies, {"id": "copy", "dup_of": "0", **record, "req": []}])


# deployments

POOL = 'schema = "capacity/deployment/v1"\nmodel = "llama-3.1-8b"\n\n[[pools]]\ngpu = "h100"\n'
TRAFFIC = "\n[traffic]\ninput_len = 500\noutput_len = 50\nrequest_rate = 30.0\nnum_prompts = 120\n"
DISAGGREGATED = (
    POOL
    + 'role = "prefill"\nreplicas = 2\n\n[[pools]]\ngpu = "a100"\nrole = "decode"\nquantization = "int8"\n'
    + TRAFFIC
    + '\n[service]\nkv_transfer_link = "pcie"\ndecode_router = "least-kv"\n'
)
MIXED = (
    POOL
    + 'replicas = 2\n\n[[pools]]\ngpu = "l40s"\nquantization = "fp8"\nmax_model_len = 8192\n'
    + TRAFFIC
    + '\n[service]\nrouter = "least-outstanding"\n'
)

# sweeps

SWEEP = 'schema = "capacity/sweep/v1"\n'
GRID = (
    SWEEP
    + 'question = "estimate"\n[fixed]\nmodel = "llama-3.1-8b"\ninput_len = 500\noutput_len = 50\n'
    + '[vary]\ngpu = ["h100", "l4", "a100"]\nconcurrency = [1, 16, 100000]\n'
)
ZIPPED = (
    SWEEP
    + 'question = "fit"\naxes = "zip"\n[fixed]\ngpu = "h100"\n'
    + '[vary]\nmodel = ["llama-3.1-8b", "llama-3.1-70b"]\ntensor_parallel_size = [1, 4]\n'
)
RANDOM = (
    SWEEP
    + 'question = "simulate"\naxes = "random"\nsamples = 4\nseed = 7\ngoodput = ["ttft:500"]\n'
    + '[fixed]\nmodel = "llama-3.1-8b"\ngpu = "h100"\noutput_len = 20\nnum_prompts = 30\nrequest_rate = 20\n'
    + "[vary]\ninput_len = { low = 100, high = 2000, log = true }\nmax_num_seqs = [8, 64]\n"
)

# what a scheduler decides

SCENARIO: dict[str, Any] = {
    "name": "two",
    "block_size": 4,
    "num_blocks": 64,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 8,
    "max_model_len": 256,
    "step_time": {"base": 0.01, "per_token": 0.001},
    "requests": [
        {"id": "a", "arrival": 0, "prompt": [[1, 10]], "max_tokens": 12, "priority": 2},
        {"id": "b", "arrival": 0, "prompt": [[2, 3]], "max_tokens": 9, "priority": 1},
        {"id": "c", "arrival": 0.02, "prompt": [[1, 8], [3, 4]], "max_tokens": 14},
        {"id": "d", "arrival": 0.05, "prompt": [[1, 10], ["o", 900, 5]], "max_tokens": 5},
    ],
}
SCENARIOS = [
    SCENARIO,
    {**SCENARIO, "name": "tight", "num_blocks": 9},
    {**SCENARIO, "name": "urgent", "num_blocks": 9, "policy": "priority"},
    {**SCENARIO, "name": "uncached", "enable_prefix_caching": False, "long_prefill_token_threshold": 4},
    {**SCENARIO, "name": "whole", "enable_chunked_prefill": False, "max_num_batched_tokens": 32},
    {**SCENARIO, "name": "window", "sliding_window": 8},
    {**SCENARIO, "name": "hybrid", "hybrid_window": 8, "num_blocks": 40},
    {**SCENARIO, "name": "stages", "pp": 2, "watermark": 0.1},
    {**SCENARIO, "name": "drafts", "spec": {"k": 2, "accept": [2, 0, 1], "lookahead": True}},
    {**SCENARIO, "name": "swap", "num_blocks": 9, "preemption_mode": "swap", "num_cpu_blocks": 16},
]
RADIX = {
    "page_size": 1,
    "ops": [
        ["insert", [[1, 6]]],
        ["insert", [[1, 4], [2, 3]]],
        ["match", [[1, 5]]],
        ["lock", [[1, 6]]],
        ["evict", 4],
        ["unlock", [[1, 6]]],
        ["evict", 2],
        ["match", [[1, 6]]],
    ],
}

# models of one's own

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
MIXTRAL = {
    **LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
GROUPED = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
QUANTIZED: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False},
    "gptq3": {"quant_method": "gptq", "bits": 3, "group_size": 128, "sym": False},
    "bnb": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bnb8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "modelopt": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "ignore": ["lm_head"],
    },
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head", "model.layers.0.mlp.down_proj"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": GROUPED, "input_activations": None}},
    },
    "mxfp4": {"quant_method": "mxfp4"},
    "unheard": {"quant_method": "unheard-of"},
}


def configs() -> dict[str, str]:
    """`config.json` files: dense, with experts, and with every way to quantize a checkpoint."""
    plain_ones = {"dense.json": LLAMA, "experts.json": MIXTRAL}
    quantized = {
        f"{name}.json": {**LLAMA, "quantization_config": config} for name, config in QUANTIZED.items()
    }
    return {name: json.dumps(config) for name, config in (plain_ones | quantized).items()}


# a real server's benchmark


def bench() -> dict[str, Any]:
    """Forty requests as `vllm bench serve --save-detailed` writes them, one of which failed."""
    ids = range(40)
    out = [0 if i == 9 else 20 + i % 9 for i in ids]
    given = [500 + i * 37 % 300 for i in ids]
    return {
        "backend": "vllm",
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "num_prompts": 40,
        "request_rate": 6.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 7.5,
        "completed": 39,
        "failed": 1,
        "total_input_tokens": sum(given),
        "total_output_tokens": sum(out),
        "request_throughput": 39 / 7.5,
        "output_throughput": sum(out) / 7.5,
        "input_lens": given,
        "output_lens": out,
        "ttfts": [0.0 if i == 9 else 0.05 + i % 7 / 100 for i in ids],
        "itls": [[0.008 + i % 3 / 1000] * max(0, count - 1) for i, count in zip(ids, out)],
        "start_times": [100 + i / 6 for i in ids],
    }


SERVER_LOG = (
    "INFO 08-12 10:00:00 [kv_cache_utils.py:864] GPU KV cache size: 400,000 tokens\n"
    "INFO 08-12 10:00:00 [kv_cache_utils.py:868] Maximum concurrency for 131,072 tokens per request: 3.05x\n"
)

# prices

PRICES = (
    "gpu,provider,product,tier,usd_per_gpu_hour,gpus_per_instance,date,source\n"
    "h100-sxm-80gb,Mine,one,on-demand,2.25,1,2026-01-01,own\n"
    "h100-sxm-80gb,Mine,eight,on-demand,1.75,8,2026-01-01,own\n"
)
API_PRICES = (
    "provider,model,usd_per_million_input,usd_per_million_output,cached_multiple,cache_write_multiple,date,source\n"
    "Mine,llama-3.1-8b,0.1,0.3,0.5,1.25,2026-01-01,own\n"
)

FILES: dict[str, str | bytes] = {
    "plain.csv": plain(),
    "plain.csv.gz": gzip.compress(plain().encode(), mtime=0),
    "priority.csv": prioritised(),
    "sessions.csv": sessions(),
    "azure.csv": azure(),
    "burstgpt.csv": burstgpt(),
    "mooncake.jsonl": json_lines(hashed()),
    "coarse.jsonl": json_lines(hashed(tick=200)),
    "chats.jsonl": chats(),
    "agentic.jsonl": agentic(),
    "empty.csv": "",
    "ragged.csv": "arrival_s,prompt_tokens,output_tokens\n0,10,10\n1,10\n",
    "negative.csv": "arrival_s,prompt_tokens,output_tokens\n0,-1,10\n",
    "columns.csv": "a,b,c\n1,2,3\n",
    "no.jsonl": "{}\n",
    "one.toml": POOL + TRAFFIC,
    "two.toml": POOL.replace("h100", "h200") + 'quantization = "fp8"\n',
    "quiet.toml": POOL,
    "priced.toml": POOL + "max_num_seqs = 64\nreplicas = 2\n" + TRAFFIC + "\n[cost]\nprice = '2.5'\n",
    "disaggregated.toml": DISAGGREGATED,
    "mixed.toml": MIXED,
    "misspelt.toml": POOL + "max_num_seq = 8\n",
    "broken.toml": "[[pools\n",
    "grid.toml": GRID,
    "zipped.toml": ZIPPED,
    "random.toml": RANDOM,
    "unequal.toml": ZIPPED.replace("[1, 4]", "[1]"),
    "scenario.json": json.dumps(SCENARIO),
    "scenarios.jsonl": json_lines(SCENARIOS),
    "radix.json": json.dumps(RADIX),
    "prices.csv": PRICES,
    "api-prices.csv": API_PRICES,
    "bench.json": json.dumps(bench()),
    "closed.json": json.dumps({**bench(), "max_concurrency": 8, "request_rate": "inf"}),
    "server.log": SERVER_LOG,
    **configs(),
}
