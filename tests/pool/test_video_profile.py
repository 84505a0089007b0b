"""vLLM sizes the KV cache of Qwen2-VL after encoding a dummy video as long as a request may be."""

from __future__ import annotations

import pytest

import capacity

TOKENS = 16_384  # of the largest image, or of two frames of a video


def kv_tokens(max_model_len: int, model: str = "qwen2.5-vl-72b", **options: object) -> int:
    answer = capacity.fit(
        model, gpu="a100", tensor_parallel_size=4, engine="vllm@0.10", max_model_len=max_model_len, **options
    )
    return int(answer.to_dict()["kv_capacity_tokens"])


def test_kv_cache_shrinks_with_the_longest_video_up_to_14_frames() -> None:
    lengths = [TOKENS * images for images in (1, 2, 4, 7)]
    found = [kv_tokens(length) for length in lengths]
    assert found == sorted(found, reverse=True)
    assert found[0] > 1.2 * found[-1]
    assert kv_tokens(128_000) == found[-1]


@pytest.mark.parametrize("options", [{"language_model_only": True}, {"model": "qwen2.5-72b"}])
def test_models_without_an_encoder_have_no_video(options: dict[str, object]) -> None:
    assert kv_tokens(TOKENS, **options) == kv_tokens(2 * TOKENS, **options)  # type: ignore[arg-type]
