"""Kubernetes manifests of a deployment: JSON documents, which are YAML, with notes as comments before each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from capacity.deployment import Pool
from capacity.deployment.launch import PORT, PROXY_PORT, Launch
from capacity.deployment.launching import engine_name

IMAGES = {
    "tgi": "ghcr.io/huggingface/text-generation-inference:latest",
    "llama.cpp": "ghcr.io/ggml-org/llama.cpp:server-cuda",
    "ollama": "ollama/ollama:latest",
    "vllm": "vllm/vllm-openai:latest",
    "sglang": "lmsysorg/sglang:latest",
    "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:latest",
}
PROGRAMS = {"llama-server": "/app/llama-server"}  # where an image has a program that is on no path
HEALTH = {"ollama": "/"}  # where a server says that it is ready, if not at /health
STARTUP_S = 3600  # a large checkpoint is still loading: the server must not be killed meanwhile
GPUS_PER_NODE = 8
OPTIONS = "/options"  # where the files that a command reads are mounted
NIXL_HOST = {
    "name": "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
}

Fields = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One resource, and what is to be said of it in comments."""

    kind: str
    name: str
    body: Fields
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As JSON, the notes before it."""
        version = "v1" if self.kind in ("Service", "ConfigMap") else "apps/v1"
        head: Fields = {"apiVersion": version, "kind": self.kind, "metadata": {"name": self.name}}
        return "".join(f"# {note}\n" for note in self.notes) + json.dumps(head | self.body, indent=2) + "\n"


def kubernetes_manifest(name: str, launch: Launch, pool: Pool, replicas: int) -> str:
    """A Deployment and a Service: GPUs per replica, shared memory for NCCL, probes that wait for the weights."""
    label = _dns_name(name)
    return _stream([*_engines("Deployment", label, launch, pool, replicas), _service(label, PORT)])


def kubernetes_disaggregated(
    name: str, launches: Sequence[Launch], pools: Sequence[Pool], proxy: Launch
) -> str:
    """Prefill and decode servers, each under a name of its own, and the proxy before them with its Service.

    `addresses` says how the proxy finds them.
    """
    label = _dns_name(name)
    documents: list[Document] = []
    for launch, pool in zip(launches, pools, strict=True):
        own = f"{label}-{pool.role}"
        documents += _engines("StatefulSet", own, launch, pool, pool.replicas)
        documents.append(_service(own, PORT, headless=True))
    documents += _proxy(label, engine_name(pools[0].engine), proxy)
    return _stream([*documents, _service(label, PROXY_PORT)])


def addresses(name: str, pool: Pool) -> tuple[str, ...]:
    """host:port of each replica of a pool of `kubernetes_disaggregated`."""
    own = f"{_dns_name(name)}-{pool.role}"
    return tuple(f"{own}-{number}.{own}:{PORT}" for number in range(pool.replicas))


def _stream(documents: Iterable[Document]) -> str:
    """As one file. It begins with `---`: what begins with a brace, kubectl reads as JSON without separators."""
    return "".join(f"---\n{document.text}" for document in documents)


def _engines(kind: str, label: str, launch: Launch, pool: Pool, replicas: int) -> Iterator[Document]:
    """Replicas of one engine under the name `label`, after the files that its command reads."""
    engine = engine_name(pool.engine)
    nixl = engine == "vllm" and pool.role != "both"
    container: Fields = {"name": "engine", "image": IMAGES.get(engine, engine), "command": _command(launch)}
    if nixl:
        container["env"] = [NIXL_HOST]
    container |= {
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": {"nvidia.com/gpu": min(pool.num_gpus, GPUS_PER_NODE)}},
        "startupProbe": _health(engine, period_s=10, failures=STARTUP_S // 10),
        "readinessProbe": _health(engine, period_s=5),
        "livenessProbe": _health(engine, period_s=15, failures=4),
    }
    notes = [f"nodeSelector: the label by which your nodes name {pool.gpu}"]
    if pool.num_gpus > GPUS_PER_NODE:
        span = "span nodes: use a LeaderWorkerSet; the pod below is one node's"
        notes.insert(0, f"{pool.num_gpus} GPUs of one engine {span}")
    if nixl:
        notes.append(f"{NIXL_HOST['name']}: where the other side fetches KV")
    named: Fields = {"serviceName": label} if kind == "StatefulSet" else {}
    pod = {"nodeSelector": {}, **_pod(label, container, launch)}
    yield from _options(label, launch)
    yield Document(
        kind=kind, name=label, body={"spec": named | _replicas(label, pod, replicas)}, notes=tuple(notes)
    )


def _proxy(label: str, engine: str, proxy: Launch) -> Iterator[Document]:
    """What carries requests through both sides; it answers under the name `label`."""
    own = f"{label}-proxy"
    container: Fields = {
        "name": "proxy",
        "image": IMAGES.get(engine, engine),
        "command": _command(proxy),
        "ports": [{"containerPort": PROXY_PORT}],
        "readinessProbe": {"tcpSocket": {"port": PROXY_PORT}, "periodSeconds": 5},
    }
    pod = _pod(own, container, proxy)
    yield from _options(own, proxy)
    yield Document(
        kind="Deployment", name=own, body={"spec": _replicas(label, pod, 1)}, notes=tuple(proxy.notes)
    )


def _replicas(label: str, pod: Fields, count: int) -> Fields:
    labels = {"app": label}
    return {
        "replicas": count,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }


def _health(engine: str, *, period_s: int, failures: int | None = None) -> Fields:
    path = HEALTH.get(engine, "/health")
    probe: Fields = {"httpGet": {"path": path, "port": PORT}, "periodSeconds": period_s}
    return probe if failures is None else probe | {"failureThreshold": failures}


def _command(launch: Launch) -> list[str]:
    """Its words; of files, where they are mounted."""
    mounted = {name: f"{OPTIONS}/{name}" for name, _ in launch.files}
    first, *rest = launch.words
    return [PROGRAMS.get(first, first), *(mounted.get(word, word) for word in rest)]


def _options(label: str, launch: Launch) -> Iterator[Document]:
    """The files that a command reads, as a ConfigMap."""
    if launch.files:
        yield Document(kind="ConfigMap", name=f"{label}-options", body={"data": dict(launch.files)})


def _pod(label: str, container: Fields, launch: Launch) -> Fields:
    """The container with its shared memory, and with the files that its command reads."""
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[Fields] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]
    if launch.files:
        mounts.append({"name": "options", "mountPath": OPTIONS})
        volumes.append({"name": "options", "configMap": {"name": f"{label}-options"}})
    return {"containers": [container | {"volumeMounts": mounts}], "volumes": volumes}


def _service(label: str, port: int, *, headless: bool = False) -> Document:
    spec: Fields = {"clusterIP": "None"} if headless else {}
    ports = [{"port": port if headless else 80, "targetPort": port}]
    body: Fields = {"spec": spec | {"selector": {"app": label}, "ports": ports}}
    return Document(kind="Service", name=label, body=body)


def _dns_name(text: str) -> str:
    """`text` as Kubernetes names things: lower case, digits, hyphens, at most 63."""
    kept = "".join(c if c.isalnum() and c.isascii() else "-" for c in text.lower())
    return kept.strip("-")[:63].strip("-") or "llm"
