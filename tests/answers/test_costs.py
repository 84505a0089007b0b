"""The cost of a load: who shares it, GPUs that only prefill, pipelines, whole instances, the most that is served."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest

from capacity import simulate
from capacity.answers.costs import ServedLoad, cost_of, max_requests_per_s, prefill_share
from capacity.answers.deployment_run import measured_capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.hardware.pricing import find_price
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import random_requests

LOAD = ServedLoad(requests_per_s=4.0, input_tokens=800.0, output_tokens=200.0)


def engine(**fields: object) -> ResolvedPool:
    return resolve("llama-3.1-8b", Pool(gpu="h100", **fields))  # type: ignore[arg-type]


def test_no_price_no_cost() -> None:
    assert cost_of(None, [(engine(), 1)], LOAD) is None


def test_replicas_share_a_load_alike() -> None:
    """Twice the load on twice the engines is the same price; the same load on twice the engines costs twice."""
    price = find_price("h100", override="2")
    one = cost_of(price, [(engine(), 1)], LOAD)
    two = cost_of(price, [(engine(), 2)], LOAD.at_rate(8.0))
    idle = cost_of(price, [(engine(), 2)], LOAD)
    assert one is not None
    assert two is not None
    assert idle is not None
    assert two.usd_per_million_output_tokens == pytest.approx(one.usd_per_million_output_tokens)
    assert idle.usd_per_request == pytest.approx(2 * one.usd_per_request)
    assert idle.prefill_share == one.prefill_share


def test_ranks_that_share_nothing_are_replicas() -> None:
    ranks = prefill_share([(engine(data_parallel_size=2), 1)], LOAD)
    assert ranks == pytest.approx(prefill_share([(engine(), 2)], LOAD))


def test_prefill_share_at_any_utilization_is_that_of_full_load() -> None:
    """Idle time is not decode time: tokens of a prompt do not become cheaper on an idle server."""
    full = prefill_share([(engine(), 1)], LOAD.at_rate(math.inf))
    loads = [*(LOAD.at_rate(rate) for rate in (0.01, 1.0, 20.0, 80.0)), replace(LOAD, in_flight=1.0)]
    assert [prefill_share([(engine(), 1)], load) for load in loads] == pytest.approx([full] * len(loads))


def test_gpus_that_prefill_carry_the_input() -> None:
    """Three that prefill beside one that decodes: the shares are of GPU time, each role's of its own GPUs."""
    before, after = engine(role="prefill"), engine(role="decode")
    apart = prefill_share([(before, 1), (after, 1)], LOAD)
    assert 0 < apart < 1
    assert prefill_share([(before, 3), (after, 1)], LOAD) == pytest.approx(apart)  # time, not GPUs that wait
    wide = replace(after, pool=after.pool.model_copy(update={"tensor_parallel_size": 2}))
    assert prefill_share([(before, 1), (wide, 1)], LOAD) < apart  # two GPUs for each second of decode


def test_stages_of_a_pipeline_work_on_batches_of_their_own() -> None:
    """With as much to do for each batch in the stages, a request takes its time of one of them."""
    plain, staged = engine(), engine(pipeline_parallel_size=2)
    assert prefill_share([(staged, 1)], LOAD.at_rate(8.0)) == pytest.approx(
        prefill_share([(plain, 1)], LOAD), rel=0.25
    )
    assert max_requests_per_s([(staged, 1)], LOAD) > max_requests_per_s([(plain, 1)], LOAD)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_the_most_is_about_full_load(model: str) -> None:
    resolved = resolve(model, Pool(gpu="h100", replicas=2))
    requests = random_requests(num_requests=1000, input_len=800, output_len=200, request_rate_per_s=1.0)
    capacity = measured_capacity([resolved], requests)
    assert capacity is not None
    assert max_requests_per_s([(resolved, 2)], LOAD) == pytest.approx(capacity.requests_per_s, rel=0.1)


def test_drafts_make_output_cheaper() -> None:
    """In small batches, where verifying drafts costs little more than a plain step."""
    plain, drafted = engine(max_num_seqs=4), engine(max_num_seqs=4, speculator="eagle3-chain")
    assert prefill_share([(drafted, 1)], LOAD) > prefill_share([(plain, 1)], LOAD)


def test_whole_instances_are_billed() -> None:
    price = find_price("h100", tier="on-demand", instance="p5.48xlarge")
    assert price is not None
    cost = cost_of(price, [(engine(), 1)], LOAD)
    assert cost is not None
    assert (cost.num_gpus, cost.billed_gpus) == (1, 8)
    assert cost.usd_per_hour == pytest.approx(8 * price.usd_per_gpu_hour)
    assert cost.usd_per_request == pytest.approx(cost.usd_per_hour / 3600 / 4.0)


def test_a_load_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="requests_per_s is 0"):
        cost_of(find_price("h100", override="2"), [(engine(), 1)], LOAD.at_rate(0.0))


ASKED = {
    "input_len": 400,
    "output_len": 100,
    "request_rate": 4.0,
    "num_prompts": 150,
    "random_range_ratio": 0.0,
}


def test_a_simulated_deployment_of_two_roles_has_a_price() -> None:
    answer = simulate("llama-3.1-8b", gpu="h100", replicas=3, prefill_replicas=1, price="2", **ASKED)
    cost = answer.cost
    assert cost is not None
    assert (cost.num_gpus, cost.usd_per_hour) == (3, 6.0)
    assert cost.requests_per_s == 4.0
    bill = (
        4.0
        * 3600
        * (400 * cost.usd_per_million_input_tokens + 100 * cost.usd_per_million_output_tokens)
        / 1e6
    )
    assert bill == pytest.approx(6.0)
    assert answer.to_dict()["cost"] == asdict(cost)
    assert simulate("llama-3.1-8b", gpu="h100", **ASKED).to_dict()["cost"] is None


def test_pools_of_unequal_gpus_are_billed_each_at_its_own_price() -> None:
    pools = {"gpu": "h100", "other_pools": [Pool(gpu="h200", replicas=2)], "router": "least-outstanding"}
    cost = simulate("llama-3.1-8b", **pools, price="h100=2,h200=3", **ASKED).cost
    assert cost is not None
    assert (cost.num_gpus, cost.billed_gpus, cost.usd_per_hour) == (3, 3, 8.0)
    assert cost.usd_per_gpu_hour == pytest.approx(8 / 3)
    for price in ("h100-sxm-80gb: $2", "h200-sxm-141gb: $3"):
        assert price in cost.source


def test_one_price_is_of_one_kind_of_gpu_and_of_a_deployment_that_stays() -> None:
    with pytest.raises(
        InvalidInput,
        match="one price, but the pools use h100-sxm-80gb and h200-sxm-141gb: give a price for each",
    ):
        simulate("llama-3.1-8b", gpu="h100", other_pools=[Pool(gpu="h200")], price="2", **ASKED)
    with pytest.raises(InvalidInput, match="the deployment uses h200-sxm-141gb"):
        simulate("llama-3.1-8b", gpu="h100", other_pools=[Pool(gpu="h200")], price="h100=2", **ASKED)
    scaled = {"autoscale_max_replicas": 3, "autoscale_target_requests": 4, "replica_startup_s": 1}
    with pytest.raises(InvalidInput, match="autoscaled deployment has no constant cost per hour"):
        simulate("llama-3.1-8b", gpu="h100", price="2", **scaled, **ASKED)
