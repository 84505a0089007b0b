"""Manifests: JSON documents that YAML readers take, with GPUs, probes, mounted files and services that fit together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capacity.deployment import Pool
from capacity.deployment.launching import launch_command
from capacity.report.fronts import proxy_command
from capacity.report.kubernetes import addresses, kubernetes_disaggregated, kubernetes_manifest

POOL = Pool(gpu="h100", tensor_parallel_size=4, quantization="fp8", max_num_batched_tokens=2048)
PAIR = (
    Pool(gpu="h100", tensor_parallel_size=2, role="prefill", replicas=2),
    Pool(gpu="h100", tensor_parallel_size=4, role="decode", replicas=3),
)


def documents(manifest: str) -> list[Any]:
    """Each document as it is read without its comments."""
    parts = manifest.split("---\n")
    assert parts.pop(0) == ""
    lines = [[line for line in part.splitlines() if not line.startswith("#")] for part in parts]
    return [json.loads("\n".join(kept)) for kept in lines]


def apart(engine: str) -> str:
    pools = [pool.model_copy(update={"engine": engine}) for pool in PAIR]
    proxy = proxy_command(engine, *(addresses("M 1", pool) for pool in pools))
    launches = [launch_command(engine, "org/model", pool) for pool in pools]
    return kubernetes_disaggregated("M 1", launches, pools, proxy)


def test_the_manifest_of_a_disaggregated_deployment_has_both_sides_and_their_proxy() -> None:
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        resources = documents(apart(engine))
        servers = {d["metadata"]["name"]: d["spec"] for d in resources if d["kind"] == "StatefulSet"}
        assert {name: spec["replicas"] for name, spec in servers.items()} == {
            "m-1-prefill": 2,
            "m-1-decode": 3,
        }
        for name, gpus in (("m-1-prefill", 2), ("m-1-decode", 4)):
            (container,) = servers[name]["template"]["spec"]["containers"]
            assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
            assert servers[name]["serviceName"] == name
        services = {d["metadata"]["name"]: d["spec"] for d in resources if d["kind"] == "Service"}
        (front,) = [d for d in resources if d["kind"] == "Deployment"]
        assert services["m-1"]["selector"] == front["spec"]["template"]["metadata"]["labels"]
        mounted = {d["metadata"]["name"] for d in resources if d["kind"] == "ConfigMap"}
        for document in resources:
            for volume in (
                document["spec"].get("template", {}).get("spec", {}).get("volumes", ())
                if "spec" in document
                else ()
            ):
                assert "configMap" not in volume or volume["configMap"]["name"] in mounted


def test_the_manifest_asks_for_gpus_replicas_and_probes() -> None:
    launch = launch_command("vllm", 'we"ird: {name}', POOL)
    deployment, service = documents(kubernetes_manifest("Llama 3.1/70B", launch, POOL, 3))
    assert deployment["spec"]["replicas"] == 3
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == list(launch.words)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert service["metadata"]["name"] == "llama-3-1-70b"


def test_a_container_waits_for_its_weights_and_shares_memory() -> None:
    """Every value of one manifest: what an engine, a proxy with a file to read, and their services are."""
    launch = launch_command("vllm", "org/model", PAIR[0])
    deployment, service = documents(kubernetes_manifest("m", launch, PAIR[0], 2))
    health = {"httpGet": {"path": "/health", "port": 8000}}
    assert deployment == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "m"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "m"}},
            "template": {
                "metadata": {"labels": {"app": "m"}},
                "spec": {
                    "nodeSelector": {},
                    "containers": [
                        {
                            "name": "engine",
                            "image": "vllm/vllm-openai:latest",
                            "command": list(launch.words),
                            "env": [
                                {
                                    "name": "VLLM_NIXL_SIDE_CHANNEL_HOST",
                                    "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
                                }
                            ],
                            "ports": [{"containerPort": 8000}],
                            "resources": {"limits": {"nvidia.com/gpu": 2}},
                            "startupProbe": health | {"periodSeconds": 10, "failureThreshold": 360},
                            "readinessProbe": health | {"periodSeconds": 5},
                            "livenessProbe": health | {"periodSeconds": 15, "failureThreshold": 4},
                            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                        }
                    ],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}],
                },
            },
        },
    }
    assert service == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "m"},
        "spec": {"selector": {"app": "m"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_yaml_readers_take_a_manifest(engine: str) -> None:
    """Notes are comments; the stream begins as YAML does, for kubectl takes a leading brace for one JSON document."""
    yaml = pytest.importorskip("yaml")
    manifest = apart(engine)
    assert manifest.startswith("---\n")
    assert list(yaml.safe_load_all(manifest)) == documents(manifest)
    assert "# nodeSelector: the label by which your nodes name h100" in manifest


def test_an_engine_over_several_nodes_is_named_in_a_note() -> None:
    wide = Pool(gpu="h100", tensor_parallel_size=8, pipeline_parallel_size=2)
    manifest = kubernetes_manifest("m", launch_command("vllm", "m", wide), wide, 1)
    assert "# 16 GPUs of one engine span nodes: use a LeaderWorkerSet" in manifest
    assert documents(manifest)[0]["spec"]["template"]["spec"]["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": 8}
    }
