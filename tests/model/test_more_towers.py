"""Towers with modules of their own, counted as transformers 5.23 builds them from the same configs."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.model import ModelSpec, from_hf_config, load_model

TEXT: dict[str, Any] = {
    "model_type": "qwen2_5_omni_text",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
}


def omni(width: int) -> ModelSpec:
    """Qwen2.5-Omni by its own defaults, but for the width of its vision tower."""
    vision = {"hidden_size": width, "depth": 32, "num_heads": 16, "intermediate_size": 3420}
    vision |= {"in_channels": 3, "temporal_patch_size": 2, "out_hidden_size": 3584, "patch_size": 14}
    thinker = {"model_type": "qwen2_5_omni_thinker", "text_config": TEXT, "vision_config": vision}
    return from_hf_config(
        {"model_type": "qwen2_5_omni", "thinker_config": thinker | {"audio_config": {"output_dim": 3584}}},
        name="omni",
    )


@pytest.mark.parametrize(
    ("name", "vision", "audio"),
    [
        ("phi-4-multimodal", 441_550_016, 466_432_256),
        ("gemma-3n-e4b", 294_126_912 + 4_460_544, 681_348_640 + 3_345_408),
    ],
)
def test_towers_count_as_the_reference_modules(name: str, vision: int, audio: int) -> None:
    model = load_model(name)
    assert (model.vision_params, model.audio_params, model.uncounted) == (vision, audio, ())


def test_an_omni_models_towers_count_as_the_reference_modules() -> None:
    assert (omni(3584).vision_params, omni(3584).audio_params) == (3_083_025_152, 639_647_232)
    assert omni(1280).vision_params == load_model("qwen2.5-vl-7b").vision_params


def test_llama_3_2_vision_is_its_published_total() -> None:
    """10,670,220,835 of the safetensors metadata that its page states; 448 pixels would be 27,279,360 fewer."""
    model = load_model("llama-3.2-11b-vision")
    assert model.total_params + model.vision_params == 10_670_220_835


def test_an_architecture_that_is_not_counted_is_named() -> None:
    text = {**TEXT, "model_type": "qwen2"}
    tower = {"architecture": "vit_b", "hidden_size": 64}
    config = {"model_type": "gemma3n", "text_config": text, "vision_config": tower}
    assert from_hf_config(config, name="other").uncounted == ("vision_config",)


def test_attention_may_be_wider_than_the_layers() -> None:
    """Kimi K3's: 12 heads of 128 over a width of 1,024."""
    tower = load_model("kimi-k3").vision
    assert tower is not None
    assert (tower.hidden_size, tower.attention_size, tower.num_heads) == (1024, 1536, 12)


@pytest.mark.parametrize("name", ["gemma-3n-e4b", "phi-4-multimodal"])
def test_a_conformers_work_is_that_of_its_parameters(name: str) -> None:
    """Each frame passes every weight of the layers once; the rest are convolutions before them and projectors."""
    model = load_model(name)
    encoder = model.audio
    assert encoder is not None
    width = encoder.hidden_size
    products = encoder.num_layers * (4 * width**2 + 2 * width * encoder.intermediate_size)
    assert 0.9 * model.audio_params < products < model.audio_params


# Blocks of MobileNetV5 300M as published: edge residuals (stride, channels), inverted residuals (kernels of both
# depthwise convolutions, stride, expansion, channels), attention (heads, stride of keys, head size)
MOBILENET: tuple[tuple[int, ...], ...] = (
    (2, 128), *[(1, 128)] * 2,
    (3, 5, 2, 6, 256), *[(5, 0, 1, 4, 256), (3, 0, 1, 4, 256)] * 2,
    (5, 5, 2, 6, 640), *[(5, 0, 1, 4, 640)] * 7, (0, 0, 1, 1, 640), *[(12, 2, 64), (0, 0, 1, 2, 640)] * 14,
    (5, 5, 2, 6, 1280), *[(16, 1, 96), (0, 0, 1, 2, 1280)] * 19,
)  # fmt: skip


def counted_mobilenet() -> tuple[int, int, int]:
    """Parameters, and multiply-adds of the products and of the attention, of 768 x 768 pixels."""
    side, width = 384, 64
    params, products, attention = 27 * width + 2 * width, 27 * width * side**2, 0
    for block in MOBILENET:
        if len(block) == 2:
            side, (stride, out), inner = side // block[0], block, 4 * width
            params += inner * (9 * width + out) + inner + out
            products += inner * (9 * width + out) * side**2
        elif len(block) == 5:
            first, second, stride, expansion, out = block
            inner = expansion * width
            params += (first**2 * width + width if first else 0) + (
                second**2 * inner + inner if second else 0
            )
            params += inner * (width + out) + inner + 2 * out
            products += width * inner * side**2
            side //= stride
            products += inner * out * side**2
        else:
            heads, stride, size = block
            out, keys = width, side // stride
            params += 2 * width * (heads + 1) * size + 2 * width + (20 * width if stride > 1 else 0)
            products += 2 * width * size * (heads * side**2 + keys**2)
            attention += 2 * side**2 * keys**2 * heads * size
        width = out
    fused = 640 + 1280
    params += 2 * fused * (fused + 2048) + 2 * fused + 2 * 2048
    return params, products + 2 * fused * (fused + 2048) * 48**2, attention


def test_a_convolutional_tower_is_timed_by_the_work_of_its_blocks() -> None:
    """The published blocks have the published parameters, and the layers taken for them as many multiply-adds."""
    model = load_model("gemma-3n-e4b")
    params, products, attention = counted_mobilenet()
    assert params == 294_126_912
    tower = model.vision
    assert tower is not None
    assert tower.tile_patches is not None
    assert tower.attention_size is not None
    width, inner, patches = tower.hidden_size, tower.attention_size, 256 * tower.patches_per_token
    layer = width * (4 * inner + 2 * tower.intermediate_size)
    assert patches * (tower.num_layers * layer + tower.patch_inputs * width) == pytest.approx(
        products, rel=1e-5
    )
    assert tower.num_layers * 2 * patches * tower.tile_patches * inner == pytest.approx(attention, rel=1e-3)
    assert tower.assumed
