"""Tokens of an image: as the traffic says, as the model has them, or by the image's size."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic
from capacity.deployment.images import add_encoder_tokens
from capacity.model import load_model
from capacity.model.vision import tokens_of_image

WORDS: dict[str, Any] = {
    "gpu": "h100",
    "input_len": 300,
    "output_len": 20,
    "random_range_ratio": 0.0,
    "num_prompts": 40,
    "request_rate": 5.0,
}


@pytest.mark.parametrize(
    ("model", "words", "tokens"),
    [
        ("gemma-3-4b", {}, 256),
        ("gemma-3-4b", {"image_size": "1280x720"}, 256),
        ("qwen3.5-35b-a3b", {"image_size": "1280x720"}, 40 * 22),
        ("llama-4-scout", {"image_tokens": 720}, 720),
    ],
)
def test_an_images_tokens(model: str, words: dict[str, Any], tokens: int) -> None:
    assert add_encoder_tokens(Traffic(images_per_prompt=1, **words), model).image_tokens == tokens


def test_without_images_nothing_is_looked_up() -> None:
    traffic = Traffic(input_len=10, output_len=10)
    assert add_encoder_tokens(traffic, "no such model") is traffic


def test_sizes_are_brought_within_the_models_bounds() -> None:
    """32 pixels a token: 65,536 of area are 64 tokens, 16,777,216 are 16,384."""
    encoder = load_model("qwen3.5-35b-a3b").vision
    assert encoder is not None
    assert encoder.largest_image_tokens == 16_384
    assert tokens_of_image(encoder, 10, 10) == 64
    assert tokens_of_image(encoder, 8192, 8192) == 16_384
    assert tokens_of_image(encoder, 64, 4096) == 2 * 128


@pytest.mark.parametrize(
    ("model", "words", "why"),
    [
        ("llama-3.1-8b", {"image_tokens": 300}, "llama-3.1-8b has no supported vision encoder"),
        ("llama-3.2-11b-vision", {"image_tokens": 9}, "11b-vision has no supported vision encoder"),
        ("gemma-3n-e4b", {"image_tokens": 300}, "exceeds the limit of gemma-3n-e4b, 256 tokens per image"),
        ("qwen3.5-35b-a3b", {}, "add --image-tokens or --image-size"),
        ("llama-4-scout", {"image_size": "64x64"}, "use --image-tokens"),
        ("gemma-3-4b", {"image_size": "big"}, "WIDTHxHEIGHT"),
        ("gemma-3-4b", {"image_size": "64x64", "image_tokens": 9}, "use one of them"),
        (
            "gemma-3-4b",
            {"image_tokens": 257},
            "--image-tokens 257 exceeds the limit of gemma-3-4b, 256 tokens per image",
        ),
    ],
)
def test_what_is_not_known_is_refused(model: str, words: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        add_encoder_tokens(Traffic(images_per_prompt=1, **words), model)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            {"engine": "sglang"},
            "only the schedulers vllm-v1 and vllm-v1-async and chunked support images, not sglang",
        ),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
        ({"turns": 2}, "without shared content"),
        ({"random_prefix_len": 100}, "without shared content"),
        ({"num_samples": 2}, "without shared content"),
        ({"images_per_prompt": 0, "image_tokens": 5}, "has no effect without --images-per-prompt"),
        ({"images_per_prompt": 600, "max_model_len": 4096}, "exceeds max_model_len 4096"),
    ],
)
def test_a_simulation_refuses_what_is_not_modelled(words: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        capacity.simulate("gemma-3-4b", **(WORDS | {"images_per_prompt": 1} | words))


def test_prompts_have_their_images_tokens_and_wait_for_the_encoder() -> None:
    """Two images of 256 tokens before 300 of text: as many as a text of 812, and later by the encoder's time."""
    pictured = capacity.simulate("gemma-3-4b", **WORDS, images_per_prompt=2).to_dict()
    written = capacity.simulate("gemma-3-4b", **(WORDS | {"input_len": 812})).to_dict()
    assert pictured["total_input_tokens"] == written["total_input_tokens"] == 40 * 812
    assert pictured["total_output_tokens"] == written["total_output_tokens"]
    assert written["mean_ttft_ms"] + 15 < pictured["mean_ttft_ms"] < written["mean_ttft_ms"] + 60


@pytest.mark.parametrize(
    ("model", "seconds", "tokens"), [("voxtral-mini-3b", 45, 750), ("qwen2-audio-7b", 10, 250)]
)
def test_a_clip_has_the_models_tokens(model: str, seconds: float, tokens: int) -> None:
    traffic = add_encoder_tokens(Traffic(audio_seconds=seconds), model)
    assert (traffic.images_per_prompt, traffic.audio_tokens) == (0, tokens)
    assert add_encoder_tokens(traffic, model) == traffic


def test_whispers_prompt_is_the_audio() -> None:
    assert add_encoder_tokens(Traffic(audio_seconds=7), "whisper").input_len == 1_500
    with pytest.raises(InvalidInput, match="remove --input-len 50"):
        add_encoder_tokens(Traffic(audio_seconds=7, input_len=50), "whisper")


@pytest.mark.parametrize(
    ("model", "words", "why"),
    [
        ("llama-3.1-8b", {}, "no supported audio encoder"),
        ("gemma-3-4b", {}, "no supported audio encoder"),
        ("qwen2-audio-7b", {"audio_seconds": 31}, "30 s per clip"),
        ("whisper", {"audio_seconds": 31}, "30 s per clip"),
        (
            "voxtral-mini-3b",
            {"images_per_prompt": 2, "image_tokens": 9},
            "no supported vision encoder",
        ),
    ],
)
def test_audio_that_cannot_be_is_refused(model: str, words: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        add_encoder_tokens(Traffic(**({"audio_seconds": 3} | words)), model)


def test_shorter_audio_takes_the_encoder_as_long_as_30_seconds() -> None:
    """It pads: Qwen2-Audio's row of 5 and of 30 s is the same time; of Voxtral's 31 s twice that of 30."""
    load: dict[str, Any] = {"gpu": "h100", "input_len": 20, "output_len": 20, "batch_size": 1}

    def encoder_s(model: str, seconds: float) -> float:
        rows = capacity.estimate(model, audio_seconds=seconds, **load).breakdown.prefill
        (row,) = (row for row in rows if row.name == "audio encoder")
        return row.seconds

    assert encoder_s("qwen2-audio-7b", 5) == pytest.approx(encoder_s("qwen2-audio-7b", 30), rel=0.01)
    assert encoder_s("ultravox", 5) == pytest.approx(encoder_s("ultravox", 30), rel=0.01)
    assert encoder_s("voxtral-mini-3b", 60) > 1.6 * encoder_s("voxtral-mini-3b", 30)
    assert encoder_s("voxtral-mini-3b", 31) == pytest.approx(encoder_s("voxtral-mini-3b", 60), rel=1e-9)


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        (
            "gemma-3-4b",
            {"images_per_prompt": 1},
            "--images-per-prompt cannot be combined with --language-model-only",
        ),
        (
            "qwen2-audio-7b",
            {"audio_seconds": 5.0},
            "--audio-seconds cannot be combined with --language-model-only",
        ),
    ],
)
def test_without_towers_nothing_but_text_is_taken(model: str, words: dict[str, Any], said: str) -> None:
    asked = {**WORDS, **words, "language_model_only": True}
    with pytest.raises(InvalidInput, match=said):
        capacity.simulate(model, **asked)
    with pytest.raises(InvalidInput, match=said):
        capacity.plan(
            model,
            gpus="h100",
            objective="gpus",
            slo="ttft:p95:1s",
            **{name: value for name, value in asked.items() if name != "gpu"},
        )
