"""Alert rules, autoscaler and Terraform variables of a plan: limits and numbers are those of the plan."""

from __future__ import annotations

import json

import pytest
import yaml
from form_schemas import MODEL, texts, written

from capacity.deployment import Pool
from capacity.deployment.launch_writers import launch_command
from capacity.report.deploy_files import deploy_files


def test_alert_rules_have_the_limits_of_the_plan() -> None:
    rules = {
        rule["alert"].removeprefix("CapacityPlan"): rule["expr"]
        for rule in written("sglang")["prometheus-alerts.yaml"]["groups"][0]["rules"]
    }
    chosen = f'{{model_name="{MODEL}"}}'
    assert rules["TtftAboveSlo"] == (
        f"histogram_quantile(0.95, sum by (le) (rate(sglang:time_to_first_token_seconds_bucket{chosen}[5m]))) > 0.5"
    )
    assert "TpotAboveSlo" not in rules  # SGLang exports gaps between tokens, not the mean per request
    assert rules["RequestsWaiting"] == f"sum(sglang:num_queue_reqs{chosen}) > 13"
    assert rules["KvCacheFull"] == f"sglang:token_usage{chosen} > 0.95"
    assert rules["ReplicasBelowPlan"].endswith("< 2")
    vllm = yaml.safe_load(texts("one")["prometheus-alerts.yaml"])["groups"][0]["rules"]
    assert [rule["expr"].rpartition(" ")[2] for rule in vllm] == ["0.5", "0.04", "13", "0.95", "1"]


def test_autoscaler_keeps_the_requests_per_replica_of_the_planned_load() -> None:
    spec = written("replicas")["keda-scaledobject.yaml"]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (3, 6)
    assert spec["triggers"][0]["metadata"]["threshold"] == "5"  # 12.5 requests in flight on 3 replicas
    assert spec["scaleTargetRef"]["name"] == "model-1"


@pytest.mark.parametrize(
    ("gpus", "replicas", "nodes"), [(1, 1, 1), (1, 8, 1), (1, 9, 2), (2, 5, 2), (8, 3, 3), (16, 2, 4)]
)
def test_terraform_variables_have_the_fewest_nodes(gpus: int, replicas: int, nodes: int) -> None:
    pool = Pool(gpu="h100-sxm-80gb", tensor_parallel_size=gpus, replicas=replicas)
    launch = launch_command("vllm", MODEL, pool)
    found = deploy_files("m", MODEL, [launch], [pool], slos=(), weights_gib=10.0, in_flight=1.0)
    described = json.loads(found["terraform.tfvars.json"])["pools"]["server"]
    assert (described["nodes"], described["replicas"], described["gpus_per_replica"]) == (
        nodes,
        replicas,
        gpus,
    )
    assert {"provider": "AWS", "type": "p5.48xlarge", "gpus": 8, "count": nodes} in described[
        "instance_types"
    ]
