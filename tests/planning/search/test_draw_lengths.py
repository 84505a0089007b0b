"""How long a deployment is simulated depends on the traffic and on itself, whatever it is compared with."""

from __future__ import annotations

from typing import Any

import pytest
from long_forms import mostly_slow

from capacity.planning.plan import plan
from capacity.planning.records import Plan

SPACE: dict[str, Any] = {
    "tensor_parallel_sizes": 1, "quantizations": "default", "kv_cache_dtypes": "auto", "speculators": "none",
    "serving": "aggregated", "max_num_batched_tokens": "default", "max_gpus": 200, "alternatives": False,
    "input_len": 1024, "output_len": 256, "random_range_ratio": 0.0, "slo": "ttft:p95:500ms tpot:p95:40ms",
}  # fmt: skip


def planned(gpus: str, l40s_usd: float, rate: float) -> Plan:
    price = f"h100=2,l40s={l40s_usd}"
    return plan("llama-3.1-8b", gpus=gpus, price=price, request_rate=rate, time_limit_s=0, **SPACE)


PRICES = [(75.0, 0.27222), (90.0, 0.2791), (130.0, 0.2803)]


@pytest.mark.ci
@pytest.mark.parametrize(("rate", "l40s_usd"), mostly_slow(PRICES, PRICES[1:2]))
def test_wide_and_narrow_plans_give_a_deployment_the_same_replicas(rate: float, l40s_usd: float) -> None:
    """At these prices 1,000 requests, which are too few, and more of them favour different GPUs."""
    wide = planned("h100,l40s", l40s_usd, rate)
    assert wide.best is not None
    narrow = planned(wide.best.candidate.pool.gpu, l40s_usd, rate)
    assert narrow.best is not None
    assert narrow.best.candidate == wide.best.candidate
    assert narrow.best.trial == wide.best.trial
    assert narrow.requests == wide.requests > 1000
