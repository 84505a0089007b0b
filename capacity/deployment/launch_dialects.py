"""Conversions that flag tables cannot express, because an engine and a `Pool` define a value differently.

A dialect is a pair of inverse functions. `terms` computes, from a pool, the values of a launch command that are not
fields of the pool. `fields` computes `Pool` fields from the values that were read in a launch command.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capacity.base.errors import InvalidInput
from capacity.deployment.command_words import Fields, Line, read_named_file, read_options_file
from capacity.deployment.drafts import TREE, supports_drafting
from capacity.deployment.engines import find_engine
from capacity.deployment.flag_table import GGML_CACHES, flag_table
from capacity.deployment.pool import Pool
from capacity.deployment.vllm_config import NOT_MODELLED, ROLES, split_config

DRAFT = "DRAFT-CHECKPOINT"
METHODS_WITH_CHECKPOINT = ("eagle", "eagle2", "eagle3", "medusa", "draft-model")
VLLM_METHODS = {"eagle2": "eagle", "draft-model": "draft_model"}
TENSORRT_LLM_COUNTS = {"mtp": "num_nextn_predict_layers", "lookahead": "max_ngram_size"}
# docs/faq.mdx at v0.12.0: "By default, Ollama uses a context window size of 4096 tokens"
CONTEXT_TOKENS = 4096
LORA_FIELDS = ("max_cpu_loras", "max_lora_rank", "max_loras")
LORA_SLOTS = 8  # SGLang's --max-loras-per-batch by default
_GGUF_KIND = re.compile(r"(?:^|[-._/])(i?q\d_\w+?|mxfp4)(?=$|[-.])", re.IGNORECASE)
_GGUF_ENDING = re.compile(r"[-.](?:i?q\d|f16|bf16|f32|mxfp4).*$", re.IGNORECASE)
_TAG = re.compile(r"(?P<name>[\w.\-/]+)(?::(?P<tag>[\w.\-]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Conversion between an engine's values and a pool's fields, in both directions.

    `fields` may also remove flags, words and the model from the command; `options` reads the command's options file.
    """

    terms: Callable[[Pool], Fields]
    fields: Callable[[Fields, Line], Fields]
    options: Callable[[Line], dict[str, str]] = lambda _: {}


def drafting_method(pool: Pool) -> str:
    """Return the pool's drafting method without the suffix `-tree`; empty: no drafting."""
    return (pool.speculator or "").removesuffix(TREE)


def engine_method_names(engine: str) -> dict[str, str]:
    """Return the drafting methods that the engine supports, each mapped to the engine's name for the method."""
    return next(row.words for row in flag_table(engine).flags if row.field == "speculator")


def _draft_terms(pool: Pool, engine: str) -> Fields:
    """Return the drafting method and its checkpoint; both are None if the engine does not support the method."""
    way = drafting_method(pool)
    known = way in engine_method_names(engine)
    draft = (pool.draft or DRAFT) if known and way in METHODS_WITH_CHECKPOINT else None
    return {"speculator": way if known else None, "draft": draft}


def _vllm_terms(pool: Pool) -> Fields:
    role = next((word for word, role in ROLES.items() if role == pool.role and role != "both"), None)
    transfer = {"kv_connector": "NixlConnector", "kv_role": role}
    return {
        "speculative_config": _vllm_drafts(pool),
        "kv_transfer_config": None if role is None else json.dumps(transfer),
        "on_amd": pool.on_amd or None,
    }


def _vllm_drafts(pool: Pool) -> str | None:
    """Return the JSON of `--speculative-config`, with a checkpoint for heads and draft models; None: no drafting."""
    way = drafting_method(pool)
    if not way or not supports_drafting("vllm", way):
        return None
    drafts: Fields = {"method": VLLM_METHODS.get(way, way)}
    if way in METHODS_WITH_CHECKPOINT:
        drafts["model"] = pool.draft or DRAFT
    counts = ("draft_tensor_parallel_size", "num_speculative_tokens")
    return json.dumps(
        drafts | {name: getattr(pool, name) for name in counts if getattr(pool, name) is not None}
    )


def _vllm_fields(values: Fields, line: Line) -> Fields:
    fields = dict(values)
    for name in NOT_MODELLED:
        text = fields.pop(name, None) if name in fields else line.flags.take(name)
        if text is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        try:
            options, others = split_config(name, str(text))
        except ValueError as error:
            raise InvalidInput(f"{flag} {text}: {error}") from None
        line.notes.extend(f"{flag} {key} ({reason})" for key, reason in others.items())
        fields |= (
            {name: json.dumps(options)}
            if name in Pool.model_fields
            else {key: str(value) for key, value in options.items()}
        )
    if not fields.get("enable_lora"):  # the other LoRA flags have no effect without it
        for name in LORA_FIELDS:
            if name in fields:
                line.notes.append(f"--{name.replace('_', '-')} {fields.pop(name)} (--enable-lora is not set)")
    return fields


# SGLang: attention ranks divide the GPUs of --tp-size and the limits of a step (server_args.py)


def _sglang_terms(pool: Pool) -> Fields:
    ranks = pool.data_parallel_size if pool.enable_expert_parallel else 1
    tensor, budget = pool.tensor_parallel_size * ranks, pool.max_num_batched_tokens
    steps = pool.num_speculative_tokens
    drafts = _draft_terms(pool, "sglang")
    chain = bool(drafts["speculator"] and steps) and drafting_method(pool) == pool.speculator
    return {
        "tensor_parallel_size": tensor,
        "attention_ranks": ranks > 1 or None,
        "expert_ranks": tensor if pool.enable_expert_parallel else None,
        "max_num_seqs": pool.max_num_seqs and pool.max_num_seqs * ranks,
        "chunk": -1 if pool.enable_chunked_prefill is False else budget and budget * ranks,
        **drafts,
        "num_speculative_tokens": steps if drafts["speculator"] else None,
        # a chain has one candidate per position, and one more row than steps
        "draft_branches": 1 if chain else None,
        "verified_tokens": steps + 1 if chain and steps else None,
    }


def _sglang_fields(values: Fields, _: Line) -> Fields:
    def count(name: str) -> int | None:
        found = values.get(name)
        return found if isinstance(found, int) else None

    tensor, ranks = count("tensor_parallel_size") or 1, count("data_parallel_size") or 1
    sharing = ranks if values.get("attention_ranks") else 1
    if tensor % sharing:
        raise InvalidInput(f"--dp-size {ranks} does not divide --tp-size {tensor}")
    chunk, requests = count("chunk"), count("max_num_seqs")
    way, steps, branches = values.get("speculator"), count("num_speculative_tokens"), count("draft_branches")
    if way == "ngram" and steps is None:
        steps = count("verified_tokens")
    fields = values | {
        "tensor_parallel_size": tensor // sharing,
        "data_parallel_size": ranks,
        "enable_expert_parallel": (count("expert_ranks") or 1) > 1
        or values.get("enable_expert_parallel")
        or None,
        "max_num_seqs": requests and max(requests // sharing, 1),
        "max_num_batched_tokens": None if chunk is None or chunk < 0 else max(chunk // sharing, 1),
        "enable_chunked_prefill": False if chunk is not None and chunk < 0 else None,
        "enable_lora": None,
        "max_loras": (count("max_loras") or LORA_SLOTS) if values.get("enable_lora") else None,
        "speculator": f"{way}{TREE}" if way and branches is not None and branches > 1 else way,
        "draft": values.get("draft") if way == "draft-model" else None,
        "num_speculative_tokens": steps if way else None,
    }
    return {name: value for name, value in fields.items() if value != "null"}


# TensorRT-LLM: --tp_size counts the GPUs of all attention ranks; a file has settings without a flag


def _tensorrt_llm_terms(pool: Pool) -> Fields:
    tensor = pool.tensor_parallel_size * pool.data_parallel_size
    drafts, count = _draft_terms(pool, "tensorrt-llm"), pool.num_speculative_tokens
    if drafts["speculator"] and count is not None:
        way = drafting_method(pool)
        drafts[TENSORRT_LLM_COUNTS.get(way, "max_draft_len")] = count + 1 if way == "lookahead" else count
    return {
        "tensor_parallel_size": tensor,
        "expert_ranks": tensor if pool.enable_expert_parallel else None,
        "attention_ranks": pool.data_parallel_size > 1 or None,
        "transceiver": None if pool.role == "both" else "DEFAULT",
        "no_overlap": pool.role == "prefill" or None,
        **drafts,
    }


def _tensorrt_llm_options(line: Line) -> dict[str, str]:
    if line.flags.words[:1] == ["serve"]:
        line.flags.words.pop(0)
    file = line.flags.take("extra_llm_api_options")
    return read_options_file(file, line.folder, "--extra_llm_api_options of trtllm-serve")


def _tensorrt_llm_fields(values: Fields, line: Line) -> Fields:
    tensor, experts = values.get("tensor_parallel_size", 1), values.get("expert_ranks", 1)
    tokens, longest = values.get("max_num_batched_tokens"), values.get("max_model_len")
    assert isinstance(tensor, int)
    assert isinstance(experts, int)
    ranks = tensor if values.get("attention_ranks") else 1
    fields = values | {
        "tensor_parallel_size": tensor // ranks,
        "data_parallel_size": ranks,
        "enable_expert_parallel": experts > 1 or None,
        "draft": values.get("draft") if values.get("speculator") == "draft-model" else None,
    }
    counts = [values[name] for name in ("max_draft_len", "num_nextn_predict_layers") if name in values]
    if isinstance(ngram := values.get("max_ngram_size"), int) and values.get("speculator") == "lookahead":
        counts = [ngram - 1]
    if values.get("speculator") and counts:
        fields["num_speculative_tokens"] = counts[0]
    if "transceiver" in values:
        fields["role"] = "prefill" if values.get("no_overlap") else "decode"
    fits = isinstance(longest, int) and isinstance(tokens, int) and longest <= tokens
    if "enable_chunked_prefill" not in values and tokens is not None and not fits:
        # trtllm-serve then rejects prompts longer than a step; shorter ones are not affected
        line.notes.append(
            f"--max_num_tokens {tokens} rejects longer prompts (here they are simulated in chunks)"
        )
        fields["enable_chunked_prefill"] = True
    return fields


def _tgi_terms(pool: Pool) -> Fields:
    length = pool.max_model_len
    return {
        "longest_prompt": length - 1 if isinstance(length, int) else None,
        "drafted_tokens": pool.num_speculative_tokens if pool.speculator in ("ngram", "medusa") else None,
    }


def _tgi_fields(values: Fields, line: Line) -> Fields:
    if not (drafts := values.get("drafted_tokens")):
        return values
    way = "medusa" if "medusa" in str(line.flags.words) else "ngram"
    return values | {"speculator": way, "num_speculative_tokens": drafts}


# llama.cpp and Ollama: GGUF files, with the format in their names


def gguf_file(pool: Pool) -> str:
    """Return the usual name of a GGUF file in the pool's weight format, such as MODEL-Q4_K_M.gguf."""
    kind = "F16" if pool.quantization is None else pool.quantization.removeprefix("gguf-").upper()
    return f"MODEL-{kind}.gguf"


def gguf_weight_format(name: str) -> str | None:
    """Return the weight format in the name of a GGUF file or Ollama tag; None: 16 bit or not given."""
    found = _GGUF_KIND.search(name)
    kind = None if found is None else found[1].lower()
    return kind if kind in (None, "mxfp4") else f"gguf-{kind}"


def _ggml_terms(pool: Pool) -> Fields:
    limits = find_engine(pool.engine).limits[0]  # limits for the smallest GPUs
    return {
        "max_num_seqs": pool.max_num_seqs or limits.max_num_seqs,
        "max_num_batched_tokens": pool.max_num_batched_tokens or limits.max_num_batched_tokens,
        "packed_cache": pool.kv_cache_dtype in GGML_CACHES or None,
    }


def _llama_cpp_terms(pool: Pool) -> Fields:
    terms, length = _ggml_terms(pool), pool.max_model_len
    split = "row" if pool.tensor_parallel_size > 1 else "layer" if pool.pipeline_parallel_size > 1 else "none"
    slots = terms["max_num_seqs"]
    return terms | {
        "file": gguf_file(pool),
        "split": split,
        "parts": None if split == "none" else ",".join("1" * pool.num_gpus),
        "context": length * slots if isinstance(length, int) and isinstance(slots, int) else None,
        "values_dtype": pool.kv_cache_dtype,
    }


def _llama_cpp_fields(values: Fields, _: Line) -> Fields:
    slots, context, split = values.get("max_num_seqs"), values.get("context"), values.get("split")
    parts = [part for part in re.split("[,/]", str(values.get("parts", "1"))) if part]
    gpus = 1 if split == "none" else len(parts)
    repository, quant = str(values.get("repository", "")).partition(":")[::2]
    file = str(values.get("file") or "")
    caches = {str(values[name]) for name in ("kv_cache_dtype", "values_dtype") if name in values}
    if len(caches) > 1:
        said = sorted(GGML_CACHES.get(cache, cache) for cache in caches)
        raise InvalidInput(f"keys and values must have the same KV cache format, not {' and '.join(said)}")
    return values | {
        "tensor_parallel_size": gpus if split == "row" else None,
        "pipeline_parallel_size": gpus if split != "row" and gpus > 1 else None,
        "quantization": gguf_weight_format(quant)
        or gguf_weight_format(file)
        or (None if file else "gguf-q4_k_m"),
        "kv_cache_dtype": next(iter(caches), None),
        "max_model_len": context // (slots if isinstance(slots, int) and slots else 1)
        if isinstance(context, int) and context
        else None,
        "model": values.get("model")
        or repository.removesuffix("-GGUF")
        or _GGUF_ENDING.sub("", Path(file).stem if file else ""),
    }


def _ollama_terms(pool: Pool) -> Fields:
    devices = ",".join(map(str, range(pool.num_gpus))) if pool.num_gpus > 1 else None
    return _ggml_terms(pool) | {"devices": devices}


def _ollama_fields(values: Fields, line: Line) -> Fields:
    table, words, modelfile = flag_table("ollama"), line.flags.words, line.options
    while words and words[0] in ("serve", "run", "pull", "create"):
        words.pop(0)
    name = words[0] if words else None
    words.clear()  # the words are a prompt
    found = _TAG.fullmatch(name or "")
    library, tag = (found["name"], found["tag"] or "") if found else ("", "")
    size = tag.partition("-")[0] if tag.partition("-")[0] != "latest" else ""
    size = size or table.newest_tags.get(library, "")
    called = f"{library}-{size}" if size else name
    length = values.get("max_model_len") or (None if modelfile else CONTEXT_TOKENS)
    quantization = modelfile.get("quantization") or gguf_weight_format(tag)
    return values | {
        "max_model_len": length,
        "quantization": quantization or (None if modelfile else "gguf-q4_k_m"),
        "pipeline_parallel_size": len([d for d in str(values.get("devices", "")).split(",") if d]) or None,
        "model": modelfile.get("model") or table.model_names.get(called or "", called),
    }


def _modelfile(line: Line) -> dict[str, str]:
    """Return the model, the weight format and the parameters in the Modelfile that the command names."""
    if not (name := line.flags.take("file")):
        return {}
    file = name.replace("$(dirname $0)/", "")
    found: dict[str, str] = {}
    has_base = False
    for text in read_named_file(file, line.folder, "-f of ollama create").splitlines():
        kind, *values = text.split() or [""]
        if kind.upper() == "FROM" and values:
            has_base = True
            if quantization := gguf_weight_format(values[0]):
                found["quantization"] = quantization
        elif kind.upper() == "PARAMETER" and len(values) > 1:
            found[values[0]] = values[1]
        elif kind == "#" and values[:1] == ["model"]:
            found["model"] = values[-1]
    if not has_base:
        raise InvalidInput(f"{name} has no line FROM, so it is not a Modelfile: name another file")
    return found


DIALECTS = {
    "vllm": Dialect(terms=_vllm_terms, fields=_vllm_fields),
    "sglang": Dialect(terms=_sglang_terms, fields=_sglang_fields),
    "tensorrt-llm": Dialect(
        terms=_tensorrt_llm_terms, fields=_tensorrt_llm_fields, options=_tensorrt_llm_options
    ),
    "tgi": Dialect(terms=_tgi_terms, fields=_tgi_fields),
    "llama.cpp": Dialect(terms=_llama_cpp_terms, fields=_llama_cpp_fields),
    "ollama": Dialect(terms=_ollama_terms, fields=_ollama_fields, options=_modelfile),
}


def launch_values(engine: str, model_id: str, pool: Pool) -> Fields:
    """Return the values of all rows of an engine's flag table: `Pool` fields, and values computed by its dialect."""
    own = {"model": model_id, "enable_lora": pool.max_loras is not None}
    return {**dict(pool), **own, **DIALECTS[engine].terms(pool)}
