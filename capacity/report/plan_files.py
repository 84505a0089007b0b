"""A plan as a folder of files: report, launch commands, manifest, benchmark and comparison, and the plan itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from capacity.answers.engine_setup import make_workload
from capacity.base.command_text import command_line
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, Traffic
from capacity.model import ModelSpec, load_model
from capacity.report.launching import (
    PORT,
    PROXY_PORT,
    Launch,
    addresses,
    bench_command,
    kubernetes_disaggregated,
    kubernetes_manifest,
    launch_command,
    proxy_command,
    router_command,
)
from capacity.report.plan_html import plan_html
from capacity.report.planning import finite
from capacity.workload import Workload, parse_slos, write_timed_trace

if TYPE_CHECKING:
    from capacity.planning.records import Plan, Ranked
    from capacity.planning.space import Candidate

RESULT = "result.json"
ONE_RESULT = "result-one-replica.json"
ENGINES = ("vllm", "sglang", "tensorrt-llm")


def write_plan_files(
    plan: Plan, folder: Path, *, model: str | ModelSpec, traffic: Traffic
) -> tuple[Path, ...]:
    """Write the files into `folder` (made where it is missing); returns their paths. Raises InvalidInput."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        texts = _texts(plan, plan.best, folder, model, traffic) if plan.best else {}
        report = plan_html(plan, [(name, text) for name, text in texts.items()])
        texts |= {
            "report.html": report,
            "plan.json": json.dumps(finite(plan.to_dict()), indent=2, allow_nan=False),
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write to {folder}: {error.strerror}") from None
    return tuple(folder / name for name in texts)


def _texts(
    plan: Plan, best: Ranked, folder: Path, model: str | ModelSpec, traffic: Traffic
) -> dict[str, str]:
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    name = spec.hf_id or spec.name
    candidate = best.candidate
    texts: dict[str, str] = {}
    for engine in ENGINES:
        for pool in candidate.pools:
            kind = "" if pool.role == "both" else f"-{pool.role}"
            header = f"one of {pool.replicas} replicas{kind.replace('-', ' that ')}: {candidate.label}"
            texts[f"launch-{engine}{kind}.sh"] = _script(header, launch_command(engine, name, pool))
        if candidate.prefill is not None:
            proxy = proxy_command(engine, *_hosts(candidate.pools))
            texts[f"launch-{engine}-proxy.sh"] = _script("before all of them; requests go here", proxy)
    if candidate.prefill is None and candidate.replicas > 1:
        hosts = [f"replica-{number}:{PORT}" for number in range(candidate.replicas)]
        router = router_command(candidate.pool.engine, candidate.router, hosts)
        texts["router.sh"] = _script("before all replicas; requests go here", router)
    texts["kubernetes.yaml"] = _manifest(spec.name, name, candidate)
    texts |= _benchmarks(plan, best, folder, name, model, traffic)
    return texts


def _script(header: str, *launches: Launch) -> str:
    """A shell script: the files that the commands read, then the commands."""
    lines = ["#!/bin/sh", f"# {header}"]
    for launch in launches:
        lines += [f"# {note}" for note in launch.notes]
        for name, text in launch.files:
            lines += [f"cat > {name} <<'EOF'", text.rstrip("\n"), "EOF"]
        lines.append(launch.text)
    return "\n".join(lines) + "\n"


def _hosts(pools: Sequence[Pool]) -> list[list[str]]:
    return [[f"{pool.role}-{number}:{PORT}" for number in range(pool.replicas)] for pool in pools]


def _manifest(model: str, name: str, candidate: Candidate) -> str:
    pools = candidate.pools
    launches = [launch_command(pool.engine, name, pool) for pool in pools]
    if candidate.prefill is None:
        return kubernetes_manifest(model, launches[0], pools[0], candidate.replicas)
    proxy = proxy_command(pools[0].engine, *(addresses(model, pool) for pool in pools))
    return kubernetes_disaggregated(model, launches, pools, proxy)


def _benchmarks(
    plan: Plan, best: Ranked, folder: Path, name: str, model: str | ModelSpec, traffic: Traffic
) -> dict[str, str]:
    """The plan's arrivals against all replicas; and, as `compare` replays one engine, one in n of them against one.

    Of random arrivals that take turns over n replicas, one sees gaps of n: n times the burstiness.
    """
    candidate = best.candidate
    whole = make_workload(traffic)
    several = candidate.prefill is not None or candidate.replicas > 1
    everything = _bench(plan, best, folder, name, traffic, whole, replicas=candidate.replicas, result=RESULT)
    texts = {
        "benchmark.sh": _script(
            "the arrivals of the plan, against what stands before all replicas", everything
        )
    }
    if candidate.prefill is not None:
        return texts
    named = model if isinstance(model, str) else name
    options = {"model": named, **candidate.pool.model_dump(exclude_defaults=True)}
    if not several:
        compare = command_line("compare", RESULT, options)
        texts["compare.sh"] = f"#!/bin/sh\n# what the server did, beside what was predicted\n{compare}\n"
        return texts
    share = whole.take(np.arange(0, len(whole), candidate.replicas))
    one = _bench(plan, best, folder, name, traffic, share, replicas=1, result=ONE_RESULT)
    compare = command_line("compare", ONE_RESULT, options)
    header = (
        f"one replica alone with every {candidate.replicas}th arrival, then that beside what was predicted"
    )
    texts["compare.sh"] = _script(header, one) + f"{compare}\n"
    return texts


def _bench(
    plan: Plan,
    best: Ranked,
    folder: Path,
    name: str,
    traffic: Traffic,
    workload: Workload,
    *,
    replicas: int,
    result: str,
) -> Launch:
    replay = None
    if traffic.trace is not None:
        arrivals = result.replace("result", "arrivals").replace(".json", ".jsonl")
        replay = write_timed_trace(workload, folder / arrivals).replace(str(folder / arrivals), arrivals)
    candidate = best.candidate
    several = candidate.prefill is not None or replicas > 1
    return bench_command(
        name,
        slos=parse_slos(plan.slos),
        requests=len(workload),
        request_rate_per_s=plan.requests_per_s * len(workload) / plan.requests,
        input_tokens=plan.input_tokens,
        output_tokens=plan.output_tokens,
        burstiness=traffic.burstiness * candidate.replicas / replicas,
        range_ratio=traffic.random_range_ratio,
        prefix_tokens=traffic.random_prefix_len,
        replay=replay,
        port=PROXY_PORT if several else PORT,
        result=result,
        metadata=[
            ("gpu", candidate.pool.gpu),
            ("tp", candidate.pool.tensor_parallel_size),
            ("replicas", replicas),
        ],
    )
