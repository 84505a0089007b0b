"""Manifests: YAML with GPUs, probes, mounted files and services that fit together."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from capacity.deployment import Pool
from capacity.deployment.launch_writers import launch_command
from capacity.report.fronts import proxy_command
from capacity.report.kubernetes import kubernetes_disaggregated, kubernetes_manifest, pod_addresses

POOL = Pool(gpu="h100", tensor_parallel_size=4, quantization="fp8", max_num_batched_tokens=2048)
PAIR = (
    Pool(gpu="h100", tensor_parallel_size=2, role="prefill", replicas=2),
    Pool(gpu="h100", tensor_parallel_size=4, role="decode", replicas=3),
)


def documents(manifest: str) -> list[Any]:
    """Every document of the stream; each has what the API server asks of any."""
    found = list(yaml.safe_load_all(manifest))
    names = [(document["kind"], document["metadata"]["name"]) for document in found]
    assert len(set(names)) == len(names)
    for document in found:
        assert set(document) <= {"apiVersion", "kind", "metadata", "spec", "data"}
        assert document["apiVersion"] in ("v1", "apps/v1", "autoscaling/v2")
    return found


def apart(engine: str) -> str:
    pools = [pool.model_copy(update={"engine": engine}) for pool in PAIR]
    proxy = proxy_command(engine, *(pod_addresses("M 1", pool) for pool in pools))
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
    cache, deployment, service = documents(
        kubernetes_manifest("Llama 3.1/70B", launch, POOL, 3, weights_gib=131.4)
    )
    assert deployment["spec"]["replicas"] == 3
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == list(launch.words)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert service["metadata"]["name"] == "llama-3-1-70b"
    assert cache["kind"] == "PersistentVolumeClaim"
    assert cache["spec"]["resources"]["requests"]["storage"] == "200Gi"


def test_a_container_waits_for_its_weights_and_shares_memory() -> None:
    """Every value of one manifest: what an engine, a proxy with a file to read, and their services are."""
    launch = launch_command("vllm", "org/model", PAIR[0])
    _, deployment, service = documents(kubernetes_manifest("m", launch, PAIR[0], 2))
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
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                    "containers": [
                        {
                            "name": "engine",
                            "image": "vllm/vllm-openai:v0.33.0",
                            "command": list(launch.words),
                            "env": [
                                {"name": "HF_HOME", "value": "/model-cache"},
                                {
                                    "name": "HF_TOKEN",
                                    "valueFrom": {
                                        "secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}
                                    },
                                },
                                {
                                    "name": "VLLM_NIXL_SIDE_CHANNEL_HOST",
                                    "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
                                },
                            ],
                            "ports": [{"name": "http", "containerPort": 8000}],
                            "resources": {
                                "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": 2},
                                "limits": {"nvidia.com/gpu": 2},
                            },
                            "startupProbe": health | {"periodSeconds": 10, "failureThreshold": 360},
                            "readinessProbe": health | {"periodSeconds": 5},
                            "livenessProbe": health | {"periodSeconds": 15, "failureThreshold": 4},
                            "volumeMounts": [
                                {"name": "shm", "mountPath": "/dev/shm"},
                                {"name": "model-cache", "mountPath": "/model-cache"},
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
                        {"name": "model-cache", "persistentVolumeClaim": {"claimName": "m-model-cache"}},
                    ],
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


def test_on_amd_gpus_vllm_has_the_image_and_setting_for_them() -> None:
    pool = POOL.model_copy(update={"gpu": "mi300x-192gb", "quantization": None})
    manifest = kubernetes_manifest("m", launch_command("vllm", "org/model", pool), pool, 1)
    (deployment,) = [d for d in documents(manifest) if d["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "vllm/vllm-openai-rocm:v0.33.0"
    assert "VLLM_ROCM_USE_AITER=1" in str(container["command"])
    assert set(container["resources"]["limits"]) >= {"amd.com/gpu"}
    assert "AITER" not in launch_command("vllm", "org/model", POOL).text


@pytest.mark.parametrize(
    ("engine", "image"),
    [
        ("vllm", "vllm/vllm-openai:v0.33.0"),
        ("vllm@0.11", "vllm/vllm-openai:v0.11.0"),
        ("vllm@0.10.2", "vllm/vllm-openai:v0.10.2"),
        ("sglang", "lmsysorg/sglang:v0.5.23"),
        ("tensorrt-llm", "nvcr.io/nvidia/tensorrt-llm/release:1.2.0"),
        ("llama.cpp", "ghcr.io/ggml-org/llama.cpp:server-cuda-b7000"),
    ],
)
def test_manifest_pins_the_release_of_the_engine(engine: str, image: str) -> None:
    pool = POOL.model_copy(update={"engine": engine, "quantization": None})
    manifest = kubernetes_manifest("m", launch_command(engine, "org/model", pool), pool, 1)
    (deployment,) = [d for d in documents(manifest) if d["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image


def test_manifest_scales_on_the_requests_in_flight_at_the_planned_load() -> None:
    launch = launch_command("vllm", "org/model", POOL)
    *_, scaler = documents(kubernetes_manifest("m", launch, POOL, 3, in_flight=17.2))
    assert scaler["kind"] == "HorizontalPodAutoscaler"
    assert scaler["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "m"}
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (3, 6)
    (metric,) = scaler["spec"]["metrics"]
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "18"}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_manifest_is_block_yaml_with_its_notes_as_comments(engine: str) -> None:
    manifest = apart(engine)
    assert manifest.startswith("---\n")
    assert "apiVersion: apps/v1\nkind: StatefulSet\n" in manifest
    assert not any(line.lstrip().startswith(("{", "}")) or "*id" in line for line in manifest.splitlines())
    assert "# add a nodeSelector with the label that your nodes use for h100" in manifest
    assert len(documents(manifest)) >= 7


def test_manifest_selects_nodes_by_product_where_it_is_known() -> None:
    pool = Pool(gpu="h200-sxm-141gb")
    manifest = kubernetes_manifest("m", launch_command("vllm", "org/model", pool), pool, 1)
    _, deployment, _ = documents(manifest)
    assert deployment["spec"]["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}


def test_an_engine_over_several_nodes_is_named_in_a_note() -> None:
    wide = Pool(gpu="h100", tensor_parallel_size=8, pipeline_parallel_size=2)
    manifest = kubernetes_manifest("m", launch_command("vllm", "m", wide), wide, 1)
    assert "# 16 GPUs of one engine span several nodes: use a LeaderWorkerSet" in manifest
    (container,) = documents(manifest)[1]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
