"""The launch lines of TGI, llama.cpp and Ollama as models and pools: what `launching_local` writes, read."""

from __future__ import annotations

import re
from pathlib import Path

from capacity.base.errors import InvalidInput
from capacity.deployment.launched import OPTION, Fields, Line, Reader, backwards, first_word
from capacity.deployment.launching_local import (
    GGML_ALL_LAYERS,
    GGML_CACHES,
    TGI_CHECKPOINTS,
    TGI_FORMATS,
    format_of_gguf,
)

# TGI


def _tgi(line: Line) -> tuple[str | None, Fields]:
    f, environment = line.flags, line.environment
    f.take("max_input_tokens", "max_input_length")  # below the longest request in any case
    quantize, cache, dtype = f.take("quantize"), f.take("kv_cache_dtype"), f.take("dtype")
    drafts = f.count("speculate")
    fields: Fields = {
        "tensor_parallel_size": f.count("num_shard") or _whole(environment.get("NUM_SHARD")),
        "quantization": backwards(TGI_FORMATS | TGI_CHECKPOINTS, quantize),
        "dtype": dtype,
        "kv_cache_dtype": {"fp8_e4m3fn": "fp8"}.get(cache or "", cache),
        "max_model_len": f.count("max_total_tokens"),
        "max_num_batched_tokens": f.count("max_batch_prefill_tokens"),
        "max_num_seqs": f.count("max_batch_size"),
        "gpu_memory_utilization": f.take("cuda_memory_fraction"),
        "enforce_eager": f.take("cuda_graphs") == "0" or None,
        "speculator": None if not drafts else "medusa" if "medusa" in str(f.words) else "ngram",
        "num_speculative_tokens": drafts or None,
        "enable_prefix_caching": _switch(
            environment.get("USE_PREFIX_CACHING", environment.get("PREFIX_CACHING"))
        ),
        "enable_chunked_prefill": _switch(environment.get("PREFILL_CHUNKING")),
    }
    return f.take("model_id") or environment.get("MODEL_ID"), fields


def _switch(text: str | None) -> bool | None:
    return None if text is None else text.lower() not in ("0", "false", "")


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


TGI = Reader(
    engine="tgi",
    fields=_tgi,
    switches=frozenset(
        {"trust_remote_code", "json_output", "disable_custom_kernels", "disable_grammar_support"}
    ),
    harmless=frozenset(
        [
            "port",
            "hostname",
            "host",
            "json_output",
            "trust_remote_code",
            "revision",
            "max_concurrent_requests",
            "master_port",
            "shard_uds_path",
            "huggingface_hub_cache",
            "weights_cache_override",
            "otlp_endpoint",
            "cors_allow_origin",
            "tokenizer_config_path",
            "usage_stats",
            "max_client_batch_size",
            "validation_workers",
            "max_top_n_tokens",
            "payload_limit",
            "disable_grammar_support",
            "max_best_of",
            "max_stop_sequences",
            "prometheus_port",
            "api_key",
        ]
    ),
    not_modelled={
        "max_batch_total_tokens": "the KV cache is computed",
        "waiting_served_ratio": "0.3 is taken",
        "max_waiting_tokens": "20 steps are taken",
        "sharded": "say how many GPUs by --num-shard",
        "rope_scaling": "the checkpoint's positions are taken",
        "rope_factor": "the checkpoint's positions are taken",
        "disable_custom_kernels": "the engine's kernels are taken",
        "lora_adapters": "say how many adapters requests are for by --num-adapters",
        "enable_prefill_logprobs": "prompts have no log-probabilities",
    },
)


# llama.cpp


def _llama_cpp(line: Line) -> tuple[str | None, Fields]:
    f = line.flags
    slots, context = f.count("parallel", "np"), f.count("ctx_size", "c")
    split, parts = f.take("split_mode", "sm"), f.take("tensor_split", "ts")
    gpus = 1 if parts is None or split == "none" else len([part for part in re.split("[,/]", parts) if part])
    repository, _, quant = (f.take("hf_repo", "hf", "hfr") or "").partition(":")
    file = f.take("model", "m", "hf_file", "hff")
    caches = {f.take("cache_type_k", "ctk"), f.take("cache_type_v", "ctv")} - {None}
    if len(caches) > 1:
        raise InvalidInput(
            f"keys and values are stored alike here, not in {' and '.join(sorted(map(str, caches)))}"
        )
    cache = next(iter(caches), None)
    caching = False if f.on("no_cache_prompt") else None
    on_gpu = f.take("n_gpu_layers", "ngl", "gpu_layers") or ""  # all, auto and -1 are as many as there are
    layers = int(on_gpu) if on_gpu.isdecimal() and int(on_gpu) < GGML_ALL_LAYERS else None
    fields: Fields = {
        "n_gpu_layers": layers,
        "tensor_parallel_size": gpus if split == "row" else None,
        "pipeline_parallel_size": gpus if split != "row" and gpus > 1 else None,
        "quantization": format_of_gguf(quant)
        or format_of_gguf(file or "")
        or (None if file else "gguf-q4_k_m"),
        "kv_cache_dtype": None if cache in (None, "f16") else backwards(GGML_CACHES, cache),
        "max_num_seqs": slots,
        "max_model_len": None if not context else context // (slots or 1),
        "max_num_batched_tokens": f.count("batch_size", "b"),
        "enable_prefix_caching": caching,
    }
    named = f.take("alias", "a") or repository.removesuffix("-GGUF")
    if not named and file:
        named = Path(file).stem
        named = re.sub(r"[-.](?:i?q\d|f16|bf16|f32|mxfp4).*$", "", named, flags=re.IGNORECASE)
    return named, fields


LLAMA_CPP = Reader(
    engine="llama.cpp",
    fields=_llama_cpp,
    switches=frozenset(
        [
            "no_cache_prompt",
            "cont_batching",
            "cb",
            "mlock",
            "no_mmap",
            "jinja",
            "metrics",
            "verbose",
            "no_webui",
            "no_warmup",
            "embedding",
            "no_kv_offload",
            "nkvo",
            "slots",
            "log_disable",
        ]
    ),
    harmless=frozenset(
        [
            "host",
            "port",
            "api_key",
            "threads",
            "t",
            "threads_batch",
            "tb",
            "cont_batching",
            "cb",
            "mlock",
            "no_mmap",
            "jinja",
            "metrics",
            "verbose",
            "no_webui",
            "chat_template",
            "no_warmup",
            "log_disable",
            "slots",
            "seed",
            "s",
            "temp",
            "top_k",
            "top_p",
            "min_p",
            "timeout",
            "to",
            "threads_http",
            "flash_attn",
            "fa",
            "n_predict",
            "n",
            "numa",
            "prio",
            "main_gpu",
            "mg",
            "reasoning_format",
            "alias",
        ]
    ),
    not_modelled={
        "ubatch_size": "512 tokens are taken",
        "ub": "512 tokens are taken",
        "no_kv_offload": "the KV cache is taken to be on the GPU",
        "nkvo": "the KV cache is taken to be on the GPU",
        "override_tensor": "all tensors are taken to be on the GPU",
        "ot": "all tensors are taken to be on the GPU",
        "n_cpu_moe": "all experts are taken to be on the GPU",
        "ncmoe": "all experts are taken to be on the GPU",
        "model_draft": "a file names no model that is known here: give --draft MODEL (--num-speculative-tokens)",
        "md": "a file names no model that is known here: give --draft MODEL (--num-speculative-tokens)",
        "draft_max": "a file names no model that is known here: give --draft MODEL (--num-speculative-tokens)",
        "rope_scaling": "the checkpoint's positions are taken",
        "rope_scale": "the checkpoint's positions are taken",
        "lora": "adapters are not simulated under llama.cpp",
    },
)


# Ollama

# What Ollama's library calls otherwise than its makers, and what a name without a tag stands for: ollama.com/library,
# 2026-11, quoted from memory (assumed)
_LATEST = {
    "llama3": "8b",
    "llama3.1": "8b",
    "llama3.2": "3b",
    "llama3.3": "70b",
    "gemma2": "9b",
    "gemma3": "4b",
    "qwen2.5": "7b",
    "qwen3": "8b",
    "qwen3-coder": "30b",
    "qwq": "32b",
    "mistral": "7b",
    "mistral-small": "24b",
    "mixtral": "8x7b",
    "gpt-oss": "20b",
    "phi4": "14b",
    "deepseek-r1": "8b",
}
_CALLED = {
    "phi4-14b": "phi-4",
    "deepseek-r1-1.5b": "deepseek-r1-distill-qwen-1.5b",
    "deepseek-r1-7b": "deepseek-r1-distill-qwen-7b",
    "deepseek-r1-14b": "deepseek-r1-distill-qwen-14b",
    "deepseek-r1-32b": "deepseek-r1-distill-qwen-32b",
    "deepseek-r1-70b": "deepseek-r1-distill-llama-70b",
    "deepseek-r1-671b": "deepseek-r1",
}
CONTEXT_TOKENS = (
    4096  # docs/faq.mdx at v0.12.0: "By default, Ollama uses a context window size of 4096 tokens"
)
_TAG = re.compile(r"(?P<name>[\w.\-/]+)(?::(?P<tag>[\w.\-]+))?")


def _ollama(line: Line) -> tuple[str | None, Fields]:
    f, environment = line.flags, line.environment
    while f.words and f.words[0] in ("serve", "run", "pull", "create"):
        f.words.pop(0)
    name = first_word(f)
    f.words.clear()  # a prompt
    file = f.take("f", "file")
    modelfile = _modelfile(file, line.folder) if file else {}
    cache, devices = environment.get("OLLAMA_KV_CACHE_TYPE"), environment.get("CUDA_VISIBLE_DEVICES", "")
    length = modelfile.get("num_ctx") or environment.get("OLLAMA_CONTEXT_LENGTH")
    found = _TAG.fullmatch(name or "")
    size, quant = (found["tag"] or "", format_of_gguf(found["tag"] or "")) if found else ("", None)
    size = size.partition("-")[0] if size != "latest" else ""
    library = found["name"] if found else ""
    size = size or _LATEST.get(library, "")
    called = f"{library}-{size}" if size else name
    model = modelfile.get("model") or _CALLED.get(called or "", called)
    fields: Fields = {
        "max_num_seqs": _whole(environment.get("OLLAMA_NUM_PARALLEL")),
        "max_model_len": _whole(length) or (CONTEXT_TOKENS if not modelfile else None),
        "max_num_batched_tokens": _whole(modelfile.get("num_batch")),
        "kv_cache_dtype": None if cache in (None, "f16") else backwards(GGML_CACHES, cache),
        "quantization": modelfile.get("quantization") or quant or ("gguf-q4_k_m" if not modelfile else None),
        "pipeline_parallel_size": len([d for d in devices.split(",") if d]) or None,
    }
    return model, fields


def _modelfile(name: str, folder: Path | None) -> dict[str, str]:
    """FROM and PARAMETER of a Modelfile; nothing where it is not there."""
    path = (folder or Path()) / Path(name.replace("$(dirname $0)/", "")).name
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(
            f"{name} is not there: give the path of the script that launches Ollama to {OPTION}, beside which it lies"
        ) from None
    found: dict[str, str] = {}
    for line in lines:
        kind, *values = line.split() or [""]
        if kind.upper() == "FROM" and values:
            if quantization := format_of_gguf(values[0]):
                found["quantization"] = quantization
        elif kind.upper() == "PARAMETER" and len(values) > 1:
            found[values[0]] = values[1]
        elif kind == "#" and values[:1] == ["model"]:
            found["model"] = values[-1]
    return found


OLLAMA = Reader(
    engine="ollama",
    fields=_ollama,
    switches=frozenset({"verbose"}),
    harmless=frozenset({"verbose", "keepalive"}),
)
