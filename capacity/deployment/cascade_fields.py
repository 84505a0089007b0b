"""Cascade input: the cheaper stages before the main model, and the fraction of requests that they forward."""

from typing import Literal

from capacity.deployment.field_flags import FlagSpec

# $ per 1M tokens of OpenAI's text-embedding-3-small: developers.openai.com/api/docs/models, read 2026-11; datasheet.
EMBEDDING_USD_PER_MILLION = 0.02
# one embedding over a network and one lookup in an in-memory index: assumed, 2026-11.
LOOKUP_S = 0.05
# fraction of an engine's maximum throughput, so that queues stay short: assumed, 2026-11.
UTILIZATION = 0.7


class Cascade(FlagSpec):
    """Stages before the main model: a semantic cache, a small model, or both; on your own GPUs or through an API."""

    small: str | None = None
    escalation_rate: float | None = None
    escalate_by: Literal["answer", "prompt"] = "answer"
    judge_s: float = 0.0
    judge_usd: float = 0.0
    small_gpu: str | None = None
    small_tensor_parallel_size: int | None = None
    small_quantization: str | None = None
    small_output_len: int | None = None
    api: str | None = None
    api_input_price: float | None = None
    api_output_price: float | None = None
    api_ttft_s: float | None = None
    api_tpot_s: float | None = None
    small_api: str | None = None
    small_api_input_price: float | None = None
    small_api_output_price: float | None = None
    small_api_ttft_s: float | None = None
    small_api_tpot_s: float | None = None
    api_price_file: str | None = None
    cache_hit_rate: float | None = None
    cache_lookup_s: float = LOOKUP_S
    embedding_model: str | None = None
    embedding_gpu: str | None = None
    embedding_price: float = EMBEDDING_USD_PER_MILLION
    cache_store_usd_per_month: float = 0.0
    target_utilization: float = UTILIZATION
