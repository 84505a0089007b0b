"""Fleets of small spaces and short traffic, for tests."""

from __future__ import annotations

from typing import Any

from capacity.planning.fleets.fleet import fleet
from capacity.planning.fleets.fleet_records import FleetPlan

MODEL = "llama-3.1-8b"
PRICES = "l4=0.8,l40s=1.5,h100=4"
TRAFFIC: dict[str, Any] = {
    "input_len": 1500, "output_len": 60, "num_prompts": 150, "length_distribution": "lognormal", "request_rate": 12.0,
}  # fmt: skip
SPACE: dict[str, Any] = {
    "gpus": "l4,h100", "tensor_parallel_sizes": (1,), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
    "max_num_batched_tokens": (None,), "speculators": "none", "replications": 1, "confidence": 0.5,
}  # fmt: skip
SLO = "ttft:p95:600ms tpot:p95:80ms"


def quick_fleet(**changes: Any) -> FleetPlan:
    return fleet(MODEL, **(TRAFFIC | SPACE | {"slo": SLO, "price": PRICES} | changes))
