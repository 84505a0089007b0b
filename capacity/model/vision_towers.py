"""Shape of a vision encoder, and functions for the towers that `vision_towers.toml` cannot describe.

Parameter counts equal those of the modules of transformers 5.23 for Llama 3.2, Gemma 3n and Phi-4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from capacity.base.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionEncoder:
    """Shape of a vision tower: its layers process patches, then its projector processes tokens.

    `patches_per_token` patches become one token of the prompt. A patch attends to the patches of its tile, or of the
    whole image if `tile_patches` is None. `attention_size`: width of queries, keys and values if it differs from
    `hidden_size`. In `windowed_layers` of the layers, attention is limited to `window_patches`. `projections`: (inputs,
    outputs) of the projector's matrices. `image_tokens`: tokens of every image; None if they depend on the size of the
    image. In that case, a token covers a square of side `cell_pixels` (None: the tokens cannot be computed from the
    size). `largest_image_tokens`: tokens of the largest image after the model's preprocessor with its published
    defaults. `video_images`: number of largest images that vLLM's memory profile counts for the longest video; 0: it
    profiles images only. `pixels`: minimum and maximum area in pixels to which an image is scaled; `longest_side`:
    maximum number of pixels of its longer side. `row_tokens`: tokens added for each row of an image. `padded_patches`:
    an image's patches are padded to a multiple of this. `assumed`: the approximation, if the tower's layers are not a
    transformer's. `row_name`: name of the tower in tables of step times.
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
    video_images: int = 0
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
    """Return the number of parameters of a linear layer with a bias."""
    return inputs * outputs + outputs


def vit_layer(width: int, intermediate: int) -> int:
    """Return the parameters of a ViT layer: four projections, two MLP matrices and two norms, all with biases."""
    mlp = linear(width, intermediate) + linear(intermediate, width)
    return 4 * linear(width, width) + mlp + 4 * width


ASPECT_RATIOS = 9  # 8 arrangements of up to four tiles, and one for no tiles


def _mllama(_config: Fields, tower: Fields, hidden_size: int) -> tuple[int, None]:
    """Return the parameters of Llama 3.2's vision tower, and None because its shape is not modelled.

    It has local layers, gated global layers, and positions of every patch for each arrangement of tiles: 895,028,755
    parameters in Llama-3.2-11B-Vision-Instruct, whose safetensors index has 10,670,220,835 in total.
    """
    width, inner = tower.count("hidden_size"), tower.count("intermediate_size")
    tiles, patch = tower.count("max_num_tiles", default=4), tower.count("patch_size", default=14)
    layer = vit_layer(width, inner) - 4 * width  # no biases in its attention
    gated = tower.count("num_global_layers", default=8)
    layers = (tower.count("num_hidden_layers") + gated) * layer + 2 * gated
    patches = (tower.count("image_size", default=448) // patch) ** 2 + 1
    positions = patches * width + ASPECT_RATIOS * tiles * patches * width + 1
    of_tiles = 2 * (ASPECT_RATIOS * tiles * width + 1)
    embeddings = tower.count("num_channels", default=3) * patch**2 * width + width
    projector = linear(tower.count("vision_output_dim", default=7_680), hidden_size)
    return layers + positions + of_tiles + embeddings + 4 * width + projector, None


def _gemma3n(config: Fields, tower: Fields, hidden_size: int) -> tuple[int, VisionEncoder] | None:
    """Return Gemma 3n's tower: timm's MobileNetV5 300M and an embedder that makes 256 tokens; None: other towers."""
    if tower.text("architecture") != "mobilenetv5_300m_enc":
        return None
    return 294_126_912 + embedder_params(tower, 2_048, hidden_size), _mobilenet(config, tower, hidden_size)


# Multiply-adds of one image of 768 x 768 pixels in MobileNetV5 300M (84 blocks, 33 with attention), by the published
# definition of its blocks (timm, keras-hub: convert_mobilenetv5_checkpoints.py, 2026-11), which have the 294,126,912
# parameters above. Its depthwise convolutions (0.97e9) are not included.
MOBILENET_PRODUCTS, MOBILENET_ATTENTION = 386_867_920_896, 47_903_145_984
MOBILENET_PATCHES = 48**2  # its third stage; the fourth is resized to it before pooling
MOBILENET_WIDTH, MOBILENET_HEADS, MOBILENET_HEAD_SIZE, MOBILENET_ATTENDING = 640, 12, 64, 33


def _mobilenet(config: Fields, tower: Fields, hidden_size: int) -> VisionEncoder:
    """Return MobileNetV5's shape as transformer layers of equal work, with the width of its third stage."""
    layers, width, inner = MOBILENET_ATTENDING, MOBILENET_WIDTH, MOBILENET_HEADS * MOBILENET_HEAD_SIZE
    tokens = config.count("vision_soft_tokens_per_image", default=256)
    products = MOBILENET_PRODUCTS // MOBILENET_PATCHES - 4 * layers * width * inner
    wide, left = divmod(products, 2 * layers * width)
    return VisionEncoder(
        num_layers=layers,
        hidden_size=width,
        attention_size=inner,
        num_heads=MOBILENET_HEADS,
        intermediate_size=wide,
        patch_inputs=left // width,
        patches_per_token=max(MOBILENET_PATCHES // tokens, 1),
        projections=((tower.count("hidden_size", default=2_048), hidden_size),),
        tile_patches=round(MOBILENET_ATTENTION / (2 * layers * MOBILENET_PATCHES * inner)),
        image_tokens=tokens,
        largest_image_tokens=tokens,
        assumed="a convolutional network, timed as matrix multiplications of equal work",
    )


def embedder_params(tower: Fields, default_width: int, hidden_size: int) -> int:
    """Return the parameters of Gemma 3n's embedder: embeddings of its own tokens, two norms, and a projection."""
    width = tower.count("hidden_size", default=default_width)
    return tower.count("vocab_size", default=128) * width + 2 * width + width * hidden_size


PHI4_CROPS = 36  # dynamic_hd of its preprocessor, quoted from memory: assumed, 2026-11


def _phi4(_config: Fields, tower: Fields, hidden_size: int) -> tuple[int, VisionEncoder]:
    """Return Phi-4's vision tower, a SigLIP encoder and a projector of two matrices: 441,550,016 parameters.

    They include a pooling head, which is in the checkpoint but never executed. Images are cut into crops of one size.
    All layers but the last are used; patches are pooled by 2 x 2, and each row adds an end token. The tokens of an
    image must be given with --image-tokens.
    """
    width, inner = tower.count("hidden_size", default=1_152), tower.count("intermediate_size", default=4_304)
    layers, patch = tower.count("num_hidden_layers", default=27), tower.count("patch_size", default=14)
    side = tower.count("image_size", default=448) // patch
    head = vit_layer(width, inner) + width - 2 * width  # a layer with its probe, and one norm less
    embeddings = linear(3 * patch**2, width) + side**2 * width + 2 * width
    projector = linear(width, hidden_size) + linear(hidden_size, hidden_size) + 2 * width
    encoder = VisionEncoder(
        num_layers=layers - 1,
        hidden_size=width,
        num_heads=tower.count("num_attention_heads", default=16),
        intermediate_size=inner,
        patch_inputs=3 * patch**2,
        patches_per_token=4,
        projections=((width, hidden_size), (hidden_size, hidden_size)),
        tile_patches=side**2,
        largest_image_tokens=(PHI4_CROPS + 1) * (side // 2) * (side // 2 + 1),
    )
    return layers * vit_layer(width, inner) + head + embeddings + projector, encoder


Towers = Callable[[Fields, Fields, int], tuple[int, VisionEncoder | None] | None]
TOWERS: dict[str, Towers] = {"mllama": _mllama, "gemma3n": _gemma3n, "phi4_multimodal": _phi4}
