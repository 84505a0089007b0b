"""Options: whole instances, and the replicas that are still open."""

from __future__ import annotations

import pytest
from quick_plans import SHORT

from capacity.planning.plan import plan


def test_whole_instances_are_billed() -> None:
    answer = plan(
        "llama-3.1-8b", slo="ttft:p95:500ms", gpus="h100", price_tier="on-demand", price_provider="AWS",
        request_rate=5.0, tensor_parallel_sizes=(1,), quantizations=(None,), kv_cache_dtypes=("auto",),
        max_num_batched_tokens=(None,), **SHORT,
    )  # fmt: skip
    assert answer.best is not None
    assert answer.best.billed_gpus == 8
    assert answer.best.objective == pytest.approx(8 * 6.88)
    assert answer.best.cost is not None
    assert answer.best.cost.usd_per_hour == pytest.approx(8 * 6.88)
