"""Plans of small spaces and short traffic, for tests."""

from __future__ import annotations

from typing import Any

from capacity.planning.plan import plan
from capacity.planning.records import Plan

PRICES = "a100=1.6,h100=3.85,h200=4.45,b200=6.79,l40s=1"

LENGTHS: dict[str, Any] = {"input_len": 700, "output_len": 60, "random_range_ratio": 0.0}
SHORT: dict[str, Any] = {**LENGTHS, "num_prompts": 100, "replications": 1}

PLAIN: dict[str, Any] = {"speculators": "none", "serving": "aggregated", "data_parallel_sizes": (1,)}


def quick(**changes: Any) -> Plan:
    options: dict[str, Any] = {
        "gpus": "h100", "tensor_parallel_sizes": (1, 2), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
        "max_num_batched_tokens": (None,), "request_rate": 20.0, "objective": "gpus",
        "slo": "ttft:p95:500ms tpot:p95:30ms", **PLAIN,
    }  # fmt: skip
    model = changes.pop("model", "llama-3.1-8b")
    return plan(model, **(SHORT | options | changes))
