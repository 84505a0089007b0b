"""Paired differences, tornado and advice: exact where nothing differs, plausible where something does."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.api_compare import advise, diff, tornado
from capacity.deployment import DeploymentFile, Pool, write_deployment
from capacity.errors import DoesNotFit, InvalidInput
from capacity.planning.sensitivity import SWING

TRAFFIC = {"input_len": 400, "output_len": 40, "request_rate": 15.0, "num_prompts": 150}


def deployment(**pool: Any) -> dict[str, Any]:
    return {
        "model": "llama-3.1-8b",
        "pools": [{"gpu": "h100", **pool}],
        "traffic": TRAFFIC,
        "cost": {"price": "2"},
    }


def test_a_deployment_does_not_differ_from_itself() -> None:
    found = diff(deployment(), deployment())
    assert found.settings == ()
    for difference in found.differences:
        assert (difference.mean_s, difference.low_s, difference.high_s) == (0, 0, 0)
        assert not difference.significant
    assert found.cost_change == 0


def test_faster_weights_are_seen_in_every_request() -> None:
    found = diff(deployment(), deployment(quantization="fp8"))
    assert found.settings == (("quantization", "None", "fp8"),)
    by_metric = {difference.metric: difference for difference in found.differences}
    assert set(by_metric) == {"ttft", "tpot", "e2e"}
    tpot = by_metric["tpot"]
    assert tpot.significant
    assert tpot.low_s <= tpot.mean_s <= tpot.high_s < 0
    assert tpot.faster_fraction > 0.9
    backwards = diff(deployment(quantization="fp8"), deployment())
    assert backwards.differences[1].mean_s == pytest.approx(-tpot.mean_s)


def test_pairing_is_tighter_than_two_runs_apart() -> None:
    """The interval of the paired difference is much narrower than the spread of the latencies themselves."""
    found = diff(deployment(), deployment(max_num_batched_tokens=2048))
    e2e = next(difference for difference in found.differences if difference.metric == "e2e")
    spread = e2e.first_percentiles_s["p95"] - e2e.first_percentiles_s["p50"]
    assert e2e.high_s - e2e.low_s < max(spread, 1e-4)


def test_files_and_replicas(tmp_path: Any) -> None:
    path = tmp_path / "a.toml"
    write_deployment(DeploymentFile(**{"schema": "capacity/deployment/v1", **deployment()}), path)
    found = diff(
        path,
        {"model": "llama-3.1-8b", "pools": [{"gpu": "h100", "replicas": 2}], "cost": {"price": "2"}},
    )
    assert found.settings == (("replicas", "1", "2"),)
    assert found.cost_change == pytest.approx(1.0)
    assert all(difference.mean_s <= 0 for difference in found.differences)


def test_diff_refuses_different_traffic_and_what_does_not_fit() -> None:
    with pytest.raises(InvalidInput, match="different traffic"):
        diff(deployment(), deployment() | {"traffic": TRAFFIC | {"input_len": 5}})
    with pytest.raises(DoesNotFit):
        diff(deployment(), deployment() | {"model": "llama-3.1-405b"})


def test_the_tornado_moves_the_right_way() -> None:
    found = tornado("llama-3.1-8b", gpu="h100", price="2", **TRAFFIC)
    by_input = {swing.input: swing for swing in found.swings}
    assert by_input["price of a GPU-hour"].cost_change == pytest.approx((-SWING, SWING))
    assert by_input["price of a GPU-hour"].e2e_p95_change == (0, 0)
    low, high = by_input["step times (calibration error)"].e2e_p95_change
    assert low is not None
    assert high is not None
    assert low < 0 < high
    longer = by_input["output lengths"]
    assert longer.e2e_p95_change[1] is not None
    assert longer.e2e_p95_change[1] > 0
    assert longer.cost_change[1] is not None
    assert longer.cost_change[1] < 0  # the same bill over more tokens
    assert [swing.span for swing in found.swings] == sorted(
        (swing.span for swing in found.swings), reverse=True
    )
    assert {"prompt lengths", "request rate"} <= set(by_input)


def test_advice_is_evaluated_for_this_deployment() -> None:
    found = advise(
        "llama-3.1-8b", gpu="h100", price="2", enforce_eager=True, max_model_len=100_000, **TRAFFIC
    )
    by_change = {line.change: line for line in found.advice}
    graphs = by_change["use CUDA graphs"]
    assert graphs.tpot_p95_change is not None
    assert graphs.tpot_p95_change < -0.1
    assert graphs.flags == "--no-enforce-eager"
    fp8 = by_change["quantize the weights to fp8"]
    assert fp8.worst_quality_loss
    assert fp8.cost_change is not None
    assert fp8.cost_change < 0
    assert [line.benefit for line in found.advice] == sorted(
        (line.benefit for line in found.advice), reverse=True
    )
    assert any("streaming" in text for text in found.observations)
    again = diff(deployment(enforce_eager=True), deployment(enforce_eager=False))
    tpot = next(difference for difference in again.differences if difference.metric == "tpot")
    before, after = tpot.first_percentiles_s["p95"], tpot.second_percentiles_s["p95"]
    assert graphs.tpot_p95_change == pytest.approx(
        after / before - 1, rel=0.02
    )  # the same model says the same


def test_advice_that_cannot_be_taken_says_why() -> None:
    found = advise("llama-3.1-8b", gpu="h100", tensor_parallel_size=8, **TRAFFIC)
    refused = {line.change: line.refused for line in found.refused}
    assert "twice the tensor parallelism" not in {line.change for line in found.advice} or not refused
    assert all(reason for reason in refused.values())
    with pytest.raises(DoesNotFit):
        advise("llama-3.1-405b", gpu="h100", **TRAFFIC)
    assert Pool(gpu="h100").tensor_parallel_size == 1
