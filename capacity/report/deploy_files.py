"""Write a plan as files for deployment and monitoring tools: server manifests, Terraform, KEDA and Prometheus."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from capacity.base.latency_metrics import HISTOGRAMS, KV_USE, RUNNING, WAITING
from capacity.deployment import Pool
from capacity.deployment.command_words import Fields, Launch
from capacity.deployment.flag_table import find_published_release
from capacity.deployment.launch_writers import engine_name
from capacity.hardware import has_profile, load_profile
from capacity.hardware.pricing import price_table
from capacity.report.kubernetes import GPUS_PER_NODE, cache_gib, dns_name, dump_yaml, fill, gpu_resource
from capacity.report.server_form_files import write_form_files
from capacity.workload import Slo

CLOUDS = ("AWS", "Azure", "GCP")  # providers whose products in the price table are instance types
WATCHED = ("vllm", "sglang")  # engines whose metrics are known
README = "README.txt"
TERRAFORM, KEDA, ALERTS = "terraform.tfvars.json", "keda-scaledobject.yaml", "prometheus-alerts.yaml"


def deploy_files(
    name: str,
    model_id: str,
    launches: Sequence[Launch],
    pools: Sequence[Pool],
    *,
    slos: Sequence[Slo],
    weights_gib: float,
    in_flight: float,
) -> dict[str, str]:
    """Return a dict from file name to text; `README.txt` states how to apply each file, or why it is not written.

    `launches` and `pools`: one for each role. `in_flight`: requests in flight on all replicas at the planned load.
    """
    engine, release = (
        engine_name(pools[0].engine),
        find_published_release(pools[0].engine, amd=pools[0].on_amd),
    )
    replicas = sum(pool.replicas for pool in pools)
    values: Fields = {
        "name": dns_name(name),
        "model": model_id,
        "engine": engine,
        "version": release.version,
        "image": release.image,
        "vendor": gpu_resource(pools[0]),
        "size": f"{cache_gib(weights_gib)}Gi",
        "disaggregated": len(pools) > 1,
        "replicas": replicas,
        "most": 2 * replicas,
        "flight": max(math.ceil(in_flight), 1),
        "threshold": str(max(math.ceil(in_flight / replicas), 1)),
    }
    texts, lines = write_form_files(launches, pools, values)
    texts[TERRAFORM] = _terraform_variables(model_id, launches, pools)
    lines |= {
        TERRAFORM: "defines the variables `model` and `pools` for your own Terraform module",
        KEDA: f"kubectl apply -f {KEDA} instead of the autoscaler in kubernetes.yaml; set serverAddress",
        ALERTS: "add it to rule_files of Prometheus, or use `groups` as the spec of a PrometheusRule",
    }
    if engine in WATCHED:
        texts |= _watch_files(values, slos)
    why = (
        "prefill and decode servers have no common metric of load"
        if engine in WATCHED
        else f"the metric names of {engine} are not known"
    )
    lines |= {file: f"not written: {why}" for file in (KEDA, ALERTS) if file not in texts}
    width = max(map(len, lines))
    return texts | {README: "".join(f"{file:{width}}  {line}\n" for file, line in lines.items())}


def _watch_files(values: Mapping[str, Any], slos: Sequence[Slo]) -> dict[str, str]:
    """Return the files of Prometheus alert rules and, unless prefill and decode are separate, of the autoscaler."""
    parts = yaml.safe_load(Path(__file__).with_name("plan_watch.yaml").read_text(encoding="utf-8"))
    engine, chosen = values["engine"], f'{{model_name="{values["model"]}"}}'
    gauges = {"running": RUNNING, "waiting": WAITING, "used": KV_USE}
    named = {key: f"{engine}:{names[WATCHED.index(engine)]}{chosen}" for key, names in gauges.items()}
    filled = fill({key: part for key, part in parts.items() if key != "latency"}, {**values, **named})
    rules = [filled["memory"], filled["replicas"]]
    texts = {}
    if not values["disaggregated"]:
        latencies = [fill(parts["latency"], found) for found in _latencies(engine, chosen, slos)]
        rules = [*latencies, filled["load"], *rules]
        texts[KEDA] = dump_yaml(filled["autoscaler"])
    return texts | {ALERTS: dump_yaml({"groups": [{"name": "capacity-plan", "rules": rules}]})}


def _latencies(engine: str, chosen: str, slos: Sequence[Slo]) -> Iterator[Fields]:
    """Yield the template values of one alert rule per percentile SLO whose metric the engine exports as a histogram."""
    for slo in slos:
        if (
            slo.percentile is not None
            and slo.metric in HISTOGRAMS
            and (engine, slo.metric) != ("sglang", "tpot")
        ):
            yield {
                "metric": slo.metric.capitalize(),
                "slo": slo,
                "share": f"{slo.percentile / 100:g}",
                "histogram": f"{engine}:{HISTOGRAMS[slo.metric][0]}",
                "chosen": chosen,
                "limit": f"{slo.limit_s:g}",
            }


def _terraform_variables(model_id: str, launches: Sequence[Launch], pools: Sequence[Pool]) -> str:
    """Return Terraform variables as JSON: GPUs, nodes, image, command and cloud instance types of each pool."""
    described = {}
    for launch, pool in zip(launches, pools, strict=True):
        per_node = load_profile(pool.gpu).gpus_per_node if has_profile(pool.gpu) else GPUS_PER_NODE
        offers = {
            (offer.provider, offer.product.partition(" ")[0]): offer.gpus_per_instance
            for offer in price_table()
            if offer.provider in CLOUDS and offer.gpu == pool.gpu and offer.tier == "on-demand"
        }
        described["server" if pool.role == "both" else pool.role] = {
            "gpu": pool.gpu,
            "gpus_per_replica": pool.num_gpus,
            "replicas": pool.replicas,
            "gpus_per_node": per_node,
            "nodes": _nodes(pool, per_node),
            "image": find_published_release(pool.engine, amd=pool.on_amd).image,
            "command": launch.words,
            "instance_types": [
                {"provider": provider, "type": kind, "gpus": gpus, "count": _nodes(pool, gpus)}
                for (provider, kind), gpus in offers.items()
            ],
        }
    return json.dumps({"model": model_id, "pools": described}, indent=2) + "\n"


def _nodes(pool: Pool, gpus_per_node: int) -> int:
    """Return the number of nodes of a pool; replicas share a node if several of them fit on it."""
    if pool.num_gpus > gpus_per_node:
        return pool.replicas * math.ceil(pool.num_gpus / gpus_per_node)
    return math.ceil(pool.replicas / (gpus_per_node // pool.num_gpus))
