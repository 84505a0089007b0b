"""Pools from vLLM's flags."""

from __future__ import annotations

from typing import Any

from capacity.deployment import Pool, build

LLAMA = "llama-3.1-8b"
EAGLE = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}
PRODUCER = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}


def pool(**fields: Any) -> Pool:
    found: Pool = build(Pool, {"gpu": "h100", **fields}, flags=True)
    return found
