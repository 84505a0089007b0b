"""Pools of a fleet with figures of one's own, for tests."""

from __future__ import annotations

from typing import Any

from capacity.deployment import Pool
from capacity.planning.fleets.fleet_records import FleetPool


def fleet_pool(**changes: Any) -> FleetPool:
    usual: dict[str, Any] = {
        "label": "all", "up_to_tokens": None, "request_share": 1.0, "requests_per_s": 2.0, "input_tokens": 1.0,
        "output_tokens": 1.0,
        "pool": Pool(gpu="h100"), "router": "round-robin", "replicas": 1, "spare_replicas": 0, "num_gpus": 1,
        "billed_gpus": 1, "usd_per_hour": 3.6, "prefill_share": None, "levels": (), "confidence": 0.9, "launch": (),
    }  # fmt: skip
    return FleetPool(**usual | changes)
