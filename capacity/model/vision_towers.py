"""What a vision tower computes, and what its parts count."""

from dataclasses import dataclass
from typing import ClassVar


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
