"""`fit`: the verdict, its reason, and what it says of one engine of several."""

from __future__ import annotations

from typing import Any

import capacity
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
        assert any("one of the 4 replicas" in warning for warning in answer.warnings)


def test_every_preset_gets_a_verdict_on_every_family() -> None:
    """Fits or not, never a crash: each preset on a GPU of each family."""
    for name in model_names():
        for gpu in ("a100", "b200", "l40s", "mi300x"):
            answer = capacity.fit(name, gpu=gpu, tensor_parallel_size=1)
            assert answer.fits or answer.reason
