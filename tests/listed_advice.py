"""Advice on one deployment, and the line of it that speaks of something."""

from __future__ import annotations

from typing import Any

from capacity.planning.variations.advice import Advice, AdviceList

MODEL = "llama-3.1-8b"

LOAD: dict[str, Any] = {
    "gpu": "h100", "input_len": 200, "random_prefix_len": 200, "output_len": 40, "request_rate": 15.0,
    "num_prompts": 150,
}  # fmt: skip


def line(answer: AdviceList, text: str) -> Advice:
    return next(
        found for found in (*answer.advice, *answer.without_benefit, *answer.refused) if text in found.change
    )
