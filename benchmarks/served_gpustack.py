"""Replay the serving runs of GPUStack's performance lab: 2025, vLLM, SGLang and TensorRT-LLM, A100, H100 and H200.

    python benchmarks/served_gpustack.py [FOLDER]        every run; accuracy.py has the errors of all

FOLDER has the table `gpustack` (`.csv.gz` in the reference library, `.csv` where it ships with the tests). Each run is
a launch command of a public document and what `vllm bench serve` then measured: a closed loop of one to eight, or
every request at once, where TTFT is the queue. Runs are left out whose command has a flag that is not in `FLAGS`
(drafts, other attention backends, environment variables), whose engine, version or lengths the document does not say,
and answers of under 50 tokens. Lengths of ShareGPT prompts are published as means, and every request has them here.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from fit_profiles import default_measured
from reference_tables.form import read

from capacity.answers.engine_setup import engine_frontend, engine_setup
from capacity.base.errors import CapacityError
from capacity.deployment import Pool, build
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator import simulate
from capacity.workload import random_requests

GPUS = {"A100-SXM": "a100-sxm-80gb", "H100-SXM": "h100-sxm-80gb", "H200-SXM": "h200-sxm-141gb"}
ENGINES = {"vLLM": "vllm", "SGLang": "sglang", "TensorRT-LLM": "tensorrt-llm"}
SERVED = {"0.10.2": "0.10.2-flashinfer", "0.11.0": "0.11-flashinfer"}  # in images, which have FlashInfer
FLAGS = {  # of the launch commands, as this package's pools call them; None: it changes no time here
    "-tp": "tensor_parallel_size",
    "--tensor-parallel-size": "tensor_parallel_size",
    "--tp-size": "tensor_parallel_size",
    "--tp": "tensor_parallel_size",
    "--tp_size": "tensor_parallel_size",
    "--max-model-len": "max_model_len",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--max-num-seqs": "max_num_seqs",
    "--async-scheduling": "async_scheduling",
    "--enable-expert-parallel": "enable_expert_parallel",
    "-m": None,
    "--model-path": None,
    "--model": None,
    "--host": None,
    "--port": None,
    "--tokenizer-mode": None,
    "--reasoning-parser": None,
    "--tool-call-parser": None,
    "--enable-auto-tool-choice": None,
    "--trust-remote-code": None,
}
SWITCHES = ("async_scheduling", "enable_expert_parallel")
MIN_OUTPUT_TOKENS = 50
FORMATS = {
    "": None,
    "mxfp4": None,
    "fp8": "fp8-block",
}  # of the checkpoints served: as they come, or 128 x 128
RUN = [
    "gpu",
    "engine",
    "model",
    "weight_precision",
    "input_len",
    "output_len",
    "batch_or_concurrency",
    "load_type",
    "notes",
]


class Replay(NamedTuple):
    """One measured run and its prediction: means in seconds, (predicted, measured)."""

    load: str
    label: str
    ttft_s: tuple[float, float]
    tpot_s: tuple[float, float]


def replayable(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that can be replayed. Figures that one page repeats from another count once."""
    table = table.fillna({"batch_or_concurrency": 0, "engine": "", "weight_precision": ""})
    table = table.drop_duplicates(["engine", "model", "input_len", "load_type", "metric", "value"])
    known = [
        r.gpu in GPUS
        and r.weight_precision in FORMATS
        and engine_of(r.engine, str(r.date_or_version)) is not None
        and launch(str(r.notes)) is not None
        and r.output_len >= MIN_OUTPUT_TOKENS
        for r in table.itertuples()
    ]
    return table[known]


def gpustack_runs(measured: Path) -> Iterator[Replay]:
    """Every run that can be replayed, with its prediction."""
    for key, rows in replayable(read(measured, "gpustack")).groupby(RUN, sort=False):
        run = dict(zip(RUN, key, strict=True))
        values = dict(zip(rows.metric, rows.value, strict=True))
        if not {"ttft_mean_ms", "tpot_mean_ms"} <= set(values):
            continue
        engine = engine_of(run["engine"], str(rows.date_or_version.iloc[0]))
        label = f"{run['model']} {run['gpu']} {engine} {run['input_len']:.0f}/{run['output_len']:.0f}"
        try:
            summary = _simulated(run, _server(run, engine))
        except CapacityError as error:
            print(f"gpustack {label}: {error}", file=sys.stderr)
            continue
        yield Replay(
            load="closed loop" if _closed(run) else "all at once",
            label=label,
            ttft_s=(summary["mean_ttft_ms"] / 1e3, values["ttft_mean_ms"] / 1e3),
            tpot_s=(summary["mean_tpot_ms"] / 1e3, values["tpot_mean_ms"] / 1e3),
        )


def launch(notes: str) -> dict[str, Any] | None:
    """The pool's fields in a launch command; None where it cannot be told what was served."""
    script = re.search(r'script="([^"]*)"', notes)
    if script is None or "=" in script.group(1).split(" ")[0] or "export" in script.group(1):
        return None
    words = shlex.split(script.group(1).replace("\\ ", " "))
    found: dict[str, Any] = {}
    for word, after in pairwise([*words, ""]):
        if not word.startswith("-"):
            continue
        if word not in FLAGS:
            return None
        field = FLAGS[word]
        if field is not None:
            found[field] = True if field in SWITCHES else after
    return found if words else None


def engine_of(label: str, versions: str) -> str | None:
    """`- vLLM: v0.11.0 - SGLang: v0.5.3` and a label: engine and version."""
    if label not in ENGINES:
        return None
    version = re.search(rf"{label}: v?([\d.]*\d)", versions)
    if version is None:
        return None
    return f"{ENGINES[label]}@{SERVED.get(version.group(1), version.group(1))}"


def _server(run: dict[str, Any], engine: str | None) -> ResolvedPool:
    """As its launch command says. SGLang starts with less KV than its context, and refuses what is longer than that
    (sgl-project/sglang issue 4048): there, the context is the longest request that fits.
    """
    settings = {"quantization": FORMATS[run["weight_precision"]], **(launch(run["notes"]) or {})}
    if run["engine"] == "SGLang":
        settings.setdefault("max_model_len", "auto")
    return resolve(run["model"], build(Pool, {"gpu": GPUS[run["gpu"]], "engine": engine, **settings}))


def _closed(run: dict[str, Any]) -> bool:
    return bool(run["load_type"] == "closed_loop_concurrency")


def _simulated(run: dict[str, Any], resolved: ResolvedPool) -> dict[str, Any]:
    workload = random_requests(
        num_requests=int(re.match(r"(\d+) requests", run["notes"]).group(1)),  # type: ignore[union-attr]
        input_len=round(run["input_len"]),
        output_len=round(run["output_len"]),
        request_rate_per_s=math.inf,
        burstiness=1.0,
        concurrency=int(run["batch_or_concurrency"]) if _closed(run) else None,
        seed=0,
    )
    result = simulate(workload, engine_setup(resolved), frontend=engine_frontend(resolved))
    return dict(result.summary.to_dict())


def main() -> int:
    """Print every run, measured, and how far off it is predicted."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default_measured()
    for run in gpustack_runs(folder):
        cells = [
            f"{name} {measured * 1e3:9.1f} ms {predicted / measured - 1:+6.0%}"
            for name, (predicted, measured) in (("TTFT", run.ttft_s), ("TPOT", run.tpot_s))
        ]
        print(f"{run.load:12s} {run.label:56s} {'   '.join(cells)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
