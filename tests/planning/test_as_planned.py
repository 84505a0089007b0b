"""The launch of a plan names every setting that its predicted times depend on."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.deployment import Pool
from capacity.model import load_model
from capacity.planning.as_planned import launch_as_planned
from capacity.pool.resolve import resolve


@pytest.mark.parametrize(
    ("model", "changes", "backend"),
    [
        ("deepseek-r1", {}, "flashmla"),
        ("deepseek-r1", {"kv_cache_dtype": "auto"}, None),
        ("deepseek-r1", {"gpu": "b200"}, None),
        ("deepseek-r1", {"engine": "vllm@0.15"}, None),
        ("llama-3.1-8b", {}, None),
    ],
)
def test_fp8_latents_under_sglang_on_hopper_name_flashmla(
    model: str, changes: dict[str, Any], backend: str | None
) -> None:
    """SGLang's default there converts the whole KV pool to 16 bit in every step (sglang issue 35291)."""
    settings = {"gpu": "h200", "tensor_parallel_size": 8, "engine": "sglang@0.5.9", "kv_cache_dtype": "fp8"}
    resolved = resolve(load_model(model), Pool(**settings | changes))
    words = launch_as_planned(model, resolved).words
    named = words[words.index("--attention-backend") + 1] if "--attention-backend" in words else None
    assert named == backend
