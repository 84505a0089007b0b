"""The calls of `recorded_answers`, by name: a public function, its arguments and its keywords."""

from __future__ import annotations

from typing import Any

Call = tuple[str, tuple[Any, ...], dict[str, Any]]  # public function, arguments, keywords

H100: dict[str, Any] = {"gpu": "h100"}
REQUESTS: dict[str, Any] = {"input_len": 300, "output_len": 30}
STREAM: dict[str, Any] = {**H100, **REQUESTS, "request_rate": 20.0, "num_prompts": 60}
SEARCH: dict[str, Any] = {
    "gpus": ("h100",),
    "tensor_parallel_sizes": (1,),
    "quantizations": (None,),
    "kv_cache_dtypes": ("auto",),
    "max_num_batched_tokens": (None,),
    "objective": "gpus",
    "replications": 1,
    "time_limit_s": None,
    **REQUESTS,
    "request_rate": 10.0,
    "num_prompts": 60,
}
DEPLOYMENT: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "pools": [H100],
    "traffic": {**REQUESTS, "request_rate": 20.0, "num_prompts": 60},
}
MODEL = ("llama-3.1-8b",)


def calls(function: str, questions: dict[str, tuple[tuple[Any, ...], dict[str, Any]]]) -> dict[str, Call]:
    return {
        f"api/{function}/{name}": (function, given, keywords) for name, (given, keywords) in questions.items()
    }


CALLS: dict[str, Call] = {
    **calls(
        "plan",
        {
            "gpus": (MODEL, {**SEARCH, "slo": ["ttft:p95:500ms"]}),
            "text": (MODEL, {**SEARCH, "slo": "ttft:500", "goodput_target": 0.9}),
            "unmet": (MODEL, {**SEARCH, "slo": ["ttft:p95:1ms"]}),
            "switches": (MODEL, {**SEARCH, "slo": "ttft:500", "chunked_prefill": (None, True, False)}),
            "workers": (MODEL, {**SEARCH, "slo": "ttft:500", "request_rate": 100.0, "workers": 2}),
            "no-slo": (MODEL, SEARCH),
        },
    ),
    **calls(
        "advise",
        {"plain": (MODEL, {**STREAM, "price": "2"}), "moe": (("qwen3-30b-a3b",), STREAM)},
    ),
    **calls("tornado", {"plain": (MODEL, {**STREAM, "price": "2"}), "no-traffic": (MODEL, H100)}),
    **calls(
        "curve",
        {
            "plain": (MODEL, STREAM),
            "slo": (MODEL, {**STREAM, "slo": ["ttft:p95:200ms"], "rates": [5, 50], "goodput_target": 0.95}),
            "no-rates": (MODEL, {**STREAM, "rates": []}),
        },
    ),
    **calls(
        "diff",
        {
            "mapping": ((DEPLOYMENT, {**DEPLOYMENT, "pools": [{"gpu": "h200"}]}), {}),
            "files": (("one.toml", "two.toml"), {"replications": 2, "seed": 5}),
            "two-pools": ((DEPLOYMENT, {**DEPLOYMENT, "pools": [H100, H100]}), {}),
        },
    ),
    **calls(
        "sweep",
        {
            "grid": (("grid.toml", "store.sqlite"), {"export_to": "rows.csv"}),
            "missing": (("nowhere.toml", "store.sqlite"), {}),
        },
    ),
    **calls(
        "cost",
        {
            "plain": (MODEL, {**STREAM, "price": "2.5"}),
            "api": (MODEL, {**STREAM, "price_tier": "spot", "api": "all", "replicas": 2}),
            "unpriced": (MODEL, STREAM),
        },
    ),
    **calls(
        "fit",
        {
            "plain": (MODEL, H100),
            "fp8": (("llama-3.1-70b",), {"gpu": "h200", "quantization": "fp8", "kv_cache_dtype": "fp8"}),
            "config": (("awq.json",), {"gpu": "l4"}),
            "too-large": (("llama-3.1-405b",), {"gpu": "l4"}),
            "short-form": (MODEL, {**H100, "max_model_len": "8k", "max_num_seqs": "1K"}),
            "unknown-field": (MODEL, {**H100, "tensor_parallel": 2}),
            "unknown-model": (("lama",), H100),
        },
    ),
    **calls(
        "estimate",
        {
            "loop": (MODEL, {**H100, **REQUESTS, "concurrency": 8}),
            "batch": (
                ("mixtral-8x7b",),
                {"gpu": "h200", "tensor_parallel_size": 2, **REQUESTS, "batch_size": 4},
            ),
            "priced": (MODEL, {**H100, **REQUESTS, "concurrency": 8, "price": "h100=2"}),
            "too-large": (("llama-3.1-405b",), {"gpu": "l4", **REQUESTS, "batch_size": 1}),
            "rate": (MODEL, {**H100, **REQUESTS, "request_rate": 2}),
        },
    ),
    **calls(
        "explain",
        {
            "loop": (MODEL, {**H100, **REQUESTS, "concurrency": 8}),
            "mla": (("deepseek-v2-lite",), {**H100, **REQUESTS, "batch_size": 8}),
            "drafts": (MODEL, {**H100, **REQUESTS, "batch_size": 8, "speculator": "eagle"}),
        },
    ),
    **calls(
        "simulate",
        {
            "stream": (MODEL, STREAM),
            "levels": (MODEL, {**STREAM, "slo": ["ttft:p95:500ms"], "goodput": ["ttft:100", "tpot:8"]}),
            "sampled": (MODEL, {**STREAM, "sample_interval_s": 0.5, "replicas": 2, "router": "least-kv"}),
            "replicated": (MODEL, {**STREAM, "replications": 2}),
            "loop": (MODEL, {**H100, **REQUESTS, "concurrency": 4, "num_prompts": 20}),
            "trace": (MODEL, {**H100, "trace": "chats.jsonl", "trace_sessions": "closed"}),
            "drafts": (
                MODEL,
                {**STREAM, "speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            ),
            "disaggregated": (MODEL, {**STREAM, "replicas": 3, "prefill_replicas": 1}),
            "bad-router": (MODEL, {**STREAM, "router": "fastest"}),
            "too-large": (("llama-3.1-405b",), {**STREAM, "gpu": "l4"}),
        },
    ),
    **calls(
        "quantize",
        {"plain": (MODEL, H100), "methods": (MODEL, {**H100, "methods": ["fp8-tensor"], "large_batch": 16})},
    ),
    **calls(
        "speculate",
        {
            "eagle": (MODEL, {**H100, "method": "eagle", "batches": (1, 32)}),
            "simulated": (MODEL, {**H100, "method": "ngram", "batches": (4,), "simulate": True}),
        },
    ),
    **calls(
        "kv",
        {
            "two": ((["llama-3.1-8b", "gemma-3-12b"],), {"gpus": ["h100", "l4"], "window_tokens": 1024}),
            "fp8": (
                (["deepseek-v3"],),
                {"gpus": ["b200"], "kv_cache_dtype": "fp8", "tensor_parallel_size": 8},
            ),
        },
    ),
    **calls(
        "cache_curve",
        {"mooncake": (("mooncake.jsonl",), {"replicas": 2, "capacities_tokens": (4096, 65536)})},
    ),
    **calls(
        "scale",
        {"tensor": (MODEL, {**H100, "tpot_s": 0.01}), "data": (("qwen3-30b-a3b",), {**H100, "axis": "data"})},
    ),
    **calls("attention_traffic", {"8b": (MODEL, {**H100, "contexts": (2048, 65536)})}),
    **calls(
        "compare_batching",
        {"plain": (MODEL, {**H100, **REQUESTS, "num_prompts": 40, "max_model_len": 4096, "max_batch": 8})},
    ),
    **calls("engine_table", {"h100": (("h100",), {}), "claims": (("l4",), {"claims": True})}),
    **calls("models", {"all": ((), {})}),
    **calls("gpus", {"all": ((), {})}),
}
