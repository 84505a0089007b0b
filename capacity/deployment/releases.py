"""The published package and container image of an engine's release."""

from __future__ import annotations

import re
from dataclasses import dataclass

from capacity.deployment.engines import find_engine

IMAGES = {
    "vllm": "vllm/vllm-openai:v{}",
    "sglang": "lmsysorg/sglang:v{}",
    "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:{}",
    "tgi": "ghcr.io/huggingface/text-generation-inference:{}",
    "llama.cpp": "ghcr.io/ggml-org/llama.cpp:server-cuda-{}",
    "ollama": "ollama/ollama:{}",
}
PACKAGES = ("vllm", "sglang", "tensorrt-llm")  # with a server on the Python package index


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release of an engine: its version as published, its image and its `pip` requirement, where it has them."""

    version: str
    image: str | None
    requirement: str | None


def release_of(engine: str) -> Release:
    """The release that `name@version` names, or the newest known one of `name`. Raises UnknownName, InvalidInput."""
    found = find_engine(engine)
    asked = engine.partition("@")[2] or found.label.partition("@")[2]
    number = re.match(r"v?(\d+(?:\.\d+)*)", asked)
    parts = [] if number is None else number[1].split(".")
    version = ".".join([*parts, *["0"] * (3 - len(parts))]) if parts else asked
    image = IMAGES.get(found.name)
    return Release(
        version=version,
        image=image and image.format(version),
        requirement=f"{found.name}=={version}" if found.name in PACKAGES else None,
    )
