"""Scenarios for schedulers, by hand."""

from __future__ import annotations

from typing import Any


def scenario(**changes: Any) -> dict[str, Any]:
    return {
        "block_size": 4,
        "num_blocks": 12,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "max_model_len": 256,
        "step_time": {"base": 0.01, "per_token": 0.001},
        "requests": [
            {"id": "a", "arrival": 0, "prompt": [[1, 10]], "max_tokens": 3},
            {"id": "b", "arrival": 0, "prompt": [[2, 6]], "max_tokens": 2},
        ],
    } | changes


def requests(*rows: tuple[str, float, int, int]) -> list[dict[str, Any]]:
    return [
        {"id": name, "arrival": at, "prompt": [[index + 1, prompt]], "max_tokens": outputs}
        for index, (name, at, prompt, outputs) in enumerate(rows)
    ]
