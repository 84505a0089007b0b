"""Options: whole instances, and the replicas that are still open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_options import option
from quick_plans import SHORT

from capacity.deployment import Cost, Pool
from capacity.hardware.pricing import price_of
from capacity.planning.option import families
from capacity.planning.plan import plan


def test_whole_instances_are_billed() -> None:
    answer = plan(
        "llama-3.1-8b", slo="ttft:p95:500ms", gpus="h100", price_tier="on-demand", price_instance="p5.48xlarge",
        request_rate=5.0, tensor_parallel_sizes=(1,), quantizations=(None,), kv_cache_dtypes=("auto",),
        max_num_batched_tokens=(None,), **SHORT,
    )  # fmt: skip
    assert answer.best is not None
    assert answer.best.billed_gpus == 8
    assert answer.best.objective == pytest.approx(8 * 6.88)
    assert answer.best.cost is not None
    assert answer.best.cost.usd_per_hour == pytest.approx(8 * 6.88)


@pytest.mark.parametrize("objective", ["gpus", "energy", "cost"])
@given(limit=st.floats(0, 40_000))
def test_the_most_replicas_below_an_objective_are_the_last_that_are(objective: str, limit: float) -> None:
    """Prices are of whole instances of eight, and so equal for several numbers of replicas."""
    price = price_of("h100", Cost(price_tier="on-demand", price_instance="p5.48xlarge"))
    engine = option(objective, price=price, least=3)
    below = [count for count in range(engine.least, engine.most + 1) if engine.objective(count) < limit]
    assert engine.most_below(limit) == max(below, default=0)


def test_families_come_by_their_most_promising_option() -> None:
    slow, quick_, other = option(gpu_s=3.0), option(gpu_s=1.0), option(pool=Pool(gpu="a100"), gpu_s=2.0)
    assert list(families((slow, other, quick_))) == [
        (("h100", None), [quick_, slow]),
        (("a100", None), [other]),
    ]
