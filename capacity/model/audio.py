"""Audio encoders before a decoder: counts, and what a second of speech becomes.

All known here are Whisper's encoder: 100 mel frames a second through two convolutions, the second of stride two, and
layers over 30 s at a time, which shorter audio is padded to. Counts are those of the modules of transformers 5.23.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from capacity.base.fields import Fields
from capacity.model.vision_towers import VisionEncoder, linear, vit_layer

CHUNK_S = 30  # that Whisper's encoder hears at a time
FRAMES_PER_S = 50  # through its layers
CONVOLUTION = 3  # frames that each convolution sees
LONGEST_S = 40 * 60  # of Voxtral's audio, as its model card says: assumed, 2026-11


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioEncoder(VisionEncoder):
    """What an audio encoder computes: frames are its patches. `pads_tokens`: the padding becomes tokens too."""

    row_name: ClassVar[str] = "audio encoder"

    longest_s: float
    pads_tokens: bool = False


def tokens_of_audio(encoder: AudioEncoder, seconds: float) -> int:
    """Tokens of so many seconds; of whole chunks where the padding becomes tokens."""
    heard = math.ceil(seconds / CHUNK_S) * CHUNK_S if encoder.pads_tokens else seconds
    return max(math.ceil(heard * FRAMES_PER_S / encoder.patches_per_token), 1)


def audio_tower(config: Fields) -> tuple[int, AudioEncoder | None, tuple[str, ...]]:
    """Parameters of the encoder with its projector, what it computes, and what of the config is not counted."""
    found = [key for key in ("audio_config", "speech_config") if config.has(key)]
    if not found:
        return 0, None, ()
    formula, tower = _FORMULAS.get(config.text("model_type")), config.section("audio_config")
    text = config.section("text_config")
    if formula is None or tower is None or text is None:
        return 0, None, tuple(found)
    params, encoder = formula(config, tower, text.count("hidden_size", default=4_096))
    return params, encoder, ()


def _sizes(tower: Fields) -> tuple[int, int, int, int, int, int]:
    """Width, feed-forward, layers, heads, mel bins and positions; large v3's where left out."""
    return (
        tower.count("d_model", "hidden_size", default=1_280),
        tower.count("encoder_ffn_dim", "intermediate_size", default=5_120),
        tower.count("encoder_layers", "num_hidden_layers", default=32),
        tower.count("encoder_attention_heads", "num_attention_heads", default=20),
        tower.count("num_mel_bins", default=128),
        tower.count("max_source_positions", default=CHUNK_S * FRAMES_PER_S),
    )


def whisper_encoder_params(tower: Fields) -> int:
    """Two convolutions, learned positions, layers whose keys have no bias, and a norm: 636,968,960 in large v3."""
    width, inner, layers, _, bins, positions = _sizes(tower)
    convolutions = linear(CONVOLUTION * bins, width) + linear(CONVOLUTION * width, width)
    return layers * (vit_layer(width, inner) - width) + convolutions + positions * width + 2 * width


def _encoder(
    tower: Fields,
    *,
    frames_per_token: int,
    projections: tuple[tuple[int, int], ...],
    longest_s: float,
    pads: bool,
) -> AudioEncoder:
    width, inner, layers, heads, bins, positions = _sizes(tower)
    return AudioEncoder(
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        intermediate_size=inner,
        patch_inputs=CONVOLUTION * (width + 2 * bins),  # the first convolution runs twice a frame
        patches_per_token=frames_per_token,
        projections=projections,
        tile_patches=positions,
        padded_patches=positions,
        largest_image_tokens=math.ceil(longest_s * FRAMES_PER_S / frames_per_token),
        longest_s=longest_s,
        pads_tokens=pads,
    )


def _qwen2_audio(_config: Fields, tower: Fields, hidden_size: int) -> tuple[int, AudioEncoder]:
    """Frames pooled by two, one linear projector; at most 30 s of each audio are heard."""
    width = _sizes(tower)[0]
    encoder = _encoder(
        tower, frames_per_token=2, projections=((width, hidden_size),), longest_s=CHUNK_S, pads=False
    )
    return whisper_encoder_params(tower) + linear(width, hidden_size), encoder


def _voxtral(_config: Fields, tower: Fields, hidden_size: int) -> tuple[int, AudioEncoder]:
    """Four frames side by side become a token; two products without bias."""
    stacked = 4 * _sizes(tower)[0]
    encoder = _encoder(
        tower,
        frames_per_token=4,
        projections=((stacked, hidden_size), (hidden_size, hidden_size)),
        longest_s=LONGEST_S,
        pads=True,
    )
    return whisper_encoder_params(tower) + stacked * hidden_size + hidden_size**2, encoder


def _ultravox(config: Fields, tower: Fields, hidden_size: int) -> tuple[int, AudioEncoder]:
    """Eight frames side by side become a token, through a gated unit between two products with a norm before each."""
    factor, inner = config.count("stack_factor", default=8), config.count("hidden_size", default=4_096)
    stacked, middle = factor * _sizes(tower)[0], inner // 2
    encoder = _encoder(
        tower,
        frames_per_token=factor,
        projections=((stacked, inner), (middle, hidden_size)),
        longest_s=CHUNK_S,
        pads=False,
    )
    norms = stacked + (middle if config.flag("projector_ln_mid") else hidden_size)
    return whisper_encoder_params(tower) + stacked * inner + middle * hidden_size + norms, encoder


_FORMULAS: dict[str, Callable[[Fields, Fields, int], tuple[int, AudioEncoder]]] = {
    "qwen2_audio": _qwen2_audio,
    "voxtral": _voxtral,
    "ultravox": _ultravox,
}
