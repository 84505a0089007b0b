"""Tokens of an image, where the traffic leaves them to the model."""

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


def with_image_tokens(traffic: Traffic, model: str | Path | ModelSpec, *, download: bool = False) -> Traffic:
    """The traffic with the tokens of its images. Raises InvalidInput where they are not known, or contradict."""
    if not traffic.images_per_prompt:
        return traffic
    from capacity.model import ModelSpec, load_model

    spec = model if isinstance(model, ModelSpec) else load_model(model, download=download)
    if spec.vision is None:
        raise InvalidInput(
            f"{spec.name} has no vision encoder of a known formula (Gemma 3 and 4, Llama 4, Qwen2.5-VL to 3.5, Pixtral, Kimi K2.5 have): "
            "leave out --images-per-prompt"
        )
    tokens = traffic.image_tokens
    if tokens is None:
        tokens = _tokens(traffic.image_size, spec.vision, spec.name)
    elif traffic.image_size is not None:
        raise InvalidInput("--image-tokens and --image-size both say an image's tokens: give one of them")
    if tokens > spec.vision.largest_image_tokens:
        raise InvalidInput(
            f"an image of {tokens:,} tokens is larger than {spec.name} makes of any, "
            f"{spec.vision.largest_image_tokens:,}: give fewer --image-tokens"
        )
    return traffic.model_copy(update={"image_tokens": tokens, "image_size": None})


def _tokens(size: str | None, encoder: VisionEncoder, name: str) -> int:
    if size is None:
        if encoder.image_tokens is None:
            raise InvalidInput(
                f"tokens of an image depend on its size in {name}: give --image-tokens or --image-size"
            )
        return encoder.image_tokens
    found = _SIZE.fullmatch(size)
    if found is None:
        raise InvalidInput(f"--image-size is WIDTHxHEIGHT in pixels, such as 1280x720, not {size!r}")
    from capacity.model.vision import tokens_of_image

    tokens = tokens_of_image(encoder, int(found[1]), int(found[2]))
    if tokens is None:
        raise InvalidInput(
            f"tokens of {name}'s images do not follow from their size alone: give --image-tokens"
        )
    return tokens
