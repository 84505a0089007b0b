"""Vision towers, counted apart from the language model: exact where the tower's formula is known."""

from __future__ import annotations

import math
from collections.abc import Callable

from capacity.base.fields import Fields
from capacity.model import more_towers, vision_towers
from capacity.model.vision_towers import VisionEncoder, linear, vit_layer


def multimodal_fields(outer: Fields) -> Fields:
    """The object that has the towers: the thinker's of a model that also speaks."""
    return outer.section("thinker_config") or outer


def speech_parts(outer: Fields) -> tuple[str, ...]:
    """What turns tokens into speech, which is not counted."""
    return tuple(key for key in ("talker_config", "token2wav_config", "code2wav_config") if outer.has(key))


def vision_tower(config: Fields) -> tuple[int, tuple[str, ...]]:
    """Parameters of the vision tower with its projector, and what of the config is not counted.

    Known: SigLIP in Gemma 3, Llama 4's, Qwen2-VL's to 3.5's, Gemma 4's, Pixtral, Kimi's, LLaVA's, InternVL's, Llama
    3.2's, Gemma 3n's, Phi-4's. Another is named, not guessed.
    """
    tower = config.section("vision_config")
    if tower is None:
        return 0, ()
    if isinstance(tower.values.get("hidden_size"), int):  # some towers have a list
        tower.count("hidden_size")
    text = _text(config)
    formula = _FORMULAS.get(config.text("model_type"))
    if formula is None or not _readable(config, tower):
        return 0, ("vision_config",)
    return formula(config, tower, text.count("hidden_size", default=4_096)), ()


_KINDS = {  # by a field of the tower
    "llava": ("model_type", "clip_vision_model"),
    "gemma3n": ("architecture", "mobilenetv5_300m_enc"),
}


def _readable(config: Fields, tower: Fields) -> bool:
    """Whether the tower has what its formula needs; LLaVA's may be another than CLIP, Gemma 3n's than MobileNet."""
    needed = vision_towers.NEEDED.get(config.text("model_type"), ())
    key, kind = _KINDS.get(config.text("model_type"), ("", ""))
    return (
        tower.has("hidden_size", "vt_hidden_size") and all(map(tower.has, needed)) and tower.text(key) == kind
    )


def _text(config: Fields) -> Fields:
    """The language model's own object, or the whole where its fields stand beside the tower's (Qwen2-VL)."""
    return config.section("text_config", "llm_config") or config


def _gemma3(_config: Fields, tower: Fields, hidden_size: int) -> int:
    """SigLIP and the multimodal projector: 423,060,336 in gemma-3-27b, as published."""
    width, patch = tower.count("hidden_size"), tower.count("patch_size")
    positions = (tower.count("image_size") // patch) ** 2
    layers = tower.count("num_hidden_layers") * vit_layer(width, tower.count("intermediate_size"))
    embeddings = linear(3 * patch**2, width) + positions * width
    return layers + embeddings + 2 * width + width * hidden_size + width


def _llama4(_config: Fields, tower: Fields, hidden_size: int) -> int:
    """ViT with a class token, pixel-shuffle adapter and projector: 871,932,416 in Llama 4, as published."""
    width, patch, intermediate = (tower.count(k) for k in ("hidden_size", "patch_size", "intermediate_size"))
    projected_in, projected = tower.count("projector_input_dim"), tower.count("projector_output_dim")
    positions = (tower.count("image_size") // patch) ** 2 + 1
    layers = tower.count("num_hidden_layers") * vit_layer(width, intermediate)
    embeddings = 3 * patch**2 * width + width + positions * width + 4 * width
    adapter = intermediate * projected_in + projected_in * projected
    return layers + embeddings + adapter + projected * hidden_size


def _qwen3_vl(_config: Fields, tower: Fields, _hidden_size: int) -> int:
    """3-D patches, learned positions, merger and one more merger for each deepstack layer."""
    width, patch = tower.count("hidden_size"), tower.count("patch_size")
    merged = width * tower.count("spatial_merge_size") ** 2
    patch_inputs = (
        tower.count("in_channels", default=3) * tower.count("temporal_patch_size", default=2) * patch**2
    )
    out = tower.count("out_hidden_size")
    mlp = linear(merged, merged) + linear(merged, out)
    layers = tower.count("depth") * vit_layer(width, tower.count("intermediate_size"))
    embeddings = linear(patch_inputs, width) + tower.count("num_position_embeddings") * width
    deepstack = len(tower.items("deepstack_visual_indexes") or []) * (mlp + 2 * merged)
    return layers + embeddings + mlp + 2 * width + deepstack


_FORMULAS: dict[str, vision_towers.Formula] = {
    "gemma3": _gemma3,
    "llama4": _llama4,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
    **vision_towers.PARAMETERS,
    **more_towers.PARAMETERS,
}


def vision_encoder(config: Fields) -> VisionEncoder | None:
    """What the tower computes for an image; None where the model has none, or its formula is not known."""
    tower = config.section("vision_config")
    formula = _ENCODERS.get(config.text("model_type"))
    if tower is None or formula is None or not _readable(config, tower):
        return None
    return formula(config, tower, _text(config).count("hidden_size", default=4_096))


def _heads(tower: Fields) -> int:
    """Heads of the tower: 16 in all those known here, whose configs leave out what is transformers' default."""
    return tower.count("num_attention_heads", "num_heads", default=16)


def _gemma3_encoder(config: Fields, tower: Fields, hidden_size: int) -> VisionEncoder:
    """Every image is scaled to 896 x 896, 4,096 patches, and pooled to 256 tokens."""
    width, patch = tower.count("hidden_size"), tower.count("patch_size")
    patches, tokens = (
        (tower.count("image_size") // patch) ** 2,
        config.count("mm_tokens_per_image", default=256),
    )
    return VisionEncoder(
        num_layers=tower.count("num_hidden_layers"),
        hidden_size=width,
        num_heads=_heads(tower),
        intermediate_size=tower.count("intermediate_size"),
        patch_inputs=3 * patch**2,
        patches_per_token=patches // tokens,
        projections=((width, hidden_size),),
        image_tokens=tokens,
        largest_image_tokens=tokens,
    )


# of preprocessor_config.json, quoted from memory: assumed
LLAMA4_TILES = 17  # 16 and the whole image once more: max_patches
QWEN3_VL_PIXELS = (65_536, 16_777_216)  # shortest_edge, longest_edge; the default of `pixels`


def _llama4_encoder(_config: Fields, tower: Fields, hidden_size: int) -> VisionEncoder:
    """Tiles of 576 patches, which attend within; four patches make a token. Left out: each tile's class token."""
    width, patch, intermediate = (tower.count(k) for k in ("hidden_size", "patch_size", "intermediate_size"))
    projected_in, projected = tower.count("projector_input_dim"), tower.count("projector_output_dim")
    patches, merged = (tower.count("image_size") // patch) ** 2, max(intermediate // width, 1)
    return VisionEncoder(
        num_layers=tower.count("num_hidden_layers"),
        hidden_size=width,
        num_heads=_heads(tower),
        intermediate_size=intermediate,
        patch_inputs=3 * patch**2,
        patches_per_token=merged,
        projections=(
            (intermediate, projected_in),
            (projected_in, projected),
            (projected, hidden_size),
        ),
        tile_patches=patches,
        largest_image_tokens=LLAMA4_TILES * patches // merged,
    )


def _qwen3_vl_encoder(_config: Fields, tower: Fields, _hidden_size: int) -> VisionEncoder:
    """Patches of the image's own size, all of which attend to each other; 2 x 2 of them are merged to a token."""
    width, patch, merge = (
        tower.count("hidden_size"),
        tower.count("patch_size"),
        tower.count("spatial_merge_size"),
    )
    merged, out = width * merge**2, tower.count("out_hidden_size")
    mergers = 1 + len(tower.items("deepstack_visual_indexes") or [])
    return VisionEncoder(
        num_layers=tower.count("depth"),
        hidden_size=width,
        num_heads=_heads(tower),
        intermediate_size=tower.count("intermediate_size"),
        patch_inputs=tower.count("in_channels", default=3)
        * tower.count("temporal_patch_size", default=2)
        * patch**2,
        patches_per_token=merge**2,
        projections=((merged, merged), (merged, out)) * mergers,
        cell_pixels=patch * merge,
        largest_image_tokens=QWEN3_VL_PIXELS[1] // (patch * merge) ** 2,
    )


_ENCODERS: dict[str, Callable[[Fields, Fields, int], VisionEncoder]] = {
    "gemma3": _gemma3_encoder,
    "llama4": _llama4_encoder,
    "qwen3_vl": _qwen3_vl_encoder,
    "qwen3_vl_moe": _qwen3_vl_encoder,
    "qwen3_5": _qwen3_vl_encoder,
    "qwen3_5_moe": _qwen3_vl_encoder,
    **vision_towers.ENCODERS,
    **more_towers.ENCODERS,
}


def tokens_of_image(encoder: VisionEncoder, width: int, height: int) -> int | None:
    """Tokens of an image of so many pixels; None where this is not known.

    Qwen's sides are rounded to whole tokens, and the image scaled into the bounds of its area.
    Source: transformers, qwen2_vl `smart_resize`.
    """
    if encoder.image_tokens is not None or encoder.cell_pixels is None:
        return encoder.image_tokens
    if encoder.longest_side is not None:
        return _within_side(encoder, encoder.cell_pixels, width, height)
    cell, (least, most) = encoder.cell_pixels, encoder.pixels
    across, down = max(round(width / cell), 1), max(round(height / cell), 1)
    area = across * down * cell**2
    if area > most:
        scale = math.sqrt(width * height / most)
        across, down = (max(int(side / scale / cell), 1) for side in (width, height))
    elif area < least:
        scale = math.sqrt(least / (width * height))
        across, down = (math.ceil(side * scale / cell) for side in (width, height))
    return across * down


def _within_side(encoder: VisionEncoder, cell: int, width: int, height: int) -> int:
    """Pixtral's: scaled down until the longer side fits, then cut into whole tokens, with one more for each row."""
    assert encoder.longest_side is not None
    scale = max(1.0, max(width, height) / encoder.longest_side)
    across, down = (math.ceil(int(side / scale) / cell) for side in (width, height))
    return across * down + down * encoder.row_tokens
