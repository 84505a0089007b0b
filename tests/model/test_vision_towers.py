"""Vision towers: published parameter counts, and the tokens that an image becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.model import load_model
from capacity.model.vision import tokens_of_image

# model, parameters of the tower with its projector (transformers 5.23 modules on the meta device, 2026-11)
TOWERS = [
    ("qwen2.5-vl-7b", 676_550_144),
    ("qwen2.5-vl-72b", 704_573_696),
    ("mistral-small-3.1-24b", 438_958_080),
    ("gemma-4-26b-a4b", 572_792_112),
    ("gemma-4-31b", 575_741_232),
    ("kimi-k2.5", 471_143_920),
    ("qwen3-vl-30b-a3b", 538_631_408),
    ("qwen3-vl-235b-a22b", 576_388_336),
]


@pytest.mark.parametrize(("name", "params"), TOWERS)
def test_towers_count_as_the_reference_modules(name: str, params: int) -> None:
    model = load_model(name)
    assert (model.vision_params, model.uncounted) == (params, ())
    assert model.vision is not None


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen2.5-vl-7b", 8_292_166_656),
        ("qwen2.5-vl-72b", 73_410_777_344),
        ("mistral-small-3.1-24b", 24_011_361_280),
        ("qwen2-vl-7b", 8_291_375_616),
        ("llava-1.5-7b", 7_063_427_072),
        ("internvl3-8b", 7_944_373_760),
    ],
)
def test_with_the_text_they_are_the_published_totals(name: str, published: int) -> None:
    """Of the safetensors metadata that the models' pages state."""
    model = load_model(name)
    assert model.total_params + model.vision_params == published


@pytest.mark.parametrize(
    ("name", "width", "height", "tokens"),
    [
        ("qwen2.5-vl-7b", 1120, 560, 40 * 20),  # cells of 28
        ("qwen2.5-vl-7b", 28, 28, 4),  # scaled up to 3,136 pixels
        ("qwen3-vl-30b-a3b", 1280, 640, 40 * 20),  # cells of 32
        ("mistral-small-3.1-24b", 1540, 1540, 55 * 55 + 55),  # and a break after each row
        ("mistral-small-3.1-24b", 3080, 1540, 55 * 28 + 28),  # scaled down to 1,540 x 770
        ("gemma-4-31b", 4000, 3000, 280),
        ("kimi-k2.5", 1120, 560, 40 * 20),
        ("qwen2-vl-7b", 1120, 560, 40 * 20),
        ("llava-1.5-7b", 4000, 3000, 576),  # all are scaled to 336 x 336
    ],
)
def test_tokens_of_an_image(name: str, width: int, height: int, tokens: int) -> None:
    encoder = load_model(name).vision
    assert encoder is not None
    assert tokens_of_image(encoder, width, height) == tokens
    assert tokens <= encoder.largest_image_tokens


def test_an_image_is_never_larger_than_the_preprocessor_passes_on() -> None:
    for name, _ in TOWERS:
        encoder = load_model(name).vision
        assert encoder is not None
        largest = tokens_of_image(encoder, 99_999, 99_999)
        assert largest is not None
        assert largest <= encoder.largest_image_tokens, name


def test_most_layers_of_qwen2_5_attend_within_windows() -> None:
    encoder = load_model("qwen2.5-vl-7b").vision
    assert encoder is not None
    assert (encoder.num_layers, encoder.windowed_layers, encoder.window_patches) == (32, 28, 64)
    assert encoder.gated
    assert replace(encoder, windowed_layers=0) != encoder
