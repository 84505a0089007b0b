"""A pool with every default filled in: what the user wrote stands, the engine's release says the rest."""

from __future__ import annotations

import pytest

from capacity.deployment import Pool
from capacity.pool.resolve import resolve


@pytest.mark.parametrize("model", ["llama-3.2-1b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_experts_or_nothing(model: str, ranks: int) -> None:
    mixture = "a3b" in model
    settings = resolve(model, Pool(gpu="h200", data_parallel_size=ranks, enable_expert_parallel=mixture))
    assert settings.expert_parallel is mixture
    assert (settings.lockstep_ranks, settings.independent_ranks) == ((ranks, 1) if mixture else (1, ranks))


def test_what_is_written_stands_and_the_rest_is_the_engines() -> None:
    default = resolve("llama-3.2-1b", Pool(gpu="h200"))
    assert default.gpu_memory_utilization == default.engine.gpu_memory_utilization
    assert default.reserve_full_isl is default.engine.reserve_full_isl
    assert default.max_num_scheduled_tokens == default.max_num_batched_tokens
    written = resolve(
        "llama-3.2-1b",
        Pool(
            gpu="h200",
            gpu_memory_utilization=0.5,
            scheduler_reserve_full_isl=not default.reserve_full_isl,
            max_num_scheduled_tokens=64,
        ),
    )
    assert written.gpu_memory_utilization == 0.5
    assert written.reserve_full_isl is not default.reserve_full_isl
    assert (written.max_num_scheduled_tokens, written.max_num_batched_tokens) == (
        64,
        default.max_num_batched_tokens,
    )


def test_another_tensor_parallel_size_leaves_the_limits() -> None:
    one = resolve("llama-3.2-1b", Pool(gpu="h200"))
    two = one.with_tensor_parallel_size(2)
    assert two.pool.num_gpus == 2 * one.pool.num_gpus
    assert (two.max_num_seqs, two.max_num_batched_tokens) == (one.max_num_seqs, one.max_num_batched_tokens)
