"""Pools of several models behind one router, and cascades through them: each pool is its model's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capacity
from capacity.deployment import DeploymentFile, Pool, build
from capacity.workload import Workload

LENGTHS: dict[str, Any] = {"input_len": 500, "output_len": 50, "random_range_ratio": 0.0}
LOAD: dict[str, Any] = {**LENGTHS, "request_rate": 6.0, "num_prompts": 120}
SMALL, LARGE = "llama-3.2-1b", "llama-3.1-8b"


def deployment(
    first: dict[str, Any] | None = None, service: dict[str, Any] | None = None, **more: Any
) -> DeploymentFile:
    """A small model on a cheap card before a larger one; in turn, unless `service` says more."""
    return DeploymentFile(
        model=LARGE,
        pools=(Pool(gpu="l4", model=SMALL, **(first or {})), Pool(gpu="h100")),
        traffic=LOAD | more,
        service=service or {},
        cost={"price": "l4=0.5,h100=3"},
    )


def test_each_pool_serves_its_own_model_as_it_would_alone() -> None:
    """In turn, every other request is for a pool, which does with them what it does alone, to the picosecond."""
    found = capacity.simulate(deployment())
    arrival_s = found.run.records.arrival_ps / 1e12
    for place, (model, gpu) in enumerate(((SMALL, "l4"), (LARGE, "h100"))):
        own = Workload(
            arrival_s=arrival_s[place::2],
            prompt_tokens=found.run.records.prompt_tokens[place::2],
            output_tokens=found.run.records.output_tokens[place::2],
        )
        alone = capacity.simulate(model, gpu=gpu, workload=own)
        ttft = found.run.records.latency_s("ttft")[place::2]
        np.testing.assert_allclose(ttft, alone.run.records.latency_s("ttft"), rtol=1e-9)
        pool = found.pools[place]
        assert (pool.model, pool.requests, pool.answered) == (model, 60, 60)
        assert pool.kv_capacity_tokens == capacity.fit(model, gpu=gpu).kv_capacity_tokens
        assert pool.latencies_ms["ttft"].mean == pytest.approx(1e3 * ttft.mean())
    assert [pool.usd_per_hour for pool in found.pools] == [0.5, 3.0]
    assert found.cost is not None
    assert found.cost.usd_per_hour == 3.5
    assert any("tokenizers" in note for note in found.warnings)


def test_a_cascade_tells_who_answered_and_what_nobody_saw() -> None:
    found = capacity.simulate(
        deployment({"route_escalation_rate": 0.25}, {"router": "cascade", "judge_s": 0.1})
    )
    first, last = found.pools
    assert (first.requests, first.answered, last.requests, last.answered) == (120, 90, 30, 30)
    assert found.run.cascade is not None
    assert found.run.cascade.unseen_tokens == 30 * 50
    parts = found.time_parts
    assert parts is not None
    assert sum(parts["mean_ms"].values()) == pytest.approx(found.run.summary.e2el_ms.mean)  # type: ignore[union-attr]
    assert parts["mean_ms"]["judged"] == pytest.approx(0.75 * 100)
    assert any("(1,500 tokens) were judged and discarded" in note for note in found.warnings)
    shown = found.to_dict()
    assert shown["cascade"]["answered"] == [90, 30]
    assert [pool["model"] for pool in shown["pools"]] == [SMALL, LARGE]


def test_a_pool_alone_says_its_model() -> None:
    alone = DeploymentFile(model=LARGE, pools=(Pool(gpu="l4", model=SMALL),), traffic=LOAD)
    assert (alone.model, alone.pools[0].model) == (SMALL, None)
    assert capacity.fit(alone).model.name == SMALL
    assert capacity.simulate(alone).pools == ()


@pytest.mark.parametrize(
    ("first", "service", "more", "said"),
    [
        ({}, {"router": "cascade"}, {}, "pool 1 has no route_escalation_rate"),
        ({"route_escalation_rate": 0.3}, {}, {}, "--router round-robin ignores: use cascade"),
        ({"route_up_to_tokens": 100}, {"router": "cascade"}, {}, "use by-prompt-length"),
        ({"route_escalation_rate": 1.3}, {"router": "cascade"}, {}, "less than or equal to 1"),
        ({"model": "llama-9"}, {}, {}, "llama-9"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    first: dict[str, Any], service: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    fields = {
        "model": LARGE,
        "pools": [{"gpu": "l4", "model": SMALL, **first}, {"gpu": "h100"}],
        "traffic": LOAD | more,
        "service": service,
    }
    with pytest.raises(capacity.CapacityError, match=said) as refused:
        capacity.simulate(build(DeploymentFile, fields))
    assert "\n" not in str(refused.value)


def test_images_are_of_one_model() -> None:
    pools = (Pool(gpu="h100", model="gemma-3-12b"), Pool(gpu="h100"))
    traffic = LOAD | {"images_per_prompt": 1}
    with pytest.raises(capacity.InvalidInput, match="encode images with different numbers of tokens"):
        capacity.simulate(DeploymentFile(model="gemma-3-4b", pools=pools, traffic=traffic))


def test_kv_of_one_model_is_of_no_use_to_another() -> None:
    pools = (Pool(gpu="h100", model=SMALL, role="prefill"), Pool(gpu="h100", role="decode"))
    with pytest.raises(capacity.InvalidInput, match=r"cannot read the KV cache of .*: use one model"):
        capacity.simulate(DeploymentFile(model=LARGE, pools=pools, traffic=LOAD))


def test_a_cascade_of_one_pool_or_with_a_rate_behind_leads_nowhere() -> None:
    with pytest.raises(capacity.InvalidInput, match="needs at least two pools"):
        capacity.simulate(LARGE, gpu="h100", replicas=2, router="cascade", **LOAD)
    pools = (
        Pool(gpu="l4", model=SMALL, route_escalation_rate=0.3),
        Pool(gpu="h100", route_escalation_rate=0.3),
    )
    with pytest.raises(
        capacity.InvalidInput, match=r"route_escalation_rate 0\.3 of the last pool has no further pool"
    ):
        capacity.simulate(
            DeploymentFile(model=LARGE, pools=pools, traffic=LOAD, service={"router": "cascade"})
        )


def test_a_question_about_one_engine_refuses_several_models() -> None:
    with pytest.raises(capacity.InvalidInput, match="use `capacity simulate`"):
        capacity.fit(deployment())
