"""Fill in traffic fields that depend on the model: tokens of images and audio, output length of embedding models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from capacity.base.errors import InvalidInput
from capacity.deployment.traffic import Traffic

if TYPE_CHECKING:
    from capacity.model import ModelSpec
    from capacity.model.vision_towers import VisionEncoder

_SIZE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})")


def check_language_model_only(language_model_only: bool, traffic: Traffic) -> None:
    """Raise InvalidInput if `language_model_only` is set and the requests contain images or audio."""
    said = "--images-per-prompt" if traffic.images_per_prompt else "--audio-seconds"
    if language_model_only and (traffic.images_per_prompt or traffic.audio_seconds is not None):
        raise InvalidInput(
            f"{said} cannot be combined with --language-model-only, which loads no vision or audio encoder: remove one"
        )


def add_encoder_tokens(traffic: Traffic, model: str | Path | ModelSpec, *, download: bool = False) -> Traffic:
    """Return the traffic with the token counts of its images and audio, computed for the model.

    For an embedding model, a missing output length becomes one token. Raises InvalidInput if the number of tokens is
    unknown or contradictory.
    """
    prompts_alone = traffic.input_len is not None and traffic.output_len is None
    if not (traffic.images_per_prompt or traffic.audio_seconds is not None or prompts_alone):
        return traffic
    from capacity.model import ModelSpec, load_model

    spec = model if isinstance(model, ModelSpec) else load_model(model, download=download)
    if prompts_alone and spec.task == "embed":
        traffic = traffic.model_copy(update={"output_len": 1})
    if traffic.audio_seconds is not None:
        traffic = _add_audio(traffic, spec, traffic.audio_seconds)
    if not traffic.images_per_prompt:
        return traffic
    if spec.vision is None:
        raise InvalidInput(
            f"{spec.name} has no supported vision encoder (supported: Gemma 3, 3n and 4, Llama 4, Qwen2-VL to 3.5, "
            "Pixtral, Kimi, Phi-4, LLaVA, InternVL): remove --images-per-prompt"
        )
    tokens = traffic.image_tokens
    if tokens is None:
        tokens = _image_tokens(traffic.image_size, spec.vision, spec.name)
    elif traffic.image_size is not None:
        raise InvalidInput("--image-tokens and --image-size both set the tokens of an image: use one of them")
    if tokens > spec.vision.largest_image_tokens:
        raise InvalidInput(
            f"--image-tokens {tokens:,} exceeds the limit of {spec.name}, "
            f"{spec.vision.largest_image_tokens:,} tokens per image: use fewer"
        )
    return traffic.model_copy(update={"image_tokens": tokens, "image_size": None})


def _add_audio(traffic: Traffic, spec: ModelSpec, seconds: float) -> Traffic:
    """Return the traffic with an audio clip at the start of each prompt; for Whisper, the clip is the prompt."""
    from capacity.model.audio import FRAMES_PER_S, tokens_of_audio

    flag, longest = f"--audio-seconds {seconds:g}", spec.prompt_audio_s
    if spec.audio is None and longest is None:
        raise InvalidInput(
            f"{flag}: {spec.name} has no supported audio encoder (supported: Qwen2-Audio, Qwen2.5-Omni, Gemma 3n, "
            "Phi-4, Voxtral, Ultravox, Whisper): remove --audio-seconds"
        )
    limit = longest or (spec.audio.longest_s if spec.audio is not None else 0)
    if seconds > limit:
        raise InvalidInput(
            f"{flag} exceeds the limit of {spec.name}, {limit:g} s per clip: split longer audio into several requests"
        )
    if spec.audio is None:
        frames = (longest or 0) * FRAMES_PER_S
        if traffic.input_len not in (None, frames):
            raise InvalidInput(
                f"{flag}: {spec.name} takes only audio as its prompt, padded to {frames:,} frames: remove --input-len "
                f"{traffic.input_len}"
            )
        return traffic.model_copy(update={"input_len": frames})
    tokens = traffic.audio_tokens or tokens_of_audio(spec.audio, seconds)
    return traffic.model_copy(update={"audio_tokens": tokens})


def _image_tokens(size: str | None, encoder: VisionEncoder, name: str) -> int:
    if size is None:
        if encoder.image_tokens is None:
            raise InvalidInput(
                f"the tokens of an image of {name} depend on its size: add --image-tokens or --image-size"
            )
        return encoder.image_tokens
    found = _SIZE.fullmatch(size)
    if found is None:
        raise InvalidInput(f"--image-size is {size!r}: must be WIDTHxHEIGHT in pixels, such as 1280x720")
    from capacity.model.vision import tokens_of_image

    tokens = tokens_of_image(encoder, int(found[1]), int(found[2]))
    if tokens is None:
        raise InvalidInput(
            f"the tokens of an image of {name} cannot be computed from its size: use --image-tokens"
        )
    return tokens
