"""What a vision tower is, and those of Qwen2-VL and 2.5, Pixtral, Gemma 4, Kimi, LLaVA and InternVL: counts and work.

Counts are those of the modules of transformers 5.23, to the parameter; bounds of image sizes are those of the published
preprocessors, quoted from memory: assumed, 2026-11.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from capacity.base.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionEncoder:
    """What a vision tower computes for one image: patches through its layers, then tokens through its projector.

    `patches_per_token` patches become one token of the prompt. A patch attends to the patches of its tile, or to
    those of the whole image where `tile_patches` is None. `projections` are (inputs, outputs) of the products that
    every token passes. `image_tokens` are those of every image, None where they depend on its size; then
    `cell_pixels` is the side of a token in pixels, None where they depend on more. `largest_image_tokens`: of
    the largest image that the model's own preprocessor passes on, by its published defaults. Of its layers
    `windowed_layers` attend within `window_patches`. An image is scaled into `pixels` (least and most of its area), or
    to at most `longest_side`; `row_tokens` are added for each of its rows. Patches of one image are padded to a
    multiple of `padded_patches`. `attention_size`: of queries, keys and values, where that is not `hidden_size`.
    `assumed`: what was taken for a tower that has no such layers. `row_name`: of its row in a step's table.
    """

    row_name: ClassVar[str] = "vision encoder"

    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    patch_inputs: int
    patches_per_token: int
    projections: tuple[tuple[int, int], ...]
    largest_image_tokens: int
    attention_size: int | None = None
    tile_patches: int | None = None
    padded_patches: int | None = None
    image_tokens: int | None = None
    cell_pixels: int | None = None
    gated: bool = False
    windowed_layers: int = 0
    window_patches: int = 0
    pixels: tuple[int, int] = (65_536, 16_777_216)
    longest_side: int | None = None
    row_tokens: int = 0
    assumed: str | None = None


def linear(inputs: int, outputs: int) -> int:
    """With a bias."""
    return inputs * outputs + outputs


def vit_layer(width: int, intermediate: int) -> int:
    """Four projections, two-matrix MLP, two layer norms, all with biases."""
    mlp = linear(width, intermediate) + linear(intermediate, width)
    return 4 * linear(width, width) + mlp + 4 * width


def _widths(tower: Fields) -> tuple[int, int, int, int]:
    """Hidden, intermediate, layers and heads, by whichever names the config has."""
    return (
        tower.count("hidden_size", "vt_hidden_size"),
        tower.count("intermediate_size", "vt_intermediate_size"),
        tower.count("depth", "num_hidden_layers", "vt_num_hidden_layers"),
        tower.count("num_heads", "num_attention_heads", "vt_num_attention_heads", default=16),
    )


# Qwen2.5-VL: gated layers, most of which attend within windows

QWEN2_5_PIXELS = (3_136, 12_845_056)


def _qwen2_5(_config: Fields, tower: Fields, _hidden_size: int) -> int:
    width, inner, layers, _ = _widths(tower)
    layer = 4 * linear(width, width) + 2 * linear(width, inner) + linear(inner, width) + 2 * width
    merged = width * tower.count("spatial_merge_size", default=2) ** 2
    merger = linear(merged, merged) + linear(merged, tower.count("out_hidden_size")) + width
    return layers * layer + _patch_inputs(tower) * width + merger


def _patch_inputs(tower: Fields) -> int:
    channels = tower.count("in_channels", "in_chans", "num_channels", default=3)
    return (
        channels * tower.count("temporal_patch_size", default=1) * tower.count("patch_size", default=14) ** 2
    )


def _qwen2_5_encoder(_config: Fields, tower: Fields, _hidden_size: int) -> VisionEncoder:
    width, inner, layers, heads = _widths(tower)
    merge, patch = tower.count("spatial_merge_size", default=2), tower.count("patch_size", default=14)
    merged, whole = width * merge**2, len(tower.items("fullatt_block_indexes") or [])
    return VisionEncoder(
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        intermediate_size=inner,
        patch_inputs=_patch_inputs(tower),
        patches_per_token=merge**2,
        projections=((merged, merged), (merged, tower.count("out_hidden_size"))),
        cell_pixels=patch * merge,
        largest_image_tokens=QWEN2_5_PIXELS[1] // (patch * merge) ** 2,
        gated=True,
        windowed_layers=layers - whole if whole else 0,
        window_patches=(tower.count("window_size", default=112) // patch) ** 2,
        pixels=QWEN2_5_PIXELS,
    )


# Pixtral in Mistral Small 3.1, Ministral 3 and their kin


def _pixtral(config: Fields, tower: Fields, hidden_size: int) -> int:
    width, inner, layers, _ = _widths(tower)
    merge = config.count("spatial_merge_size", default=2)
    layer = 4 * width**2 + 3 * width * inner + 2 * width
    projector = width + merge**2 * width**2 + width * hidden_size + hidden_size**2
    return layers * layer + _patch_inputs(tower) * width + width + projector


def _pixtral_encoder(config: Fields, tower: Fields, hidden_size: int) -> VisionEncoder:
    width, inner, layers, heads = _widths(tower)
    merge, patch = config.count("spatial_merge_size", default=2), tower.count("patch_size", default=14)
    side = tower.count("image_size", default=1540)
    rows = side // (patch * merge)
    return VisionEncoder(
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        intermediate_size=inner,
        patch_inputs=_patch_inputs(tower),
        patches_per_token=merge**2,
        projections=((merge**2 * width, width), (width, hidden_size), (hidden_size, hidden_size)),
        cell_pixels=patch * merge,
        largest_image_tokens=rows * (rows + 1),
        gated=True,
        longest_side=side,
        row_tokens=1,
    )


# Gemma 4: images keep their shape, and have at most so many tokens, nine patches each


def _gemma4(_config: Fields, tower: Fields, hidden_size: int) -> int:
    width, inner, layers, heads = _widths(tower)
    head = tower.count("head_dim", default=width // heads)
    layer = 4 * width * heads * head + 3 * width * inner + 4 * width + 2 * head
    positions = 2 * tower.count("position_embedding_size", default=10_240) * width
    return layers * layer + _patch_inputs(tower) * width + positions + width * hidden_size


def _gemma4_encoder(config: Fields, tower: Fields, hidden_size: int) -> VisionEncoder:
    width, inner, layers, heads = _widths(tower)
    tokens = config.count("vision_soft_tokens_per_image", default=280)
    return VisionEncoder(
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        intermediate_size=inner,
        patch_inputs=_patch_inputs(tower),
        patches_per_token=tower.count("pooling_kernel_size", default=3) ** 2,
        projections=((width, hidden_size),),
        image_tokens=tokens,
        largest_image_tokens=tokens,
        gated=True,
    )


# Kimi K2.5 and after: MoonViT

KIMI_PIXELS = (28 * 28, 16_384 * 14 * 14)  # at most 16,384 patches


def _kimi(_config: Fields, tower: Fields, hidden_size: int) -> int:
    width, inner, layers, _ = _widths(tower)
    patch, merged = tower.count("patch_size", default=14), 4 * width
    side = tower.count("init_pos_emb_height", default=64)
    embeddings = linear(3 * patch**2, width) + side * tower.count("init_pos_emb_width", default=64) * width
    projector = 2 * width + linear(merged, merged) + linear(merged, hidden_size)
    return layers * vit_layer(width, inner) + embeddings + 2 * width + projector


def _kimi_encoder(_config: Fields, tower: Fields, hidden_size: int) -> VisionEncoder:
    width, inner, layers, heads = _widths(tower)
    patch = tower.count("patch_size", default=14)
    return VisionEncoder(
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        intermediate_size=inner,
        patch_inputs=3 * patch**2,
        patches_per_token=4,
        projections=((4 * width, 4 * width), (4 * width, hidden_size)),
        cell_pixels=2 * patch,
        largest_image_tokens=4_096,
        pixels=KIMI_PIXELS,
    )


# Qwen2-VL: as the one after it, with plain layers, all of which attend to the whole image


def _qwen2_sizes(tower: Fields) -> tuple[int, int]:
    width = tower.count("embed_dim")
    return width, width * tower.count("mlp_ratio", default=4)


def _qwen2(_config: Fields, tower: Fields, _hidden_size: int) -> int:
    width, inner = _qwen2_sizes(tower)
    merged = width * tower.count("spatial_merge_size", default=2) ** 2
    merger = linear(merged, merged) + linear(merged, tower.count("hidden_size")) + 2 * width
    layers = tower.count("depth") * vit_layer(width, inner)
    return layers + _patch_inputs_in_time(tower) * width + merger


def _patch_inputs_in_time(tower: Fields) -> int:
    """Of two frames where the config does not say: an image stands in both."""
    return _patch_inputs(tower) * (1 if tower.has("temporal_patch_size") else 2)


def _qwen2_encoder(_config: Fields, tower: Fields, _hidden_size: int) -> VisionEncoder:
    width, inner = _qwen2_sizes(tower)
    merge, patch = tower.count("spatial_merge_size", default=2), tower.count("patch_size", default=14)
    merged = width * merge**2
    return VisionEncoder(
        num_layers=tower.count("depth"),
        hidden_size=width,
        num_heads=tower.count("num_heads", default=16),
        intermediate_size=inner,
        patch_inputs=_patch_inputs_in_time(tower),
        patches_per_token=merge**2,
        projections=((merged, merged), (merged, tower.count("hidden_size"))),
        cell_pixels=patch * merge,
        largest_image_tokens=QWEN2_5_PIXELS[1] // (patch * merge) ** 2,
        pixels=QWEN2_5_PIXELS,
    )


# LLaVA 1.5: CLIP at one size, two products. InternVL: tiles of one size, four patches a token


def _side(tower: Fields, key: str) -> int:
    """Of an image or patch, which some configs give as a pair."""
    pair = tower.items(key) if isinstance(tower.values.get(key), list) else None
    return Fields({key: pair[0]}, tower.origin, prefix=tower.prefix).count(key) if pair else tower.count(key)


def _patches(tower: Fields) -> int:
    return (_side(tower, "image_size") // _side(tower, "patch_size")) ** 2


def _clip(_config: Fields, tower: Fields, hidden_size: int) -> int:
    width, inner, layers, _ = _widths(tower)
    embeddings = _patch_inputs(tower) * width + width + (_patches(tower) + 1) * width
    projector = linear(width, hidden_size) + linear(hidden_size, hidden_size)
    return layers * vit_layer(width, inner) + embeddings + 4 * width + projector


def _clip_encoder(_config: Fields, tower: Fields, hidden_size: int) -> VisionEncoder:
    width, inner, layers, heads = _widths(tower)
    patches = _patches(tower)
    return VisionEncoder(
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        intermediate_size=inner,
        patch_inputs=_patch_inputs(tower),
        patches_per_token=1,
        projections=((width, hidden_size), (hidden_size, hidden_size)),
        image_tokens=patches,
        largest_image_tokens=patches,
    )


INTERNVL_TILES = 13  # 12 and the whole image once more: max_dynamic_patch, use_thumbnail
INTERNVL_MERGED = 4  # patches a token: downsample_ratio 0.5


def _internvl(_config: Fields, tower: Fields, hidden_size: int) -> int:
    width, inner, layers, _ = _widths(tower)
    inputs = 3 * _side(tower, "patch_size") ** 2
    embeddings = linear(inputs, width) + width + (_patches(tower) + 1) * width
    merged = INTERNVL_MERGED * width
    projector = 2 * merged + linear(merged, hidden_size) + linear(hidden_size, hidden_size)
    return layers * (vit_layer(width, inner) + 2 * width) + embeddings + projector


def _internvl_encoder(_config: Fields, tower: Fields, hidden_size: int) -> VisionEncoder:
    width, inner, layers, heads = _widths(tower)
    patches = _patches(tower)
    return VisionEncoder(
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        intermediate_size=inner,
        patch_inputs=3 * _side(tower, "patch_size") ** 2,
        patches_per_token=INTERNVL_MERGED,
        projections=((INTERNVL_MERGED * width, hidden_size), (hidden_size, hidden_size)),
        tile_patches=patches,
        largest_image_tokens=INTERNVL_TILES * patches // INTERNVL_MERGED,
    )


NEEDED = {  # fields without which a tower of these types is named, not counted
    "qwen2_vl": ("embed_dim", "depth"),
    "llava": ("intermediate_size", "image_size", "patch_size", "num_hidden_layers"),
    "internvl": ("intermediate_size", "image_size", "patch_size", "num_hidden_layers"),
    "internvl_chat": ("intermediate_size", "image_size", "patch_size", "num_hidden_layers"),
}
Formula = Callable[[Fields, Fields, int], int]
PARAMETERS: dict[str, Formula] = {
    "qwen2_5_vl": _qwen2_5,
    "qwen2_5_omni_thinker": _qwen2_5,
    "mistral3": _pixtral,
    "gemma4": _gemma4,
    "kimi_k25": _kimi,
    "qwen2_vl": _qwen2,
    "llava": _clip,
    "internvl": _internvl,
    "internvl_chat": _internvl,
}
ENCODERS: dict[str, Callable[[Fields, Fields, int], VisionEncoder]] = {
    "qwen2_5_vl": _qwen2_5_encoder,
    "qwen2_5_omni_thinker": _qwen2_5_encoder,
    "mistral3": _pixtral_encoder,
    "gemma4": _gemma4_encoder,
    "kimi_k25": _kimi_encoder,
    "qwen2_vl": _qwen2_encoder,
    "llava": _clip_encoder,
    "internvl": _internvl_encoder,
    "internvl_chat": _internvl_encoder,
}
