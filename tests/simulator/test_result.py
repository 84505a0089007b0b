"""What the engines of a deployment did, added up: sums and means over them."""

from __future__ import annotations

import json

import pytest
from cluster_runs import STEPS, requests

from capacity.simulator import EngineSetup, simulate

SETUP = EngineSetup(step_times=STEPS, num_blocks=200)


def test_a_deployments_figures_are_those_of_its_engines() -> None:
    run = simulate(requests(), [SETUP] * 3, router="round-robin")
    assert [replica.requests for replica in run.replicas] == [40, 40, 40]
    assert run.steps == sum(replica.steps for replica in run.replicas)
    assert run.preemptions == sum(replica.preemptions for replica in run.replicas)
    assert run.kv_utilization_peak == max(replica.kv_utilization_peak for replica in run.replicas)
    end_s = int(run.records.finish_ps.max()) / 1e12
    assert run.replica_s == pytest.approx(3 * end_s, rel=1e-12)


def test_only_a_deployment_with_a_router_describes_its_replicas() -> None:
    alone, routed = (simulate(requests(), SETUP, router=router).to_dict() for router in (None, "round-robin"))
    assert set(routed) - set(alone) >= {"router", "replicas", "replica_s", "transfers"}
    json.dumps(routed, allow_nan=False)
    assert {name: routed[name] for name in alone} == alone
