"""Deployments that the tests of `side-by-side` compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODEL = "llama-3.1-8b"
TRAFFIC = {"input_len": 1024, "output_len": 256, "random_range_ratio": 0.0}
SLO = ("ttft:p95:500ms", "tpot:p95:50ms")
RATE = 60.0


def side(
    gpu: str = "h100",
    *,
    price: str = "4",
    rate: float = RATE,
    traffic: Mapping[str, Any] | None = None,
    service: Mapping[str, Any] | None = None,
    **pool: Any,
) -> dict[str, Any]:
    load = {"request_rate": rate} if traffic is None else traffic
    return {
        "model": MODEL,
        "pools": [{"gpu": gpu, **pool}],
        "traffic": {**TRAFFIC, **load},
        "service": service or {},
        "cost": {"price": price},
    }
