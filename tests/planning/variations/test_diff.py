"""Paired differences: exact where nothing differs, plausible where something does."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment import DeploymentFile, write_deployment
from capacity.planning.variations.diff import diff

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
    assert found.settings == (("quantization", "the default", "fp8"),)
    by_metric = {difference.metric: difference for difference in found.differences}
    assert set(by_metric) == {"ttft", "tpot", "e2e"}
    tpot = by_metric["tpot"]
    assert tpot.significant
    assert tpot.low_s <= tpot.mean_s <= tpot.high_s < 0
    assert tpot.faster_fraction > 0.9
    backwards = diff(deployment(quantization="fp8"), deployment())
    assert backwards.differences[1].mean_s == pytest.approx(-tpot.mean_s)


def test_another_model_is_a_setting() -> None:
    found = diff(deployment(), deployment() | {"model": "llama-3.2-1b"})
    assert found.settings == (("model", "llama-3.1-8b", "llama-3.2-1b"),)


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
