"""A plan as a folder of files: report, launch commands, manifest, benchmark with its arrivals, and the plan itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from capacity.deployment import Traffic
from capacity.errors import InvalidInput
from capacity.launching import bench_command, kubernetes_manifest, launch_command
from capacity.model import ModelSpec, load_model
from capacity.plan_html import plan_html
from capacity.report_planning import finite
from capacity.serving import make_workload
from capacity.workload import parse_slos, write_timed_trace

if TYPE_CHECKING:
    from capacity.planning.records import Plan, Ranked

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
    pool = best.candidate.pool
    texts = {}
    for engine in ENGINES:
        launch = launch_command(engine, name, pool)
        notes = "".join(f"# {note}\n" for note in launch.notes)
        header = f"#!/bin/sh\n# one of {best.candidate.replicas} replicas: {best.candidate.label}\n"
        texts[f"launch-{engine}.sh"] = f"{header}{notes}{launch.text}\n"
    own = launch_command(pool.engine, name, pool)
    texts["kubernetes.yaml"] = kubernetes_manifest(spec.name, own, pool, best.candidate.replicas)
    texts["benchmark.sh"] = _benchmark(plan, best, folder, name, traffic)
    return texts


def _benchmark(plan: Plan, best: Ranked, folder: Path, name: str, traffic: Traffic) -> str:
    replay = None
    if traffic.trace is not None:
        workload = make_workload(traffic)
        replay = write_timed_trace(workload, folder / "arrivals.jsonl").replace(
            str(folder / "arrivals.jsonl"), "arrivals.jsonl"
        )
    bench = bench_command(
        name,
        slos=parse_slos(plan.slos),
        requests=plan.requests,
        request_rate_per_s=plan.requests_per_s,
        input_tokens=plan.input_tokens,
        output_tokens=plan.output_tokens,
        replay=replay,
        metadata=[
            ("gpu", best.candidate.pool.gpu),
            ("tp", best.candidate.pool.tensor_parallel_size),
            ("replicas", best.candidate.replicas),
        ],
    )
    notes = "".join(f"# {note}\n" for note in bench.notes)
    head = "#!/bin/sh\n# the arrivals of the plan, against the balancer in front of all replicas\n"
    return f"{head}{notes}{bench.text}\n"
