"""The launch lines of SGLang and TensorRT-LLM as models and pools: what `launching` writes, read.

Each reader takes out the flags that it knows, in a pool's words; the tables say which of the others change no answer,
and what is taken instead of those that would. Flags are those of the releases that `launching` writes for, and older
spellings.
"""

from __future__ import annotations

from typing import get_args

from capacity.base.errors import InvalidInput
from capacity.deployment.launched import Fields, Flags, Line, Reader, backwards, first_word, options_beside
from capacity.deployment.launching import SGLANG_ALGORITHMS, TENSORRT_LLM_DECODING
from capacity.deployment.pool import MoeBackend

# SGLang


def _sglang(line: Line) -> tuple[str | None, Fields]:
    f = line.flags
    tensor = f.count("tp_size", "tensor_parallel_size", "tp") or 1
    ranks = f.count("dp_size", "data_parallel_size", "dp") or 1
    experts = f.count("ep_size", "expert_parallel_size", "ep") or 1
    attention_ranks = f.on("enable_dp_attention")
    if attention_ranks and tensor % ranks:
        raise InvalidInput(f"--dp-size {ranks} does not divide --tp-size {tensor}")
    chunk, requests = f.count("chunked_prefill_size"), f.count("max_running_requests")
    sharing = ranks if attention_ranks else 1  # server_args.py: attention ranks divide both between them
    cache = f.take("kv_cache_dtype")
    algorithm = f.take("speculative_algorithm", "speculative_algo")
    slots = f.count("max_loras_per_batch")
    fields: Fields = {
        "tensor_parallel_size": tensor // ranks if attention_ranks else tensor,
        "pipeline_parallel_size": f.count("pp_size", "pipeline_parallel_size", "pp"),
        "data_parallel_size": ranks,
        "decode_context_parallel_size": f.count("dcp_size", "decode_context_parallel_size"),
        "enable_expert_parallel": experts > 1 or f.on("enable_ep_moe") or None,
        "quantization": f.take("quantization"),
        "kv_cache_dtype": {"fp8_e4m3": "fp8"}.get(cache or "", cache),
        "moe_backend": f.take_known("moe_runner_backend", get_args(MoeBackend)),
        "dtype": f.take("dtype"),
        "max_model_len": f.count("context_length"),
        "gpu_memory_utilization": f.take("mem_fraction_static"),
        "max_num_seqs": requests and max(requests // sharing, 1),
        "max_num_batched_tokens": None if chunk is None or chunk < 0 else max(chunk // sharing, 1),
        "enable_chunked_prefill": False if chunk is not None and chunk < 0 else None,
        "enable_prefix_caching": False if f.on("disable_radix_cache") else None,
        "enforce_eager": f.on("disable_cuda_graph") or None,
        "max_cudagraph_capture_size": f.count("cuda_graph_max_bs", "cuda_graph_max_bs_decode"),
        "block_size": f.count("page_size"),
        "scheduler_recv_interval": f.count("scheduler_recv_interval"),
        "api_server_count": f.count("tokenizer_worker_num"),
        "max_loras": (slots or 8) if f.on("enable_lora") else None,
        "max_lora_rank": f.count("max_lora_rank"),
        "role": f.take("disaggregation_mode"),
        **_sglang_drafts(f, algorithm),
    }
    return f.take("model_path", "model") or first_word(f), {k: v for k, v in fields.items() if v != "null"}


def _sglang_drafts(f: Flags, algorithm: str | None) -> Fields:
    steps, topk = f.count("speculative_num_steps"), f.count("speculative_eagle_topk")
    drafted = f.count("speculative_num_draft_tokens")
    draft = f.take("speculative_draft_model_path", "speculative_draft_model", "speculative_draft")
    if algorithm is None:
        return {}
    way = backwards(SGLANG_ALGORITHMS, algorithm.upper())
    if way == algorithm.upper():
        raise InvalidInput(
            f"--speculative-algorithm {algorithm}: known are {', '.join(SGLANG_ALGORITHMS.values())}"
        )
    if way == "ngram" and steps is None:
        steps = drafted
    tree = topk is not None and topk > 1
    return {
        "speculator": f"{way}-tree" if tree else way,
        "draft": draft if way == "draft-model" else None,
        "num_speculative_tokens": steps,
    }


SGLANG = Reader(
    engine="sglang",
    fields=_sglang,
    switches=frozenset(
        [
            "enable_dp_attention",
            "disable_radix_cache",
            "disable_cuda_graph",
            "enable_ep_moe",
            "enable_lora",
            "trust_remote_code",
            "enable_metrics",
            "log_requests",
            "skip_server_warmup",
            "enable_mixed_chunk",
            "disable_overlap_schedule",
            "enable_torch_compile",
            "enable_cache_report",
            "disable_custom_all_reduce",
            "enable_nccl_nvls",
            "skip_tokenizer_init",
            "enable_p2p_check",
            "enable_hierarchical_cache",
            "enable_multimodal",
            "enable_dp_lm_head",
            "enable_two_batch_overlap",
            "disable_shared_experts_fusion",
            "enable_eplb",
            "enable_flashinfer_allreduce_fusion",
            "disable_chunked_prefix_cache",
        ]
    ),
    harmless=frozenset(
        [
            "host",
            "port",
            "api_key",
            "served_model_name",
            "trust_remote_code",
            "tokenizer_path",
            "tokenizer_mode",
            "log_level",
            "log_level_http",
            "log_requests",
            "enable_metrics",
            "chat_template",
            "tool_call_parser",
            "reasoning_parser",
            "random_seed",
            "skip_server_warmup",
            "download_dir",
            "load_format",
            "revision",
            "watchdog_timeout",
            "dist_timeout",
            "dist_init_addr",
            "nnodes",
            "node_rank",
            "base_gpu_id",
            "stream_output",
            "grammar_backend",
            "enable_cache_report",
            "device",
            "skip_tokenizer_init",
            "disaggregation_transfer_backend",
            "disaggregation_ib_device",
            "disaggregation_bootstrap_port",
            "warmups",
        ]
    ),
    not_modelled={
        "attention_backend": "the backend that was fitted is taken",
        "moe_runner_backend": "the fitted expert kernels are taken",
        "schedule_policy": "requests are admitted first come, first served",
        "schedule_conservativeness": "1 is taken",
        "max_prefill_tokens": "16,384 are taken",
        "max_total_tokens": "the KV cache is computed: --num-gpu-blocks-override says its blocks",
        "enable_mixed_chunk": "prefill steps run alone",
        "disable_overlap_schedule": "steps are scheduled ahead",
        "enable_torch_compile": "kernels are taken as compiled by default",
        "disable_custom_all_reduce": "all-reduce kernels are the default ones",
        "enable_nccl_nvls": "all-reduce kernels are the default ones",
        "cpu_offload_gb": "all weights are taken to be on the GPU",
        "lora_paths": "say how many adapters requests are for by --num-adapters",
        "stream_interval": "tokens are streamed as the engine does by default",
        "enable_hierarchical_cache": "KV does not leave the GPU",
        "mem_fraction": "see --mem-fraction-static",
        "cuda_graph_bs": "CUDA graphs of the default sizes are taken",
        "moe_a2a_backend": "the fitted exchange of experts is taken",
        "deepep_mode": "the fitted exchange of experts is taken",
        "enable_two_batch_overlap": "batches do not overlap with their exchange",
        "moe_dense_tp_size": "dense layers are laid out as attention is",
        "enable_dp_lm_head": "the output layer is laid out as by default",
        "disable_shared_experts_fusion": "the fitted expert kernels are taken",
        "ep_num_redundant_experts": "experts are kept once",
        "enable_eplb": "experts are taken as busy as chance makes them",
        "init_expert_location": "experts are taken as busy as chance makes them",
        "enable_flashinfer_allreduce_fusion": "the fitted all-reduce is taken",
        "torchao_config": "weights are taken as the checkpoint or --quantization has them",
        "num_continuous_decode_steps": "a schedule is made for every step",
    },
)


# TensorRT-LLM


def _trtllm(line: Line) -> tuple[str | None, Fields]:
    f = line.flags
    if f.words[:1] == ["serve"]:
        f.words.pop(0)
    options = options_beside(
        f.take("extra_llm_api_options", "config"), line.folder, "--extra_llm_api_options of trtllm-serve"
    )
    tensor, experts = f.count("tp_size", "tp") or 1, f.count("ep_size", "ep") or 1
    ranks = tensor if options.pop("enable_attention_dp", "") == "true" else 1
    tokens, longest = f.count("max_num_tokens"), f.count("max_seq_len")
    fields: Fields = {
        "tensor_parallel_size": tensor // ranks,
        "data_parallel_size": ranks,
        "pipeline_parallel_size": f.count("pp_size", "pp"),
        "enable_expert_parallel": experts > 1 or None,
        "max_num_seqs": f.count("max_batch_size"),
        "max_num_batched_tokens": tokens,
        "max_model_len": longest,
        "enable_chunked_prefill": _trtllm_chunks(line, options, tokens, longest),
        "enable_prefix_caching": False
        if options.pop("kv_cache_config.enable_block_reuse", None) == "false"
        else None,
        "gpu_memory_utilization": f.take("kv_cache_free_gpu_memory_fraction", "free_gpu_memory_fraction"),
        "kv_cache_dtype": options.pop("kv_cache_config.dtype", None) or f.take("kv_cache_dtype"),
        "block_size": options.pop("kv_cache_config.tokens_per_block", None) or f.count("tokens_per_block"),
        **_trtllm_drafts(options),
    }
    if "cache_transceiver_config.backend" in options:
        fields["role"] = "prefill" if options.get("disable_overlap_scheduler") == "true" else "decode"
    return first_word(f) or f.take("model", "checkpoint_dir", "model_dir"), fields


def _trtllm_chunks(
    line: Line, options: dict[str, str], tokens: int | None, longest: int | None
) -> bool | None:
    """Whether prompts go in chunks: as the options say, else where a step may hold fewer tokens than a request has.

    Then trtllm-serve takes prompts of a step at most, and no others: the same, unless longer ones come.
    """
    said = options.pop("enable_chunked_prefill", None)
    if said is not None or line.flags.on("enable_chunked_prefill"):
        return said != "false"
    if tokens is None or (longest is not None and longest <= tokens):
        return None
    line.notes.append(f"--max_num_tokens {tokens} refuses longer prompts (here they would go in chunks)")
    return True


def _trtllm_drafts(options: dict[str, str]) -> Fields:
    kind = options.pop("speculative_config.decoding_type", None)
    if kind is None:
        return {}
    way = backwards(TENSORRT_LLM_DECODING, kind)
    if way not in TENSORRT_LLM_DECODING:
        raise InvalidInput(f"decoding_type {kind}: known are {', '.join(TENSORRT_LLM_DECODING.values())}")
    counts = ("max_draft_len", "num_nextn_predict_layers")
    draft = options.pop("speculative_config.speculative_model_dir", None)
    return {
        "speculator": way,
        "draft": draft if way == "draft-model" else None,
        "num_speculative_tokens": next(
            (options.pop(name) for count in counts if (name := f"speculative_config.{count}") in options),
            None,
        ),
    }


TENSORRT_LLM = Reader(
    engine="tensorrt-llm",
    fields=_trtllm,
    switches=frozenset({"trust_remote_code", "strongly_typed"}),
    harmless=frozenset(
        [
            "host",
            "port",
            "backend",
            "tokenizer",
            "trust_remote_code",
            "log_level",
            "output_dir",
            "workers",
            "num_postprocess_workers",
            "gather_generation_logits",
            "reasoning_parser",
            "metadata_server_config_file",
            "server_role",
            "cluster_size",
            "gpus_per_node",
            "logits_dtype",
            "remove_input_padding",
            "kv_cache_type",
            "model_version",
        ]
    ),
    not_modelled={
        "max_beam_width": "one beam is taken",
        "max_input_len": "the longest request alone bounds a prompt",
        "gemm_plugin": "the PyTorch backend's kernels are taken",
        "gpt_attention_plugin": "the PyTorch backend's kernels are taken",
        "use_paged_context_fmha": "chunked prefill and prefix caching are as the engine has them",
        "context_fmha": "attention is taken as fused",
        "opt_num_tokens": "one profile is taken",
        "multiple_profiles": "one profile is taken",
        "use_fp8_context_fmha": "attention is taken at 16 bit",
        "reduce_fusion": "the fitted all-reduce is taken",
        "strongly_typed": "the checkpoint says how weights are stored",
    },
)
