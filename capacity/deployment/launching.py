"""The commands that launch an engine, from a pool: those of clusters here, the others in `launching_local`.

Flags are those of vLLM 0.33, SGLang 0.5.23 and TensorRT-LLM 1.x (`trtllm-serve`), 2026-11. Only what the pool sets
is written; what an engine's command line cannot say is a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from capacity.base.errors import InvalidInput
from capacity.deployment.draft_checkpoints import find_draft_checkpoint
from capacity.deployment.drafts import TREE, has_way
from capacity.deployment.engines import find_engine
from capacity.deployment.launch import PORT, Launch, above, checkpoint_notes, flag_words
from capacity.deployment.launching_local import LOCAL_MAKERS
from capacity.deployment.pool import Pool
from capacity.model.quantization import vllm_checkpoint

WITHOUT_API = (
    "hf-transformers",
    "deepspeed-mii",
)  # no OpenAI API: nothing routes to them, nor benchmarks them
ENGINES = (
    "vllm",
    "sglang",
    "tensorrt-llm",
)  # of clusters: what one of them is told, the others can be told too
DRAFT = "DRAFT-CHECKPOINT"
VLLM_METHODS = {"eagle2": "eagle", "draft-model": "draft_model"}
WITH_CHECKPOINT = ("eagle", "eagle2", "eagle3", "medusa", "draft-model")
SGLANG_ALGORITHMS = {
    "eagle": "EAGLE",
    "eagle2": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "draft-model": "STANDALONE",
    "ngram": "NGRAM",
}
TENSORRT_LLM_DECODING = {
    "eagle3": "Eagle3",
    "mtp": "MTP",
    "ngram": "NGram",
    "medusa": "Medusa",
    "draft-model": "DraftTarget",
    "lookahead": "Lookahead",
}
TENSORRT_LLM_COUNTS = {"mtp": "num_nextn_predict_layers", "lookahead": "max_ngram_size"}
ONLINE_FORMATS = (
    "fp8",
    "bf16",
    "fp16",
    "bitsandbytes",
    "nf4",
)  # made from the 16-bit checkpoint while loading


def is_launched(engine: str) -> bool:
    """Whether anything launches it: a baseline is only simulated. Raises UnknownName."""
    return find_engine(engine).name in MAKERS


def launch_command(engine: str, model_id: str, pool: Pool) -> Launch:
    """The command of `engine` for one replica, in its role. Raises UnknownName, and InvalidInput for a baseline."""
    name = engine_name(engine)
    known = find_draft_checkpoint(model_id, _way(pool))
    if pool.draft is None and known is not None and known.checkpoint is not None:
        pool = pool.model_copy(update={"draft": known.checkpoint})
    launch = MAKERS[name](model_id, pool)
    notes = launch.notes
    if pool.kv_eviction is not None:
        notes += (
            f"no flag of {name} says --kv-eviction {pool.kv_eviction}: launched like this it keeps all KV",
        )
    if not has_way(name, _way(pool)):
        notes += (
            f"no flag of {name} says --speculator {pool.speculator}: launched like this it drafts nothing",
        )
    return launch if notes == launch.notes else replace(launch, notes=notes)


def engine_name(engine: str) -> str:
    """The engine without its version: one that can be launched. Raises UnknownName, and InvalidInput for a baseline."""
    if not is_launched(engine):
        raise InvalidInput(f"nothing launches {engine!r}, which is a baseline; take {', '.join(MAKERS)}")
    return find_engine(engine).name


def _vllm(model_id: str, pool: Pool) -> Launch:
    switches = [
        ("--enable-chunked-prefill", pool.enable_chunked_prefill),
        ("--enable-prefix-caching", pool.enable_prefix_caching),
        ("--async-scheduling", pool.async_scheduling),
    ]
    flags = [
        ("--tensor-parallel-size", above(pool.tensor_parallel_size, 1)),
        ("--pipeline-parallel-size", above(pool.pipeline_parallel_size, 1)),
        ("--data-parallel-size", above(pool.data_parallel_size, 1)),
        ("--decode-context-parallel-size", above(pool.decode_context_parallel_size, 1)),
        ("--enable-expert-parallel", pool.enable_expert_parallel),
        ("--quantization", _online(pool.quantization) or vllm_checkpoint(pool.quantization)),
        ("--dtype", None if pool.dtype == "auto" else pool.dtype),
        ("--kv-cache-dtype", None if pool.kv_cache_dtype == "auto" else pool.kv_cache_dtype),
        ("--moe-backend", None if pool.moe_backend == "auto" else pool.moe_backend),
        (
            "--attention-config.indexer_kv_dtype",
            None if pool.indexer_kv_dtype == "auto" else pool.indexer_kv_dtype,
        ),
        ("--max-model-len", pool.max_model_len),
        ("--gpu-memory-utilization", pool.gpu_memory_utilization),
        ("--kv-cache-memory-bytes", pool.kv_cache_memory_bytes),
        ("--max-num-seqs", pool.max_num_seqs),
        ("--max-num-batched-tokens", pool.max_num_batched_tokens),
        ("--max-num-scheduled-tokens", pool.max_num_scheduled_tokens),
        ("--block-size", pool.block_size),
        ("--cpu-offload-gb", pool.cpu_offload_gb or None),
        ("--enforce-eager", pool.enforce_eager),
        ("--language-model-only", pool.language_model_only),
        ("--max-cudagraph-capture-size", pool.max_cudagraph_capture_size),
        ("--long-prefill-token-threshold", pool.long_prefill_token_threshold or None),
        ("--scheduling-policy", None if pool.scheduling_policy == "fcfs" else pool.scheduling_policy),
        ("--num-gpu-blocks-override", pool.num_gpu_blocks_override),
        ("--enable-lora", pool.max_loras is not None),
        ("--max-loras", pool.max_loras),
        ("--max-lora-rank", None if pool.max_loras is None else pool.max_lora_rank),
        ("--max-cpu-loras", pool.max_cpu_loras),
        ("--speculative-config", _json(_vllm_drafts(pool))),
        ("--kv-transfer-config", _json(_vllm_transfer(pool))),
        ("--kv-offloading-size", pool.kv_offloading_size),
        ("--kv-offloading-backend", None if pool.kv_offloading_size is None else pool.kv_offloading_backend),
        ("--preemption-mode", None if pool.preemption_mode == "recompute" else pool.preemption_mode),
        ("--swap-space", None if pool.preemption_mode == "recompute" else pool.swap_space),
    ]
    named = [
        flag if value else flag.replace("--", "--no-", 1) for flag, value in switches if value is not None
    ]
    words = ["vllm", "serve", model_id, *flag_words(flags), *named, "--port", str(PORT)]
    return Launch(words=tuple(words), notes=(*checkpoint_notes(pool, ONLINE_FORMATS), *_draft_notes(pool)))


def _longest_request(pool: Pool) -> int | None:
    """Tokens of the longest request; None where the engine is to find them."""
    return None if pool.max_model_len == "auto" else pool.max_model_len


def _json(value: dict[str, object] | None) -> str | None:
    return None if value is None else json.dumps(value)


def _vllm_drafts(pool: Pool) -> dict[str, object] | None:
    """`--speculative-config`; a head or a draft model is a checkpoint of its own."""
    way = _way(pool)
    if not way or not has_way("vllm", way):
        return None
    drafts: dict[str, object] = {"method": VLLM_METHODS.get(way, way)}
    if way in WITH_CHECKPOINT:
        drafts["model"] = pool.draft or DRAFT
    if pool.draft_tensor_parallel_size is not None:
        drafts["draft_tensor_parallel_size"] = pool.draft_tensor_parallel_size
    if pool.num_speculative_tokens is not None:
        drafts["num_speculative_tokens"] = pool.num_speculative_tokens
    return drafts


def _vllm_transfer(pool: Pool) -> dict[str, object] | None:
    """`--kv-transfer-config` of a pool in a disaggregated deployment."""
    role = {"prefill": "kv_producer", "decode": "kv_consumer"}.get(pool.role)
    return None if role is None else {"kv_connector": "NixlConnector", "kv_role": role}


def _draft_notes(pool: Pool) -> tuple[str, ...]:
    way = _way(pool)
    notes: tuple[str, ...] = ()
    if way in WITH_CHECKPOINT and pool.draft is None:
        notes = (
            f"{DRAFT}: put the {way.partition('-')[0]} checkpoint that was trained for this model in its place",
        )
    return (
        notes
        if way == (pool.speculator or "")
        else (*notes, f"{pool.speculator} means a tree: this drafts a chain")
    )


def _way(pool: Pool) -> str:
    """How it drafts, a tree by the name of its method; empty: not at all."""
    return (pool.speculator or "").removesuffix(TREE)


def _sglang(model_id: str, pool: Pool) -> Launch:
    cache = {"fp8": "fp8_e4m3"}.get(pool.kv_cache_dtype, pool.kv_cache_dtype)
    attention_ranks = pool.enable_expert_parallel and pool.data_parallel_size > 1
    tensor = pool.tensor_parallel_size * (
        pool.data_parallel_size if attention_ranks else 1
    )  # as SGLang counts
    sharing = (
        pool.data_parallel_size if attention_ranks else 1
    )  # who divide the limits of a step between them
    tokens = pool.max_num_batched_tokens and pool.max_num_batched_tokens * sharing
    flags = [
        ("--model-path", model_id),
        ("--tp-size", above(tensor, 1)),
        ("--pp-size", above(pool.pipeline_parallel_size, 1)),
        ("--dp-size", above(pool.data_parallel_size, 1)),
        ("--dcp-size", above(pool.decode_context_parallel_size, 1)),
        ("--enable-dp-attention", attention_ranks),
        ("--ep-size", tensor if pool.enable_expert_parallel else None),
        ("--quantization", _online(pool.quantization)),
        ("--kv-cache-dtype", None if cache == "auto" else cache),
        ("--moe-runner-backend", None if pool.moe_backend == "auto" else pool.moe_backend),
        ("--dtype", None if pool.dtype == "auto" else pool.dtype),
        ("--context-length", _longest_request(pool)),
        ("--mem-fraction-static", pool.gpu_memory_utilization),
        ("--cpu-offload-gb", pool.cpu_offload_gb or None),
        ("--max-running-requests", pool.max_num_seqs and pool.max_num_seqs * sharing),
        ("--chunked-prefill-size", -1 if pool.enable_chunked_prefill is False else tokens),
        ("--disable-radix-cache", pool.enable_prefix_caching is False),
        ("--disable-cuda-graph", pool.enforce_eager),
        ("--cuda-graph-max-bs", pool.max_cudagraph_capture_size),
        ("--scheduler-recv-interval", above(pool.scheduler_recv_interval, 1)),
        *_sglang_drafts(pool),
        ("--disaggregation-mode", None if pool.role == "both" else pool.role),
        ("--disaggregation-transfer-backend", None if pool.role == "both" else "nixl"),
        ("--port", PORT),
    ]
    notes = (*checkpoint_notes(pool, ONLINE_FORMATS), *_draft_notes(pool))
    if pool.gpu_memory_utilization is not None:
        notes += ("--mem-fraction-static holds weights and KV only: not the same share as vLLM's",)
    return Launch(words=("python", "-m", "sglang.launch_server", *flag_words(flags)), notes=notes)


def _sglang_drafts(pool: Pool) -> list[tuple[str, object]]:
    """A chain has one candidate a place: top-k 1, and one more row than steps."""
    way, steps = _way(pool), pool.num_speculative_tokens
    if way not in SGLANG_ALGORITHMS:
        return []
    chain = steps is not None and way == pool.speculator
    return [
        ("--speculative-algorithm", SGLANG_ALGORITHMS[way]),
        ("--speculative-draft-model-path", (pool.draft or DRAFT) if way in WITH_CHECKPOINT else None),
        ("--speculative-num-steps", steps),
        ("--speculative-eagle-topk", 1 if chain else None),
        ("--speculative-num-draft-tokens", steps + 1 if chain and steps else None),
    ]


def _tensorrt_llm(model_id: str, pool: Pool) -> Launch:
    tensor = pool.tensor_parallel_size * pool.data_parallel_size  # attention DP divides these
    flags = [
        ("--tp_size", above(tensor, 1)),
        ("--pp_size", above(pool.pipeline_parallel_size, 1)),
        ("--ep_size", tensor if pool.enable_expert_parallel else None),
        ("--max_batch_size", pool.max_num_seqs),
        ("--max_num_tokens", pool.max_num_batched_tokens),
        ("--max_seq_len", _longest_request(pool)),
        ("--kv_cache_free_gpu_memory_fraction", pool.gpu_memory_utilization),
    ]
    options = _tensorrt_llm_options(pool)
    name = f"trtllm-{pool.role}.yaml" if pool.role != "both" else "trtllm.yaml"
    after: list[tuple[str, object]] = [
        ("--extra_llm_api_options", name if options else None),
        ("--port", PORT),
    ]
    notes = _draft_notes(pool)
    if pool.quantization:
        notes += (
            f"{pool.quantization} weights: name a checkpoint in that format; trtllm-serve does not quantize",
        )
    if pool.gpu_memory_utilization is not None:
        notes += (
            "--kv_cache_free_gpu_memory_fraction is of the memory left after loading: not the same share",
        )
    if pool.speculator is not None and _way(pool) not in TENSORRT_LLM_DECODING:
        notes += (f"drafts by {pool.speculator} are not among trtllm-serve's",)
    words = ("trtllm-serve", "serve", model_id, *flag_words(flags), *flag_words(after))
    return Launch(words=words, notes=notes, files=((name, "\n".join(options) + "\n"),) if options else ())


def _tensorrt_llm_options(pool: Pool) -> list[str]:
    """What trtllm-serve reads from a file only (YAML)."""
    cache = [
        *([] if pool.kv_cache_dtype == "auto" else [f"  dtype: {pool.kv_cache_dtype}"]),
        *(["  enable_block_reuse: false"] if pool.enable_prefix_caching is False else []),
    ]
    lines = ["kv_cache_config:", *cache] if cache else []
    if pool.enable_chunked_prefill is not None:
        lines += [f"enable_chunked_prefill: {str(pool.enable_chunked_prefill).lower()}"]
    if pool.data_parallel_size > 1:
        lines += ["enable_attention_dp: true"]
    way = _way(pool)
    if way in TENSORRT_LLM_DECODING:
        lines += ["speculative_config:", f"  decoding_type: {TENSORRT_LLM_DECODING[way]}"]
        if pool.num_speculative_tokens is not None:
            count, drafts = TENSORRT_LLM_COUNTS.get(way, "max_draft_len"), pool.num_speculative_tokens
            lines += [f"  {count}: {drafts + 1 if way == 'lookahead' else drafts}"]
        if way in WITH_CHECKPOINT:
            lines += [f"  speculative_model_dir: {pool.draft or DRAFT}"]
    if pool.role != "both":
        lines += ["cache_transceiver_config:", "  backend: DEFAULT"]
    if pool.role == "prefill":
        lines += ["disable_overlap_scheduler: true"]
    return lines


def _online(quantization: str | None) -> str | None:
    """What the engine makes of the 16-bit checkpoint while loading; other formats are the checkpoint's own."""
    return quantization if quantization in ONLINE_FORMATS else None


MAKERS: dict[str, Callable[[str, Pool], Launch]] = {
    "vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm, **LOCAL_MAKERS,
}  # fmt: skip
