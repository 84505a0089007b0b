"""Options: whole instances, and the replicas that are still open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_options import option
from quick_plans import SHORT

from capacity.deployment import Cost, Pool
from capacity.hardware.pricing import find_price_for_cost
from capacity.planning.plan import plan
from capacity.planning.quality import AS_PUBLISHED


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
    price = find_price_for_cost("h100", Cost(price_tier="on-demand", price_instance="p5.48xlarge"))
    engine = option(objective, price=price, least=3)
    below = [count for count in range(engine.least, engine.most + 1) if engine.objective(count) < limit]
    assert engine.most_below((limit,)) == max(below, default=0)


def test_of_equally_dear_ones_the_one_that_loses_least_and_then_the_plainer_comes_first() -> None:
    unknown = replace(AS_PUBLISHED, worst_loss_fraction=None)
    options = [
        option(quality=unknown),
        option(complexity=2),
        option(complexity=1),
        option(pool=Pool(gpu="h100")),
    ]
    assert sorted(options, key=lambda each: each.order(2)) == [options[3], options[2], options[1], options[0]]
    assert options[0].order(1) < options[3].order(2)
