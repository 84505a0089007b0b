"""The ranking: the best of each family, or which part of the SLO is missed and by how much."""

from __future__ import annotations

import pytest
from quick_plans import quick

from capacity.deployment import Pool
from capacity.deployment.launching import launch_command
from capacity.model import load_model
from capacity.planning.ranking import attention_backend


def test_every_gpu_and_format_that_can_do_it_is_ranked_by_its_verified_best() -> None:
    answer = quick(gpus="a100,h100", quantizations=(None, "int4"), max_num_batched_tokens=(None, 4096, 2048))
    leaders = {
        (r.candidate.pool.gpu, r.candidate.pool.quantization): r for r in answer.ranked if r.best_of_its_kind
    }
    assert len(leaders) == 4
    assert all(leader.trial.seen == "all" for leader in leaders.values())
    assert answer.ranked[0].best_of_its_kind


def test_an_infeasible_slo_says_which_part_and_by_how_much() -> None:
    answer = quick(slo="ttft:p95:1ms tpot:p95:30ms")
    assert not answer.ranked
    (miss,) = answer.misses
    assert miss.slo == "ttft:p95:1ms"
    assert miss.factor > 2
    assert "h100" in miss.candidate
    simulated = quick(slo="ttft:p95:30ms tpot:p95:30ms", input_len=300, request_rate=100.0, max_gpus=1)
    if not simulated.ranked:
        assert all(miss.factor > 1 for miss in simulated.misses)
        assert any("ttft" in miss.slo or miss.slo == "capacity" for miss in simulated.misses)


@pytest.mark.parametrize(
    ("changes", "backend"),
    [
        ({}, "flashmla"),
        ({"kv_cache_dtype": "auto"}, None),
        ({"gpu": "b200"}, None),
        ({"engine": "vllm@0.15"}, None),
    ],
)
def test_attention_backend_fp8_latents_under_sglang_on_hopper_is_flashmla(
    changes: dict[str, str], backend: str | None
) -> None:
    """SGLang's default there converts the whole KV pool to 16 bit in every step (sglang issue 35291)."""
    pool = Pool(**{"gpu": "h200", "engine": "sglang@0.5.9", "kv_cache_dtype": "fp8"} | changes)  # type: ignore[arg-type]
    assert attention_backend(load_model("deepseek-r1"), pool) == backend
    assert attention_backend(load_model("llama-3.1-8b"), pool) is None
    words = launch_command(pool.engine, "deepseek-ai/DeepSeek-R1", pool, attention_backend=backend).words
    assert ("--attention-backend" in words) is (backend is not None)
