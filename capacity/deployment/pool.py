"""A pool: equal engines on equal GPUs, as a user writes them. Names are vLLM's."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from capacity.base.spec import Spec
from capacity.deployment.drafts import DRAFT_FIELDS, drafting_name, with_way
from capacity.deployment.field_flags import FiniteOrInf, Need, flag
from capacity.deployment.pool_routers import APART
from capacity.deployment.vllm_config import JSON_OPTIONS, JsonObject, with_slots, without_json

MoeBackend = Literal[
    "auto", "triton", "flashinfer_trtllm", "flashinfer_cutlass", "deep_gemm", "cutlass", "marlin"
]  # fmt: skip


class Pool(Spec):
    """Equal engines on equal GPUs: hardware, parallelism, formats and the engine's limits. None: engine's default."""

    gpu: str = flag(..., "GPU profile, such as h100 or h200-sxm-141gb.", "--system")
    tensor_parallel_size: int = flag(1, "GPUs that share every layer.", "-tp", "--tp", ge=1, le=4096)
    pipeline_parallel_size: int = flag(1, "Groups of layers in sequence.", "-pp", "--pp", ge=1, le=4096)
    data_parallel_size: int = flag(
        1,
        "Ranks with a scheduler and a KV cache each; of a mixture of experts they share the experts, in lock-step.",
        "-dp",
        "--dp",
        ge=1,
        le=4096,
    )
    enable_expert_parallel: bool = flag(
        False,
        "Distribute whole experts over the tensor- and data-parallel GPUs.",
        "-ep",
        needs=(Need("tensor_parallel_size"), Need("data_parallel_size")),
    )
    quantization: str | None = flag(
        None, "Weight format (fp8, awq, nvfp4, ...); default: as in the checkpoint.", "-q", read_by="limits"
    )
    kv_cache_dtype: str = flag(
        "auto", "KV-cache format (auto, fp8, ...); auto: as the checkpoint says, else 16-bit."
    )
    kv_eviction: str | None = flag(
        None,
        "Keep part of a request's KV, as snapkv, h2o, pyramidkv, streaming-llm do (`kv --eviction all`); default: all.",
        read_by="limits",
    )
    kv_budget: int | None = flag(
        None,
        "Tokens that every layer keeps of a request then.",
        ge=1,
        le=1 << 40,
        read_by="limits",
        needs=Need("kv_eviction"),
    )
    engine: str = flag("vllm", "Engine, with an optional version: vllm, vllm@0.11, sglang, tensorrt-llm, ...")
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = flag(
        "auto", "Activations, KV and unquantized weights: half, bfloat16, ...; auto: as in the checkpoint."
    )
    max_model_len: Annotated[int, Field(ge=1, le=1 << 40)] | Literal["auto"] | None = flag(
        None,
        "Longest request in tokens, prompt and output; auto: what fits; default: the model's.",
        read_by="memory",
    )
    gpu_memory_utilization: float | None = flag(
        None,
        "Share of GPU memory that the engine may use.",
        "--device-memory-utilization",
        "--gpu-mem-util",
        gt=0,
        le=1,
        read_by="memory",
    )
    kv_cache_memory_bytes: int | None = flag(
        None,
        "Bytes of KV cache per GPU, whatever --gpu-memory-utilization says.",
        ge=1,
        le=1 << 50,
        read_by="memory",
    )
    max_num_seqs: int | None = flag(None, "Most requests in one step.", ge=1, le=1 << 24, read_by="limits")
    max_num_batched_tokens: int | None = flag(
        None, "Token budget of one step.", ge=1, le=1 << 30, read_by="limits"
    )
    max_num_scheduled_tokens: int | None = flag(
        None,
        "Most tokens scheduled in a step, below the budget that memory is kept for.",
        ge=1,
        le=1 << 30,
        read_by="steps",
    )
    indexer_kv_dtype: Literal["auto", "bf16", "fp8"] = flag(
        "auto",
        "Format of the keys that a block indexer caches (vLLM's attention config); auto: bf16 for MiniMax-M3.",
        "--attention-config.indexer_kv_dtype",
        read_by="memory",
    )
    block_size: int | None = flag(None, "Tokens in a KV block.", ge=1, le=1 << 20, read_by="memory")
    enable_chunked_prefill: bool | None = flag(None, "Split long prompts over steps.", read_by="limits")
    enable_prefix_caching: bool | None = flag(None, "Reuse the KV of shared prefixes.", read_by="schedule")
    async_scheduling: bool | None = flag(
        None, "Schedule the next step while this one runs.", read_by="schedule"
    )
    enforce_eager: bool = flag(False, "No CUDA graphs.", read_by="limits")
    language_model_only: bool = flag(
        False,
        "No towers of a model that sees or hears: no images, no audio, and their memory for KV (vLLM).",
        read_by="memory",
    )
    max_cudagraph_capture_size: int | None = flag(
        None, "Most tokens of a step that CUDA graphs are captured for.", ge=1, le=1 << 20, read_by="limits"
    )
    long_prefill_token_threshold: int = flag(
        0, "Most prompt tokens of one request in a step; 0: no limit.", ge=0, read_by="schedule"
    )
    scheduling_policy: Literal["fcfs", "priority"] = flag(
        "fcfs",
        "Order of waiting requests: priorities are --priority-shares, or a trace's.",
        read_by="schedule",
        needs=(Need("trace"), Need("priority_shares")),
    )
    watermark: float = flag(
        0.0, "Share of KV blocks kept free when admitting.", ge=0, lt=1, read_by="schedule"
    )
    scheduler_reserve_full_isl: bool | None = flag(
        None, "Admit a request only if its whole prompt fits.", read_by="schedule"
    )
    prefill_schedule_interval: int = flag(
        1, "Steps from one prefill step to the next, at least.", ge=1, le=1 << 20, read_by="schedule"
    )
    scheduler_recv_interval: int = flag(
        1,
        "Decode steps from one look at arrived requests to the next (SGLang).",
        ge=1,
        le=1 << 20,
        read_by="schedule",
    )
    kv_offloading_size: float | None = flag(
        None,
        "GiB of host memory for KV that leaves the GPU, over all GPUs of an engine (of a data-parallel rank).",
        ge=0,
        le=1 << 30,
        read_by="host_memory",
    )
    kv_offloading_backend: Literal["native", "lmcache"] = flag(
        "native",
        "How it comes back: native (requests wait beside the queue) or lmcache (steps wait).",
        read_by="schedule",
        needs=Need("kv_offloading_size"),
    )
    kv_offloading_bytes_per_s: FiniteOrInf | None = flag(
        None,
        "Rate between a GPU and host memory, each way; default: the GPU's PCIe link.",
        gt=0,
        read_by="schedule",
        needs=Need("kv_offloading_size"),
    )
    kv_offloading_disk_size: float | None = flag(
        None,
        "GiB of a second tier (disk, network) below host memory; default: none.",
        ge=0,
        le=1 << 40,
        read_by="schedule",
        needs=Need("kv_offloading_size"),
    )
    kv_offloading_disk_bytes_per_s: FiniteOrInf | None = flag(
        None,
        "Rate between the second tier and a GPU's share of host memory, each way.",
        gt=0,
        read_by="schedule",
        needs=Need("kv_offloading_disk_size"),
    )
    kv_offloading_disk_latency_s: float = flag(
        0.0,
        "Latency of the second tier.",
        ge=0,
        le=3600,
        read_by="schedule",
        needs=Need("kv_offloading_disk_size"),
    )
    cpu_offload_gb: float = flag(
        0.0,
        "GiB of weights of each GPU that stay in host memory and are read over PCIe in every step (vLLM, SGLang).",
        ge=0,
        le=1 << 20,
        read_by="limits",
    )
    n_gpu_layers: int | None = flag(
        None,
        "Layers on the GPU, the last ones; the CPU computes the others, and has their KV (llama.cpp); default: all.",
        "-ngl",
        "--gpu-layers",
        ge=0,
        le=1 << 20,
        read_by="limits",
    )
    host_cpu: str = flag(
        "xeon-8592-plus-512gb",
        "The CPU of those layers, a profile.",
        read_by="limits",
        needs=Need("n_gpu_layers"),
    )
    enable_lora: bool = flag(False, "LoRA adapters: --max-loras 1, unless that says more.", read_by="limits")
    max_loras: int | None = flag(
        None,
        "LoRA adapters on the GPU, and in a step, at most (vLLM); default: none.",
        ge=1,
        le=1 << 16,
        read_by="limits",
    )
    max_cpu_loras: int | None = flag(
        None,
        "The same of host memory, --max-loras at least; default: all.",
        ge=1,
        le=1 << 24,
        read_by="schedule",
        needs=Need("max_loras"),
    )
    max_lora_rank: int = flag(
        16,
        "Rank of the adapters, of all linear layers but experts.",
        ge=1,
        le=4096,
        read_by="limits",
        needs=Need("max_loras"),
    )
    lora_read_bytes_per_s: float | None = flag(
        None,
        "Rate at which one that host memory does not hold is read (disk, network); default: at once.",
        gt=0,
        read_by="schedule",
        needs=Need("max_cpu_loras"),
    )
    preemption_mode: Literal["recompute", "swap"] = flag(
        "recompute",
        "What becomes of a preempted request's KV (vLLM's V0 engine alone can swap).",
        read_by="schedule",
    )
    swap_space: float = flag(
        4.0,
        "GiB of host memory per GPU to swap to.",
        ge=0,
        le=1 << 30,
        read_by="schedule",
        needs=Need("preemption_mode", ("swap",)),
    )
    kv_layout: Literal["paged", "contiguous"] = flag(
        "paged",
        "KV in blocks as needed, or max_model_len reserved for every request (as before paging).",
        read_by="schedule",
    )
    attn_implementation: Literal[
        "auto", "eager", "flash_attention_1", "flash_attention_2", "flash_attention_3"
    ] = flag(
        "auto",
        "Attention kernel, by its name in transformers: eager (no FlashAttention), flash_attention_1, ...; auto: the "
        "engine's.",
        read_by="limits",
    )
    moe_backend: MoeBackend = flag(
        "auto",
        "Expert kernels, by vLLM's name (SGLang's --moe-runner-backend): triton, flashinfer_trtllm, ...; auto: the "
        "engine's.",
        "--moe-runner-backend",
        read_by="steps",
    )
    use_cache: bool = flag(
        True,
        "Keep a KV cache; without, every token computes all before it again (as transformers' use_cache=False).",
        read_by="steps",
    )
    speculator: str | None = flag(
        None,
        "Way to draft (eagle3, ngram, mtp, draft-model, ...; `speculate --list`), a chain; default: none.",
        read_by="drafts",
    )
    draft: str | None = flag(
        None,
        "The model that drafts, a small one with the target's vocabulary.",
        "--speculative-model",
        read_by="drafts",
    )
    draft_tensor_parallel_size: int | None = flag(
        None,
        "GPUs that share every layer of the draft model: 1, or the target's; default: the target's.",
        "--speculative-draft-tensor-parallel-size",
        ge=1,
        le=4096,
        read_by="drafts",
        needs=Need("draft"),
    )
    draft_layers: int | None = flag(
        None,
        "Layers of the target that draft for it (layer-skip); default: the speculator's share.",
        ge=1,
        le=1 << 16,
        read_by="rounds",
    )
    num_speculative_tokens: int | None = flag(
        None,
        "Drafts of a request in a step, a tree's in depth; default: the speculator's.",
        ge=1,
        le=64,
        read_by="drafts",
    )
    acceptance: str | None = flag(
        None,
        "Acceptance of drafts: 0.7, by position 0.9,0.7,0.5, length:2.3, or a task: code, chat; default: published.",
        read_by="rounds",
    )
    acceptance_spread: float = flag(
        0.0,
        "How much acceptance differs between requests: standard deviation of its log-odds (0.5: ±0.10 around 0.7).",
        ge=0,
        le=4,
        read_by="schedule",
    )
    speculative_config: str | JsonObject | None = flag(
        None, "The same as vLLM's JSON: method, model, num_speculative_tokens."
    )
    decode_context_parallel_size: int = flag(
        1,
        "GPUs of a tensor-parallel group that share the context of a decode, where KV heads are too few for them.",
        "-dcp",
        "--dcp",
        "--dcp-size",
        ge=1,
        le=4096,
        needs=Need("tensor_parallel_size"),
    )
    structured_output: Literal["none", "cached", "each"] = flag(
        "none",
        "Answers follow a grammar: none, one that is cached, or each one of its own, compiled first.",
        read_by="steps",
    )
    front_end_input_token_s: float = flag(
        0.0,
        "Seconds for which a prompt token keeps the front end's process (its tokenizer); 1.1e-6 was measured; "
        "0: within the latency of a request.",
        ge=0,
        le=1,
        read_by="schedule",
    )
    front_end_request_s: float = flag(
        0.0,
        "The same for a request, whatever its length; 0.014 was seen of chat requests in vLLM 0.11.0, which parses the "
        "chat template for each; 0: within the latency of a request.",
        ge=0,
        le=1,
        read_by="schedule",
    )
    front_end_output_token_s: float | None = flag(
        None,
        "The same for a streamed token; 9e-5 was seen of TensorRT-LLM; default: the engine's, 0 in an offline batch.",
        ge=0,
        le=1,
        read_by="schedule",
    )
    api_server_count: int = flag(
        1,
        "Processes of the front end, requests in turn.",
        "--tokenizer-worker-num",
        ge=1,
        le=1024,
        read_by="schedule",
        needs=(
            Need("front_end_input_token_s"),
            Need("front_end_request_s"),
            Need("front_end_output_token_s"),
        ),
    )
    step_noise: float = flag(
        0.0,
        "Coefficient of variation of equal steps' times, stragglers in it; 0.017 was measured; 0: none.",
        ge=0,
        le=0.5,
        read_by="schedule",
    )
    step_noise_seed: int = flag(
        0, "Seed of that noise.", ge=0, le=2**63 - 1, read_by="schedule", needs=Need("step_noise")
    )
    num_gpu_blocks_override: int | None = flag(
        None,
        "KV blocks, as the engine's log prints them, in place of the computed number.",
        ge=1,
        read_by="memory",
    )

    replicas: int = flag(1, "Equal engines of this pool, behind the router.", ge=1, le=4096)
    role: Literal["both", "prefill", "decode"] = flag(
        "both",
        "What its engines do: both, or in a disaggregated deployment prefill or decode.",
        read_by="roles",
    )
    route_up_to_tokens: int | None = flag(
        None,
        "The routers that tell pools apart send this one requests of at most so many tokens; default: any.",
        ge=1,
        le=1 << 40,
        read_by="routes",
        needs=Need("router", APART),
    )
    route_up_to_requests: int | None = flag(
        None,
        "Requests of each of its replicas from which they send to the next pool that takes them; default: never.",
        ge=1,
        le=1 << 40,
        read_by="routes",
        needs=Need("router", APART),
    )
    route_escalation_rate: float | None = flag(
        None,
        "Share of what this pool answers that goes on to the next (--router cascade); yours to measure.",
        ge=0,
        le=1,
        read_by="routes",
        needs=Need("router", ("cascade",)),
    )
    model: str | None = flag(
        None, "The model that it serves, in a deployment of several; default: the file's."
    )
    kv_transfer_config: str | JsonObject | None = flag(
        None, "The same as vLLM's JSON: kv_role kv_producer (prefill) or kv_consumer (decode)."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_json(cls, fields: Any) -> Any:
        """What vLLM's JSON options say, in this pool's own fields. One that cannot be read is left to its field."""
        return with_slots(with_way(without_json(fields))) if isinstance(fields, dict) else fields

    @field_validator("speculator")
    @classmethod
    def _one_name(cls, value: str | None) -> str | None:
        return None if value is None else drafting_name(value)

    @field_validator("speculative_config", "kv_transfer_config")
    @classmethod
    def _unread(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.field_name is not None:
            JSON_OPTIONS[info.field_name](value)  # raises: else it would have been taken out
        return value

    @field_validator("max_model_len", mode="before")
    @classmethod
    def _automatic(cls, value: object) -> object:
        """-1 is vLLM's word for what fits."""
        return "auto" if value in (-1, "-1") else value

    @property
    def without_drafts(self) -> "Pool":
        """The same engines, drafting nothing."""
        return self.model_copy(update={name: type(self).model_fields[name].default for name in DRAFT_FIELDS})

    @property
    def num_gpus(self) -> int:
        """GPUs of one engine of this pool, all its data-parallel ranks included."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
