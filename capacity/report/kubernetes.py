"""Kubernetes manifests of a deployment in YAML, with notes as comments before each document."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import yaml

from capacity.deployment import Pool
from capacity.deployment.command_words import PORT, PROXY_PORT, Launch
from capacity.deployment.flag_table import find_published_release
from capacity.deployment.launch_writers import engine_name
from capacity.deployment.server_forms import gpu_product

PROGRAMS = {"llama-server": "/app/llama-server"}  # location of programs that are not on the image's PATH
HEALTH = {"ollama": "/"}  # readiness path, if not /health
STARTUP_S = 3600  # long enough to load a large checkpoint
GPUS_PER_NODE = 8
OPTIONS = "/options"  # mount path of the files that a command reads
CACHE = "/model-cache"  # mount path of the model cache
TOKEN_SECRET = "hf-token"
# requests for one worker process a GPU and the API server; assumed, 2026-11-24
CPUS_PER_GPU, MEMORY_PER_GPU_GIB = 4, 32
# room for a download next to the files of an earlier revision; assumed, 2026-11-24
CACHE_GIB_PER_WEIGHTS = 1.5
CACHE_VARIABLES = {"ollama": "OLLAMA_MODELS", "llama.cpp": "LLAMA_CACHE"}  # other engines: HF_HOME
METRICS = {"vllm": "vllm_num_requests_running"}  # vllm:num_requests_running, as prometheus-adapter names it
NIXL_HOST = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
VERSIONS = {"Deployment": "apps/v1", "StatefulSet": "apps/v1", "HorizontalPodAutoscaler": "autoscaling/v2"}

Fields = dict[str, object]


class _Dumper(yaml.SafeDumper):
    """YAML dumper without aliases: a mapping that occurs twice is written twice."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


class Document(NamedTuple):
    """One Kubernetes resource with notes, which become comments above it."""

    kind: str
    name: str
    body: Fields
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the resource as a YAML document, with the notes first."""
        version = VERSIONS.get(self.kind, "v1")
        head: Fields = {"apiVersion": version, "kind": self.kind, "metadata": {"name": self.name}}
        body = yaml.dump(head | self.body, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
        return "".join(["---\n", *(f"# {note}\n" for note in self.notes), body])


def kubernetes_manifest(
    name: str,
    launch: Launch,
    pool: Pool,
    replicas: int,
    *,
    weights_gib: float = 100.0,
    in_flight: float | None = None,
) -> str:
    """Return a Deployment, its model cache and its Service, and an autoscaler if `in_flight` is given.

    `in_flight`: requests in flight on one replica at the planned load.
    """
    label = _dns_name(name)
    engines = _engine_documents("Deployment", label, launch, pool, replicas, cache=label)
    documents = [_model_cache(label, weights_gib), *engines, _service(label, PORT)]
    metric = METRICS.get(engine_name(pool.engine))
    if in_flight is not None and metric is not None:
        documents.append(_autoscaler(label, metric, replicas, in_flight))
    return "".join(document.text for document in documents)


def kubernetes_disaggregated(
    name: str, launches: Sequence[Launch], pools: Sequence[Pool], proxy: Launch, *, weights_gib: float = 100.0
) -> str:
    """Return prefill and decode servers that share one model cache, and their proxy with its Service.

    `pod_addresses` returns the addresses at which the proxy finds the servers.
    """
    label = _dns_name(name)
    documents = [_model_cache(label, weights_gib)]
    for launch, pool in zip(launches, pools, strict=True):
        own = f"{label}-{pool.role}"
        documents += _engine_documents("StatefulSet", own, launch, pool, pool.replicas, cache=label)
        documents.append(_service(own, PORT, headless=True))
    documents += [*_proxy_documents(label, pools[0].engine, proxy), _service(label, PROXY_PORT)]
    return "".join(document.text for document in documents)


def pod_addresses(name: str, pool: Pool) -> tuple[str, ...]:
    """Return the address (host:port) of each replica of a pool that `kubernetes_disaggregated` creates."""
    own = f"{_dns_name(name)}-{pool.role}"
    return tuple(f"{own}-{number}.{own}:{PORT}" for number in range(pool.replicas))


def _model_cache(label: str, weights_gib: float) -> Document:
    """Return a volume claim for the weights, so that a restarted pod does not download them again."""
    size = f"{math.ceil(weights_gib * CACHE_GIB_PER_WEIGHTS / 10) * 10}Gi"
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}}
    note = "set storageClassName to a class that several nodes can mount"
    return Document("PersistentVolumeClaim", f"{label}-model-cache", {"spec": spec}, (note,))


def _autoscaler(label: str, metric: str, replicas: int, in_flight: float) -> Document:
    """Return an autoscaler that adds replicas if requests in flight per replica exceed those at the planned load."""
    target: Fields = {"type": "AverageValue", "averageValue": str(max(math.ceil(in_flight), 1))}
    spec: Fields = {
        "scaleTargetRef": {"apiVersion": VERSIONS["Deployment"], "kind": "Deployment", "name": label},
        "minReplicas": replicas,
        "maxReplicas": 2 * replicas,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": metric}, "target": target}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
    }
    note = f"averageValue: requests in flight on a replica at the planned load; {metric} needs prometheus-adapter"
    return Document("HorizontalPodAutoscaler", label, {"spec": spec}, (note,))


def _engine_documents(
    kind: str, label: str, launch: Launch, pool: Pool, replicas: int, *, cache: str
) -> Iterator[Document]:
    """Return the resources of one engine named `label`: the files that its command reads, then its replicas."""
    engine = engine_name(pool.engine)
    nixl = engine == "vllm" and pool.role != "both"
    gpus = min(pool.num_gpus, GPUS_PER_NODE)
    vendor = "amd.com/gpu" if pool.gpu.startswith("mi") else "nvidia.com/gpu"
    requests: Fields = {"cpu": str(CPUS_PER_GPU * gpus), "memory": f"{MEMORY_PER_GPU_GIB * gpus}Gi"}
    token = {"name": TOKEN_SECRET, "key": "token", "optional": True}
    health: Fields = {"httpGet": {"path": HEALTH.get(engine, "/health"), "port": PORT}}
    container: Fields = {
        "name": "engine",
        "image": find_published_release(pool.engine).image or engine,
        "command": _command(launch),
        "env": [
            {"name": CACHE_VARIABLES.get(engine, "HF_HOME"), "value": CACHE},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}},
            *([NIXL_HOST] if nixl else []),
        ],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"requests": requests | {vendor: gpus}, "limits": {vendor: gpus}},
        "startupProbe": health | {"periodSeconds": 10, "failureThreshold": STARTUP_S // 10},
        "readinessProbe": health | {"periodSeconds": 5},
        "livenessProbe": health | {"periodSeconds": 15, "failureThreshold": 4},
    }
    notes = [
        f"a gated model needs: kubectl create secret generic {TOKEN_SECRET} --from-literal=token=$HF_TOKEN",
        "the cpu and memory requests are assumptions",
    ]
    product = gpu_product(pool.gpu)
    if product is None:
        notes.append(f"add a nodeSelector with the label that your nodes use for {pool.gpu}")
    if pool.num_gpus > GPUS_PER_NODE:
        span = "span several nodes: use a LeaderWorkerSet; the pod below is for one node"
        notes.insert(0, f"{pool.num_gpus} GPUs of one engine {span}")
    if nixl:
        notes.append(f"{NIXL_HOST['name']}: address from which the other pool fetches KV")
    named: Fields = {"serviceName": label} if kind == "StatefulSet" else {}
    selector: Fields = {} if product is None else {"nodeSelector": {"nvidia.com/gpu.product": product}}
    tolerations = [{"key": vendor, "operator": "Exists", "effect": "NoSchedule"}]
    pod = selector | {"tolerations": tolerations} | _pod(label, container, launch, cache=cache)
    yield from _options_configmap(label, launch)
    yield Document(kind, label, {"spec": named | _replica_spec(label, pod, replicas)}, tuple(notes))


def _proxy_documents(label: str, engine: str, proxy: Launch) -> Iterator[Document]:
    """Return the proxy between the prefill and the decode pool; its name and address are `label`."""
    own = f"{label}-proxy"
    container: Fields = {
        "name": "proxy",
        "image": find_published_release(engine).image or engine,
        "command": _command(proxy),
        "ports": [{"containerPort": PROXY_PORT}],
        "readinessProbe": {"tcpSocket": {"port": PROXY_PORT}, "periodSeconds": 5},
    }
    pod = _pod(own, container, proxy)
    yield from _options_configmap(own, proxy)
    yield Document("Deployment", own, {"spec": _replica_spec(label, pod, 1)}, tuple(proxy.notes))


def _replica_spec(label: str, pod: Fields, count: int) -> Fields:
    labels = {"app": label}
    return {
        "replicas": count,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }


def _command(launch: Launch) -> list[str]:
    """Return the words of the command, with file names replaced by their mount paths in the pod."""
    mounted = {name: f"{OPTIONS}/{name}" for name, _ in launch.files}
    first, *rest = launch.words
    return [PROGRAMS.get(first, first), *(mounted.get(word, word) for word in rest)]


def _options_configmap(label: str, launch: Launch) -> Iterator[Document]:
    """Return a ConfigMap with the files that a command reads; nothing if it reads none."""
    if launch.files:
        yield Document("ConfigMap", f"{label}-options", {"data": dict(launch.files)})


def _pod(label: str, container: Fields, launch: Launch, *, cache: str | None = None) -> Fields:
    """Return the pod: the container with shared memory, the model cache, and the files that its command reads."""
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[Fields] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]
    if cache is not None:
        mounts.append({"name": "model-cache", "mountPath": CACHE})
        claim: Fields = {"claimName": f"{cache}-model-cache"}
        volumes.append({"name": "model-cache", "persistentVolumeClaim": claim})
    if launch.files:
        mounts.append({"name": "options", "mountPath": OPTIONS})
        volumes.append({"name": "options", "configMap": {"name": f"{label}-options"}})
    return {"containers": [container | {"volumeMounts": mounts}], "volumes": volumes}


def _service(label: str, port: int, *, headless: bool = False) -> Document:
    spec: Fields = {"clusterIP": "None"} if headless else {}
    ports = [{"port": port if headless else 80, "targetPort": port}]
    return Document("Service", label, {"spec": spec | {"selector": {"app": label}, "ports": ports}})


def _dns_name(text: str) -> str:
    """Return `text` as a Kubernetes name: lower-case letters, digits and hyphens, at most 63 characters."""
    kept = "".join(c if c.isalnum() and c.isascii() else "-" for c in text.lower())
    return kept.strip("-")[:63].strip("-") or "llm"
