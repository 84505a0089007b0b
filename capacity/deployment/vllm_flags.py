"""Flags of `vllm serve` that a pool has no field for: those that change no answer, and those that would.

Names as vLLM's with underscores. What stands in neither table is not known here: a slip of the pen, or newer.
"""

from __future__ import annotations

HARMLESS = {  # by why no memory, no step and no schedule depends on them
    "names and addresses": (
        "served_model_name", "host", "port", "uds", "api_key", "root_path", "ssl_keyfile", "ssl_certfile",
        "ssl_ca_certs", "ssl_cert_reqs", "enable_ssl_refresh", "allowed_origins", "allowed_methods",
        "allowed_headers", "allow_credentials", "middleware", "allowed_local_media_path", "hf_token",
        "task", "runner", "convert", "hf_config_path", "config_format", "generation_config", "tokenizer",
        "tokenizer_mode", "tokenizer_revision", "revision", "code_revision", "override_generation_config",
        "enable_request_id_headers", "h11_max_incomplete_event_size", "h11_max_header_count",
    ),
    "logs and metrics": (
        "disable_log_requests", "disable_log_stats", "enable_log_requests", "disable_uvicorn_access_log",
        "uvicorn_log_level", "max_log_len", "log_config_file", "otlp_traces_endpoint", "collect_detailed_traces",
        "show_hidden_metrics_for_version", "enable_server_load_tracking", "enable_log_outputs",
        "disable_log_stats_aggregate", "kv_cache_metrics", "aggregate_engine_logging",
    ),
    "how answers are worded": (
        "chat_template", "chat_template_content_format", "response_role", "enable_auto_tool_choice",
        "tool_call_parser", "tool_parser_plugin", "tool_server", "reasoning_parser", "enable_reasoning",
        "exclude_tools_when_tool_choice_none", "return_tokens_as_token_ids", "enable_prompt_tokens_details",
        "enable_force_include_usage", "max_logprobs", "logprobs_mode", "guided_decoding_backend",
        "structured_outputs_config", "seed", "trust_request_chat_template", "skip_tokenizer_init",
    ),
    "loading": (
        "trust_remote_code", "load_format", "download_dir", "safetensors_load_strategy", "use_tqdm_on_load",
        "model_loader_extra_config", "ignore_patterns", "pt_load_map_location", "enable_sleep_mode",
    ),
    "which process is where": (
        "distributed_executor_backend", "headless", "nnodes", "node_rank", "master_addr", "master_port", "worker_cls",
        "worker_extension_cls", "data_parallel_address", "data_parallel_rpc_port", "data_parallel_backend",
        "data_parallel_size_local", "data_parallel_start_rank", "data_parallel_rank", "max_parallel_loading_workers",
        "ray_workers_use_nsight", "disable_frontend_multiprocessing", "device", "numa_bind",
    ),
    "the default of today": ("use_v2_block_manager", "enable_chunked_mm_input", "disable_sliding_window"),
}  # fmt: skip
NOT_MODELLED = {  # what an answer leaves out by leaving them out
    "lora_modules": "say how many requests are for by --num-adapters",
    "fully_sharded_loras": "adapters are taken as sharded by vLLM's default",
    "qlora_adapter_name_or_path": "adapters come by --max-loras",
    "ngram_prompt_lookup_max": "acceptance is as published, or --acceptance",
    "ngram_prompt_lookup_min": "acceptance is as published, or --acceptance",
    "spec_decoding_acceptance_method": "drafts are taken to be verified without loss",
    "num_scheduler_steps": "a schedule is made for every step",
    "multi_step_stream_outputs": "a schedule is made for every step",
    "scheduler_delay_factor": "prompts do not wait for company",
    "max_seq_len_to_capture": "CUDA graphs are taken at any length",
    "cuda_graph_sizes": "CUDA graphs of the default sizes are taken",
    "cudagraph_capture_sizes": "CUDA graphs of the default sizes are taken",
    "compilation_config": "kernels are taken as compiled by default",
    "optimization_level": "kernels are taken as compiled by default",
    "attention_backend": "the backend that was fitted is taken",
    "all2all_backend": "the fitted exchange of experts is taken",
    "enable_eplb": "experts are taken as busy as chance makes them",
    "eplb_config": "experts are taken as busy as chance makes them",
    "enable_dbo": "batches do not overlap with their exchange",
    "disable_custom_all_reduce": "all-reduce kernels are the default ones",
    "disable_hybrid_kv_cache_manager": "the KV cache is laid out as by default",
    "disable_cascade_attention": "shared prefixes are read by each request",
    "max_num_partial_prefills": "as many prompts are prefilled together as fit",
    "max_long_partial_prefills": "as many prompts are prefilled together as fit",
    "disable_chunked_mm_input": "images are encoded in the step that begins their prompt",
    "limit_mm_per_prompt": "say how many images a prompt has by --images-per-prompt",
    "mm_processor_kwargs": "say how many tokens an image has by --image-size or --image-tokens",
    "mm_processor_cache_gb": "no image is taken to come twice",
    "mm_encoder_tp_mode": "the tower is laid out as by default",
    "hf_overrides": "the checkpoint is taken as it is",
    "rope_scaling": "the checkpoint's positions are taken",
    "rope_theta": "the checkpoint's positions are taken",
    "kv_events_config": "events cost nothing",
    "calculate_kv_scales": "scales are taken as stored",
    "stream_interval": "tokens are streamed as the engine does by default",
    "additional_config": "of a plug-in",
    "num_redundant_experts": "experts are kept once",
    "prefix_caching_hash_algo": "hashing costs nothing",
}
SWITCHES = {  # of these, what takes no value
    "trust_remote_code", "disable_log_requests", "disable_log_stats", "enable_auto_tool_choice",
    "enable_log_requests", "disable_custom_all_reduce", "enable_eplb", "disable_uvicorn_access_log", "headless",
    "enable_sleep_mode", "disable_hybrid_kv_cache_manager", "disable_frontend_multiprocessing", "enable_dbo",
    "enable_server_load_tracking", "enable_prompt_tokens_details", "enable_force_include_usage", "skip_tokenizer_init",
    "use_v2_block_manager", "fully_sharded_loras", "enable_reasoning", "return_tokens_as_token_ids",
    "allow_credentials",
    "enable_request_id_headers", "enable_ssl_refresh", "disable_cascade_attention", "disable_chunked_mm_input",
    "calculate_kv_scales", "ray_workers_use_nsight", "enable_log_outputs", "exclude_tools_when_tool_choice_none",
    "multi_step_stream_outputs", "trust_request_chat_template", "use_tqdm_on_load", "disable_sliding_window",
    "enable_chunked_mm_input", "numa_bind",
}  # fmt: skip
IS_HARMLESS = {name for names in HARMLESS.values() for name in names}
