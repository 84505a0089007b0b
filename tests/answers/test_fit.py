"""`fit`: the verdict, its reason, and what it says of one engine of several."""

from __future__ import annotations

from typing import Any

import pytest
from long_forms import mostly_slow

import capacity
from capacity.base.errors import InvalidInput
from capacity.model import model_names


def test_too_few_overridden_blocks_are_named_as_the_reason() -> None:
    answer = capacity.fit("llama-3.1-8b", gpu="h100", num_gpu_blocks_override=100)
    assert not answer.fits
    assert answer.reason is not None
    assert "--num-gpu-blocks-override 100" in answer.reason
    assert "8,192 blocks" in answer.reason  # 131,072 tokens / 16
    assert f"--max-model-len {99 * 16}" in answer.reason  # vLLM keeps a null block


def test_a_quantized_checkpoint_in_another_format_is_said_to_be_a_converted_copy() -> None:
    converted = capacity.fit("gpt-oss-120b", gpu="h200", quantization="fp8")
    assert any("published in mxfp4 experts" in warning for warning in converted.warnings)
    for own in (None, "mxfp4"):
        assert not any(
            "published in" in w for w in capacity.fit("gpt-oss-120b", gpu="h200", quantization=own).warnings
        )
    assert not any(
        "published" in w for w in capacity.fit("llama-3.1-8b", gpu="h200", quantization="fp8").warnings
    )


def test_an_answer_for_one_of_several_replicas_says_so() -> None:
    load: dict[str, Any] = {"gpu": "h100", "input_len": 100, "output_len": 10, "concurrency": 8}
    for answer in (
        capacity.fit("llama-3.1-8b", gpu="h100", replicas=4),
        capacity.estimate("llama-3.1-8b", **load, replicas=4),
    ):
        assert any("Results for one of 4 replicas" in warning for warning in answer.warnings)


@pytest.mark.parametrize("gpu", mostly_slow(("a100", "b200", "l40s", "mi300x"), ["b200"]))
def test_every_preset_gets_a_verdict_on_every_family(gpu: str) -> None:
    """Fits or not, never a crash: each preset on a GPU of each family."""
    for name in model_names():
        answer = capacity.fit(name, gpu=gpu, tensor_parallel_size=1)
        assert answer.fits or answer.reason


def test_fit_counts_drafts_and_index_keys_as_vllm_does() -> None:
    """22,912 bytes a token and GPU in a log of vLLM 0.28: 60 layers, 57 index keys at 8 bit, one layer of the draft."""
    pool: dict[str, Any] = {
        "gpu": "b200",
        "tensor_parallel_size": 4,
        "quantization": "nvfp4",
        "kv_cache_dtype": "fp8",
        "block_size": 128,
        "engine": "vllm@0.28",
    }
    drafts = {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}}

    def gpu_bytes_per_token(**options: Any) -> float:
        answer = capacity.fit("minimax-m3", **pool, **options)
        return answer.memory.kv_cache_bytes / answer.kv_capacity_tokens

    logged = gpu_bytes_per_token(indexer_kv_dtype="fp8", **drafts)
    assert logged == pytest.approx(22_912, rel=1e-4)
    assert gpu_bytes_per_token(indexer_kv_dtype="fp8") == pytest.approx(22_912 - 256, rel=1e-4)
    assert gpu_bytes_per_token(**drafts) == pytest.approx(22_912 + 57 * 128, rel=1e-4)  # auto is bf16
    with pytest.raises(InvalidInput, match="no block indexer"):
        capacity.fit("llama-3.1-8b", gpu="h100", indexer_kv_dtype="fp8")


def test_fit_estimate_and_simulate_hold_as_much_beside_a_draft() -> None:
    pool: dict[str, Any] = {
        "gpu": "h100",
        "tensor_parallel_size": 4,
        "speculator": "eagle3",
        "num_speculative_tokens": 3,
    }
    lengths: dict[str, Any] = {"input_len": 100, "output_len": 20, "random_range_ratio": 0.0}
    fitted = capacity.fit("llama-3.1-70b", **pool)
    estimated = capacity.estimate("llama-3.1-70b", **pool, **lengths, request_rate=1)
    run = capacity.simulate("llama-3.1-70b", **pool, **lengths, request_rate=1, num_prompts=4)
    plain = capacity.fit("llama-3.1-70b", gpu="h100", tensor_parallel_size=4)
    assert plain.kv_capacity_tokens > fitted.kv_capacity_tokens == estimated.kv_capacity_tokens
    assert (run.kv_capacity_tokens, run.kv_capacity_blocks) == (
        fitted.kv_capacity_tokens,
        fitted.kv_capacity_blocks,
    )
    added = fitted.memory.weights_bytes - plain.memory.weights_bytes
    assert added == plain.memory.kv_cache_bytes - fitted.memory.kv_cache_bytes > 0
    assert fitted.kv_bytes_per_token == plain.kv_bytes_per_token + 2 * 8 * 128 * 2


def test_a_draft_that_leaves_too_little_kv_does_not_fit() -> None:
    length = capacity.fit("llama-3.1-8b", gpu="l4", max_model_len=4096).kv_capacity_tokens - 16
    held, over = (
        capacity.fit("llama-3.1-8b", gpu="l4", max_model_len=length, speculator=way)
        for way in (None, "eagle3")
    )
    assert held.fits
    assert not over.fits
    assert over.reason is not None
    assert f"--max-model-len {length}" in over.reason
    assert over.max_context_tokens < length
