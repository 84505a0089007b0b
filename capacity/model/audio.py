"""Audio encoders of multimodal models: parameter counts, and tokens per second of speech.

Most are Whisper's encoder: two convolutions, the second of stride two, process 100 mel frames a second; then layers
process 30 s at a time, and shorter audio is padded. Qwen2.5-Omni's encoder processes chunks of 2 s. Gemma 3n's and
Phi-4's encoders are conformers. Parameter counts equal those of the modules of transformers 5.23.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from capacity.base.fields import Fields
from capacity.model.vision_towers import VisionEncoder, embedder_params, linear, vit_layer

CHUNK_S = 30  # chunk that Whisper's encoder processes
FRAMES_PER_S = 50  # frames through Whisper's layers
CONVOLUTION = 3  # frames per convolution window
LONGEST_S = 40 * 60  # of Voxtral's audio, by its model card: assumed, 2026-11


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioEncoder(VisionEncoder):
    """Shape of an audio encoder: the fields of a vision encoder, with frames (`frames_per_s`) in place of patches.

    `pads_tokens`: frames of the padding become tokens too. If `image_tokens` is set, every clip has that many tokens.
    """

    row_name: ClassVar[str] = "audio encoder"

    longest_s: float
    frames_per_s: float = FRAMES_PER_S
    pads_tokens: bool = False


def tokens_of_audio(encoder: AudioEncoder, seconds: float) -> int:
    """Return the number of prompt tokens of `seconds` of audio.

    If padding becomes tokens, the length is rounded up to chunks of 30 s. For Gemma 3n, the number is constant.
    """
    if encoder.image_tokens is not None:
        return encoder.image_tokens
    heard = math.ceil(seconds / CHUNK_S) * CHUNK_S if encoder.pads_tokens else seconds
    return max(math.ceil(heard * encoder.frames_per_s / encoder.patches_per_token), 1)


def audio_tower(config: Fields) -> tuple[int, AudioEncoder | None, tuple[str, ...]]:
    """Return the parameter count of encoder and projector, the encoder's shape, and uncounted config sections."""
    found = [key for key in ("audio_config", "speech_config") if config.has(key)]
    if not found:
        return 0, None, ()
    formula, tower = _FORMULAS.get(config.text("model_type")), config.section("audio_config")
    text = config.section("text_config") or config
    if formula is None or tower is None:
        return 0, None, tuple(found)
    params, encoder = formula(config, tower, text.count("hidden_size", default=4_096))
    return params, encoder, ()


def _sizes(tower: Fields) -> tuple[int, int, int, int, int, int]:
    """Return the encoder's width, feed-forward width, layers, heads, mel bins and positions.

    Sizes missing in the config are those of Whisper large v3.
    """
    return (
        tower.count("d_model", "hidden_size", default=1_280),
        tower.count("encoder_ffn_dim", "intermediate_size", default=5_120),
        tower.count("encoder_layers", "num_hidden_layers", default=32),
        tower.count("encoder_attention_heads", "num_attention_heads", default=20),
        tower.count("num_mel_bins", default=128),
        tower.count("max_source_positions", default=CHUNK_S * FRAMES_PER_S),
    )


def whisper_encoder_params(tower: Fields) -> int:
    """Return the parameter count of Whisper's encoder (636,968,960 in large v3), with convolutions and positions."""
    width, inner, layers, _, bins, positions = _sizes(tower)
    convolutions = linear(CONVOLUTION * bins, width) + linear(CONVOLUTION * width, width)
    return layers * (vit_layer(width, inner) - width) + convolutions + positions * width + 2 * width


def _whisper(
    tower: Fields,
    projections: tuple[tuple[int, int], ...],
    *,
    frames_per_token: int,
    vectors: int = 0,
    longest_s: float = CHUNK_S,
    pads: bool = False,
) -> tuple[int, AudioEncoder]:
    """Return the parameter count and the shape of Whisper's encoder with a projector.

    `projections`: (inputs, outputs) of the projector's matrices. `vectors`: its number of biases and norm values.
    """
    width, inner, layers, heads, bins, positions = _sizes(tower)
    encoder = AudioEncoder(
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        intermediate_size=inner,
        patch_inputs=CONVOLUTION * (width + 2 * bins),  # the first convolution runs twice per frame
        patches_per_token=frames_per_token,
        projections=projections,
        tile_patches=positions,
        padded_patches=positions,
        largest_image_tokens=math.ceil(longest_s * FRAMES_PER_S / frames_per_token),
        longest_s=longest_s,
        pads_tokens=pads,
    )
    products = sum(inputs * outputs for inputs, outputs in projections)
    return whisper_encoder_params(tower) + products + vectors, encoder


def _qwen2_audio(_config: Fields, tower: Fields, hidden_size: int) -> tuple[int, AudioEncoder]:
    """Return Qwen2-Audio's encoder, which pools frames in pairs and has one linear projector, for clips up to 30 s."""
    width = _sizes(tower)[0]
    return _whisper(tower, ((width, hidden_size),), frames_per_token=2, vectors=hidden_size)


def _voxtral(_config: Fields, tower: Fields, hidden_size: int) -> tuple[int, AudioEncoder]:
    """Return Voxtral's encoder: four frames form a token, and the projector has two matrices without bias."""
    products = ((4 * _sizes(tower)[0], hidden_size), (hidden_size, hidden_size))
    return _whisper(tower, products, frames_per_token=4, longest_s=LONGEST_S, pads=True)


def _ultravox(config: Fields, tower: Fields, hidden_size: int) -> tuple[int, AudioEncoder]:
    """Return Ultravox's encoder: eight frames form a token, and the projector has a gate and two norms."""
    factor, inner = config.count("stack_factor", default=8), config.count("hidden_size", default=4_096)
    stacked, middle = factor * _sizes(tower)[0], inner // 2
    norms = stacked + (middle if config.flag("projector_ln_mid") else hidden_size)
    products = ((stacked, inner), (middle, hidden_size))
    return _whisper(tower, products, frames_per_token=factor, vectors=norms)


MEL_FRAMES_PER_S = 100
OMNI_LONGEST_S = 300  # its preprocessor's chunk_length, quoted from memory: assumed, 2026-11
PHI4_FRAMES_PER_S = 12.5  # of 100, by time_reduction 8


def _qwen2_5_omni(_config: Fields, tower: Fields, hidden_size: int) -> tuple[int, AudioEncoder]:
    """Return Qwen2.5-Omni's encoder: Whisper's layers over 2 s at a time, without learned positions.

    Frames are pooled in pairs and pass one projector. Two more tokens mark the start and end of a clip.
    """
    width, _, _, _, _, positions = _sizes(tower)
    out = tower.count("output_dim", default=hidden_size)
    vectors = out + 2 * out - positions * width
    params, encoder = _whisper(
        tower, ((width, out),), frames_per_token=2, vectors=vectors, longest_s=OMNI_LONGEST_S
    )
    window = 2 * tower.count("n_window", default=100) * FRAMES_PER_S // MEL_FRAMES_PER_S
    return params, replace(encoder, tile_patches=window, padded_patches=None)


GEMMA3N_CLIP_S = 30
GEMMA3N_FRAMES_PER_S = 25  # of 100, after two strides of two


def _gemma3n(config: Fields, tower: Fields, hidden_size: int) -> tuple[int, AudioEncoder]:
    """Return Gemma 3n's encoder: a conformer over 40 ms frames; every fourth frame is a token.

    Clips are padded to a fixed length. The two feed-forwards, convolution and projections of a layer are timed as one
    feed-forward of equal work.
    """
    width = tower.count("hidden_size", default=1_536)
    layers = tower.count("conf_num_hidden_layers", default=12)
    heads = tower.count("conf_num_attention_heads", default=8)
    kernel = tower.count("conf_conv_kernel_size", default=5)
    first, second = tower.items("sscp_conv_channel_size") or (128, 32)
    bins = tower.count("input_feat_size", default=128) // 4  # after two strides of two
    products = 2 * (2 * 4 * width**2) + 5 * width**2 + 3 * width**2
    layer = products + kernel * width + width // heads + 9 * width
    subsampling = 9 * first + first + 9 * first * second + second + second * bins * width
    convolved = 9 * first * (4 + second) * bins  # products per frame, on half and a quarter of the bins
    tokens = config.count("audio_soft_tokens_per_image", default=188)
    seen = tower.count("conf_attention_chunk_size", default=12)
    seen += tower.count("conf_attention_context_left", default=13)
    encoder = AudioEncoder(
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        intermediate_size=(products - 4 * width**2) // (2 * width),
        patch_inputs=second * bins + convolved // width,
        patches_per_token=tower.count("conf_reduction_factor", default=4),
        projections=((width, hidden_size),),
        largest_image_tokens=tokens,
        image_tokens=tokens,
        tile_patches=seen - 1,
        longest_s=GEMMA3N_CLIP_S,
        frames_per_s=GEMMA3N_FRAMES_PER_S,
    )
    return layers * layer + subsampling + embedder_params(tower, 1_536, hidden_size), encoder


PHI4_LONGEST_S = 40 * 60  # its model card, quoted from memory: assumed, 2026-11


def _phi4(_config: Fields, tower: Fields, hidden_size: int) -> tuple[int, AudioEncoder]:
    """Return Phi-4's audio encoder: a conformer over 80 ms frames, each a token, with 466,432,256 parameters.

    A prompt uses one of the two projectors (speech only, or speech with images). The matrix multiplications of a
    layer are timed as one feed-forward of equal work.
    """
    width, inner = tower.count("hidden_size", default=1_024), tower.count("intermediate_size", default=1_536)
    layers, heads = tower.count("num_blocks", default=24), tower.count("num_attention_heads", default=16)
    channels, kernel = tower.count("nemo_conv_channels", default=1_024), tower.count("kernel_size", default=3)
    final, biases = (
        tower.count("nemo_final_size", default=10),
        2 * tower.count("bias_max_distance", default=1_000),
    )
    feed_forward = linear(width, 2 * inner) + linear(inner, width) + 2 * width
    convolution = 2 * width + linear(width, 2 * width) + 2 * width
    convolution += (kernel + 1) * width + 2 * linear(width, width)
    layer = 2 * feed_forward + 4 * linear(width, width) + convolution + 4 * width
    separable = 9 * channels + channels
    subsampling = 3 * separable + 2 * linear(channels, channels) + linear(channels * final, width)
    products = 6 * width * inner + 4 * width**2 + 4 * width**2
    encoder = AudioEncoder(
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        intermediate_size=(products - 4 * width**2) // (2 * width),
        patch_inputs=channels * final + 2 * (4 + 1) * final * channels**2 // width,
        patches_per_token=1,
        projections=((width, hidden_size), (hidden_size, hidden_size)),
        largest_image_tokens=math.ceil(PHI4_LONGEST_S * PHI4_FRAMES_PER_S),
        tile_patches=None,
        longest_s=PHI4_LONGEST_S,
        frames_per_s=PHI4_FRAMES_PER_S,
    )
    projectors = 2 * (linear(width, hidden_size) + linear(hidden_size, hidden_size))
    return layers * layer + subsampling + biases * heads + projectors, encoder


_FORMULAS: dict[str, Callable[[Fields, Fields, int], tuple[int, AudioEncoder]]] = {
    "qwen2_5_omni_thinker": _qwen2_5_omni,
    "gemma3n": _gemma3n,
    "phi4_multimodal": _phi4,
    "qwen2_audio": _qwen2_audio,
    "voxtral": _voxtral,
    "ultravox": _ultravox,
}
