"""A pool of identical engines on identical GPUs, as the user writes it. Fields have vLLM's names."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from capacity.deployment.drafts import DRAFT_FIELDS, drafting_name, fill_in_drafting_method
from capacity.deployment.field_flags import FiniteOrInf, FlagSpec
from capacity.deployment.vllm_config import JSON_OPTIONS, JsonObject, replace_json_options, set_lora_slots

MoeBackend = Literal[
    "auto", "triton", "flashinfer_trtllm", "flashinfer_cutlass", "deep_gemm", "cutlass", "marlin"
]  # fmt: skip


def _parse_power_cap(value: Any) -> Any:
    """Return watts as a number, and a share of the TDP as text with a percent sign. Raises ValueError."""
    if not isinstance(value, str | bytes):
        return value
    text = (value.decode(errors="replace") if isinstance(value, bytes) else value).strip()
    share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|W)?", text)
    if share is None or (share[2] == "%" and not 0 < float(share[1]) <= 100):
        raise ValueError("must be watts, or a share of the TDP such as 70%")
    return f"{float(share[1]):g}%" if share[2] == "%" else float(share[1])


PowerCap = Annotated[Annotated[float, Field(gt=0)] | str, BeforeValidator(_parse_power_cap)]
"""Power cap of a GPU in watts, or as a share of its TDP, such as "70%"."""


class Pool(FlagSpec):
    """Identical engines on identical GPUs. A field that is None has the engine's default."""

    gpu: str
    power_cap: PowerCap | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    kv_eviction: str | None = None
    kv_budget: int | None = None
    engine: str = "vllm"
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = "auto"
    max_model_len: Annotated[int, Field(ge=1, le=1 << 40)] | Literal["auto"] | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_scheduled_tokens: int | None = None
    indexer_kv_dtype: Literal["auto", "bf16", "fp8"] = "auto"
    block_size: int | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    enforce_eager: bool = False
    language_model_only: bool = False
    max_cudagraph_capture_size: int | None = None
    cudagraph_padding: bool | None = None
    long_prefill_token_threshold: int = 0
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool | None = None
    prefill_schedule_interval: int = 1
    scheduler_recv_interval: int = 1
    kv_offloading_size: float | None = None
    kv_offloading_backend: Literal["native", "lmcache"] = "native"
    kv_offloading_bytes_per_s: FiniteOrInf | None = None
    kv_offloading_disk_size: float | None = None
    kv_offloading_disk_bytes_per_s: FiniteOrInf | None = None
    kv_offloading_disk_latency_s: float = 0.0
    cpu_offload_gb: float = 0.0
    n_gpu_layers: int | None = None
    host_cpu: str = "xeon-8592-plus-512gb"
    enable_lora: bool = False
    max_loras: int | None = None
    max_cpu_loras: int | None = None
    max_lora_rank: int = 16
    lora_read_bytes_per_s: float | None = None
    preemption_mode: Literal["recompute", "swap"] = "recompute"
    swap_space: float = 4.0
    kv_layout: Literal["paged", "contiguous"] = "paged"
    attn_implementation: Literal[
        "auto", "eager", "flash_attention_1", "flash_attention_2", "flash_attention_3"
    ] = "auto"
    moe_backend: MoeBackend = "auto"
    use_cache: bool = True
    speculator: str | None = None
    draft: str | None = None
    draft_tensor_parallel_size: int | None = None
    draft_layers: int | None = None
    num_speculative_tokens: int | None = None
    acceptance: str | None = None
    acceptance_spread: float = 0.0
    speculative_config: str | JsonObject | None = None
    decode_context_parallel_size: int = 1
    structured_output: Literal["none", "cached", "each"] = "none"
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    override_generation_config: str | JsonObject | None = None
    front_end_input_token_s: float | None = None
    front_end_request_s: float | None = None
    front_end_output_token_s: float | None = None
    api_server_count: int = 1
    step_noise: float = 0.0
    step_noise_seed: int = 0
    num_gpu_blocks_override: int | None = None

    replicas: int = 1
    role: Literal["both", "prefill", "decode"] = "both"
    route_up_to_tokens: int | None = None
    route_up_to_requests: int | None = None
    route_escalation_rate: float | None = None
    model: str | None = None
    kv_transfer_config: str | JsonObject | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_json(cls, fields: Any) -> Any:
        """Replace vLLM's JSON options by `Pool` fields; invalid options are kept, so that validation rejects them."""
        return (
            set_lora_slots(fill_in_drafting_method(replace_json_options(fields)))
            if isinstance(fields, dict)
            else fields
        )

    @field_validator("speculator")
    @classmethod
    def _canonical_method(cls, value: str | None) -> str | None:
        return None if value is None else drafting_name(value)

    @field_validator("speculative_config", "kv_transfer_config", "override_generation_config")
    @classmethod
    def _check_json_option(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.field_name is not None:
            JSON_OPTIONS[info.field_name](value)  # raises, because valid options were already replaced
        return value

    @field_validator("max_model_len", mode="before")
    @classmethod
    def _convert_automatic(cls, value: object) -> object:
        """Convert -1, which means automatic in vLLM, to `auto`."""
        return "auto" if value in (-1, "-1") else value

    @property
    def without_drafts(self) -> "Pool":
        return self.model_copy(update={name: type(self).model_fields[name].default for name in DRAFT_FIELDS})

    @property
    def on_amd(self) -> bool:
        """Return whether the GPU is an AMD Instinct, by its name."""
        return self.gpu.lower().startswith("mi")

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs of one engine, including all data-parallel ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
