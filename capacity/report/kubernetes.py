"""Kubernetes manifests of a deployment in YAML, with notes as comments before each document."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from capacity.deployment import Pool
from capacity.deployment.command_words import PORT, PROXY_PORT, Launch
from capacity.deployment.flag_table import find_published_release
from capacity.deployment.launch_writers import engine_name
from capacity.deployment.server_forms import gpu_product

PARTS = Path(__file__).with_name("kubernetes_parts.yaml")
PROGRAMS = {"llama-server": "/app/llama-server"}  # location of programs that are not on the image's PATH
HEALTH = {"ollama": "/"}  # readiness path, if not /health
GPUS_PER_NODE = 8
OPTIONS = "/options"  # mount path of the files that a command reads
CACHE = "/model-cache"  # mount path of the model cache
# requests for one worker process a GPU and the API server; assumed, 2026-11-24
CPUS_PER_GPU, MEMORY_PER_GPU_GIB = 4, 32
# room for a download next to the files of an earlier revision; assumed, 2026-11-24
CACHE_GIB_PER_WEIGHTS = 1.5
CACHE_VARIABLES = {"ollama": "OLLAMA_MODELS", "llama.cpp": "LLAMA_CACHE"}  # other engines: HF_HOME
METRICS = {"vllm": "vllm_num_requests_running"}  # vllm:num_requests_running, as prometheus-adapter names it
NIXL_HOST = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
_PLACEHOLDER = re.compile(r"\$([a-z]+)")

Fields = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """YAML dumper without aliases: a mapping that occurs twice is written twice."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def dump_yaml(document: Fields) -> str:
    """Return a document as YAML, with keys in their order."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def fill(node: Any, values: Mapping[str, Any]) -> Any:
    """Return YAML data with its placeholders replaced; a text that is only a placeholder becomes the value itself."""
    if isinstance(node, dict):
        return {fill(key, values): fill(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [fill(each, values) for each in node]
    if not isinstance(node, str):
        return node
    whole = _PLACEHOLDER.fullmatch(node)
    return values[whole[1]] if whole else _PLACEHOLDER.sub(lambda at: str(values.get(at[1], at[0])), node)


@cache
def _parts() -> Any:
    return yaml.safe_load(PARTS.read_text(encoding="utf-8"))


def _document(part: str, *notes: str, **values: Any) -> str:
    """Return a part of the file as a YAML document, with the notes first."""
    return "".join(["---\n", *(f"# {note}\n" for note in notes), dump_yaml(fill(_parts()[part], values))])


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
    label = dns_name(name)
    engines = _engine_documents("Deployment", label, launch, pool, replicas, cache=label)
    texts = [_model_cache(label, weights_gib), *engines, _service(label, PORT)]
    metric = METRICS.get(engine_name(pool.engine))
    if in_flight is not None and metric is not None:
        note = f"averageValue: requests in flight on a replica at the planned load; {metric} needs prometheus-adapter"
        target = str(max(math.ceil(in_flight), 1))
        own = {"label": label, "replicas": replicas, "most": 2 * replicas, "metric": metric, "target": target}
        texts.append(_document("autoscaler", note, **own))
    return "".join(texts)


def kubernetes_disaggregated(
    name: str, launches: Sequence[Launch], pools: Sequence[Pool], proxy: Launch, *, weights_gib: float = 100.0
) -> str:
    """Return prefill and decode servers that share one model cache, and their proxy with its Service.

    `pod_addresses` returns the addresses at which the proxy finds the servers.
    """
    label = dns_name(name)
    texts = [_model_cache(label, weights_gib)]
    for launch, pool in zip(launches, pools, strict=True):
        own = f"{label}-{pool.role}"
        texts += _engine_documents("StatefulSet", own, launch, pool, pool.replicas, cache=label)
        texts.append(_service(own, PORT, headless=True))
    texts += [*_proxy_documents(label, pools[0].engine, proxy), _service(label, PROXY_PORT)]
    return "".join(texts)


def pod_addresses(name: str, pool: Pool) -> tuple[str, ...]:
    """Return the address (host:port) of each replica of a pool that `kubernetes_disaggregated` creates."""
    own = f"{dns_name(name)}-{pool.role}"
    return tuple(f"{own}-{number}.{own}:{PORT}" for number in range(pool.replicas))


def cache_gib(weights_gib: float) -> int:
    """Return the size in GiB of a volume for the weights of a model."""
    return math.ceil(weights_gib * CACHE_GIB_PER_WEIGHTS / 10) * 10


def _model_cache(label: str, weights_gib: float) -> str:
    """Return a volume claim for the weights, so that a restarted pod does not download them again."""
    note = "set storageClassName to a class that several nodes can mount"
    return _document("model_cache", note, label=label, size=f"{cache_gib(weights_gib)}Gi")


def gpu_resource(pool: Pool) -> str:
    """Return the Kubernetes resource name of the GPUs, such as `nvidia.com/gpu`."""
    return "amd.com/gpu" if pool.on_amd else "nvidia.com/gpu"


def engine_container(pool: Pool) -> Fields:
    """Return the container of one engine without its command: image, environment, resources and probes."""
    engine, gpus = engine_name(pool.engine), min(pool.num_gpus, GPUS_PER_NODE)
    values = {
        "image": find_published_release(pool.engine, amd=pool.on_amd).image or engine,
        "cpus": str(CPUS_PER_GPU * gpus),
        "memory": f"{MEMORY_PER_GPU_GIB * gpus}Gi",
        "vendor": gpu_resource(pool),
        "gpus": gpus,
        "health": HEALTH.get(engine, "/health"),
    }
    container: Fields = fill(_parts()["container"], values)
    container["env"] += [NIXL_HOST] if engine == "vllm" and pool.role != "both" else []
    return container


def _engine_documents(
    kind: str, label: str, launch: Launch, pool: Pool, replicas: int, *, cache: str
) -> Iterator[str]:
    """Return the manifests of one engine named `label`: the files that its command reads, then its replicas."""
    container = engine_container(pool)
    notes = [
        "a gated model needs: kubectl create secret generic hf-token --from-literal=token=$HF_TOKEN",
        "the cpu and memory requests are assumptions",
    ]
    product = gpu_product(pool.gpu)
    if product is None:
        notes.append(f"add a nodeSelector with the label that your nodes use for {pool.gpu}")
    if pool.num_gpus > GPUS_PER_NODE:
        span = "span several nodes: use a LeaderWorkerSet; the pod below is for one node"
        notes.insert(0, f"{pool.num_gpus} GPUs of one engine {span}")
    if NIXL_HOST in container["env"]:
        notes.append(f"{NIXL_HOST['name']}: address from which the other pool fetches KV")
    folder = {"name": CACHE_VARIABLES.get(engine_name(pool.engine), "HF_HOME"), "value": CACHE}
    container |= {"command": _command(launch), "env": [folder, *container["env"]]}
    selector: Fields = {} if product is None else {"nodeSelector": {"nvidia.com/gpu.product": product}}
    tolerations = [{"key": gpu_resource(pool), "operator": "Exists", "effect": "NoSchedule"}]
    pod = selector | {"tolerations": tolerations} | _pod(label, container, launch, cache=cache)
    yield from _options(label, launch)
    workload = fill(
        _parts()["workload"], {"kind": kind, "name": label, "label": label, "replicas": replicas, "pod": pod}
    )
    if kind == "StatefulSet":
        workload["spec"]["serviceName"] = label
    yield "".join(["---\n", *(f"# {note}\n" for note in notes), dump_yaml(workload)])


def _proxy_documents(label: str, engine: str, proxy: Launch) -> Iterator[str]:
    """Return the proxy between the prefill and the decode pool; its name and address are `label`."""
    own = f"{label}-proxy"
    values = {"image": find_published_release(engine).image or engine, "command": _command(proxy)}
    pod = _pod(own, fill(_parts()["proxy"], values), proxy)
    yield from _options(own, proxy)
    yield _document("workload", *proxy.notes, kind="Deployment", name=own, label=label, replicas=1, pod=pod)


def _command(launch: Launch) -> list[str]:
    """Return the words of the command, with file names replaced by their mount paths in the pod."""
    mounted = {name: f"{OPTIONS}/{name}" for name, _ in launch.files}
    first, *rest = launch.words
    return [PROGRAMS.get(first, first), *(mounted.get(word, word) for word in rest)]


def _options(name: str, launch: Launch) -> Iterator[str]:
    """Return a ConfigMap with the files that a command reads; nothing if it reads none."""
    if launch.files:
        yield _document("options", name=name, files=dict(launch.files))


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


def _service(label: str, port: int, *, headless: bool = False) -> str:
    service = fill(_parts()["service"], {"label": label, "port": port if headless else 80, "target": port})
    service["spec"] |= {"clusterIP": "None"} if headless else {}
    return f"---\n{dump_yaml(service)}"


def dns_name(text: str) -> str:
    """Return `text` as a Kubernetes name: lower-case letters, digits and hyphens, at most 63 characters."""
    kept = "".join(c if c.isalnum() and c.isascii() else "-" for c in text.lower())
    return kept.strip("-")[:63].strip("-") or "llm"
