"""One engine of a pool with every default filled in: what the memory plan and the step model both take; and what
answers that follow a grammar change of its times."""

from dataclasses import dataclass, replace
from typing import Self

from capacity.deployment import Pool
from capacity.deployment.engines import EngineSpec
from capacity.hardware import HardwareProfile
from capacity.model import ModelSpec
from capacity.model.quantization import QuantizationScheme


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """The model, the GPU, the engine's release, and the pool's limits in place of every None that `pool` has.

    `pool` is as the user wrote it; what it leaves to the engine stands here. `kv_cache_dtype` may be "auto": 16 bit.
    """

    pool: Pool
    model: ModelSpec
    profile: HardwareProfile
    engine: EngineSpec
    scheme: QuantizationScheme
    kv_cache_dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool
    prefix_caching: bool
    notes: tuple[str, ...]
    host_cpu: HardwareProfile | None = None  # of the layers that are not on the GPU, if there are any

    @property
    def max_num_scheduled_tokens(self) -> int:
        """Most tokens in a step; memory is kept for `max_num_batched_tokens`."""
        return self.pool.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def gpu_memory_utilization(self) -> float:
        """Share of GPU memory that the engine may use."""
        return self.pool.gpu_memory_utilization or self.engine.gpu_memory_utilization

    @property
    def reserve_full_isl(self) -> bool:
        """Whether a request is admitted only if its whole prompt fits."""
        chosen = self.pool.scheduler_reserve_full_isl
        return self.engine.reserve_full_isl if chosen is None else chosen

    @property
    def expert_parallel(self) -> bool:
        """Whether each GPU holds whole experts."""
        return self.pool.enable_expert_parallel and self.model.is_moe

    @property
    def lockstep_ranks(self) -> int:
        """Data-parallel ranks that take every step together, because they share experts; 1 for a dense model."""
        return self.pool.data_parallel_size if self.model.is_moe else 1

    @property
    def independent_ranks(self) -> int:
        """Data-parallel ranks that have nothing to do with each other: replicas under another name."""
        return 1 if self.model.is_moe else self.pool.data_parallel_size

    def with_tensor_parallel_size(self, size: int) -> Self:
        """The same with another tensor-parallel size; limits stay as they are."""
        return replace(self, pool=self.pool.model_copy(update={"tensor_parallel_size": size}))


# xgrammar in vLLM with Llama-3.1-8B: first tokens after 312 ms in place of 204 (pull request 10835, 2024-12)
COMPILE_S = 0.108
# a row's bitmask, filled beside the forward pass: 103.2 to 85.3 requests/s of 128 tokens at up to 800 streams, every
# one of them with the same JSON schema (pull request 26866, 2025-10; Qwen3-1.7B); before it, 37 us
MASK_S = 16e-6


def with_grammars(engine: EngineSpec, *, compiled_each: bool) -> EngineSpec:
    """The engine when every answer follows a grammar; `compiled_each`: one that no request before it had.

    The mask is host time of each sequence. Left out: that a grammar's compilation holds up others, and how long a
    grammar's states take.
    """
    return engine.model_copy(
        update={
            "host_per_sequence_s": engine.host_per_sequence_s + MASK_S,
            "request_latency_s": engine.request_latency_s + (COMPILE_S if compiled_each else 0.0),
        }
    )
