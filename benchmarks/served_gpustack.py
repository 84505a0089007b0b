"""Replay the serving runs of GPUStack's performance lab: 2025, vLLM, SGLang and TensorRT-LLM, A100, H100 and H200.

    python benchmarks/served_gpustack.py [FOLDER]        every run; accuracy.py has the errors of all

FOLDER has the table `gpustack` (`.csv.gz` in the reference library, `.csv` where it ships with the tests). Each run is
a launch command of a public document and what `vllm bench serve` then measured: a closed loop of one to eight, or
every request at once, where TTFT is the queue. Runs are left out whose command has a flag that is not in `FLAGS`
(drafts, other attention backends, environment variables), whose engine, version or lengths the document does not say,
and answers of under 50 tokens. Of ShareGPT's lengths the documents publish means; here they are drawn around them.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from fit_profiles import default_measured
from reference_tables.form import read

from capacity.answers.engine_setup import engine_frontend, setup_of
from capacity.base.errors import CapacityError
from capacity.deployment import Pool, build
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator import simulate
from capacity.simulator.front_end_process import CHAT_TEMPLATE_S
from capacity.workload import GammaLengths, LognormalLengths, Workload, random_requests
from capacity.workload.columns import IntArray
from capacity.workload.randomness import random_stream

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
PARSES_TEMPLATES = (
    "vllm@0.11-flashinfer"  # a chat template for each request; all the documents' requests are chats
)
WITHOUT_TEMPLATE = ("gpt-oss-120b",)  # written by openai-harmony, vllm/entrypoints/harmony_utils.py
MIN_OUTPUT_TOKENS = 50
RANDOM_LENS = (128, 1000, 2000, 4000, 32000)  # the documents' random prompts; all others are ShareGPT's
# What `vllm bench serve --dataset-name sharegpt` keeps of it (`is_valid_sequence`, vLLM 0.11.0, benchmarks/datasets.py)
SHAREGPT_LEAST, SHAREGPT_LONGEST_PROMPT, SHAREGPT_LONGEST = 4, 1024, 2048
# Of prompts: 74 tokens at the median and 348 at the 80th percentile (Llumnix, table 1), lognormal, cut at 1,024. Of
# answers no percentiles are at hand: exponential, whose longest of 1,000 is 7 means; the bursts here take as long as an
# answer of some 6 means (chosen with them in view).
SHAREGPT_PROMPT_CV, SHAREGPT_OUTPUT_CV = 4.0, 1.0
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


def _server(
    run: dict[str, Any], engine: str | None, known: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> ResolvedPool:
    """As what is `known` of its launch command says.

    SGLang starts with less KV than its context, and refuses what is longer than that
    (sgl-project/sglang issue 4048): there, the context is the longest request that fits.
    """
    settings = {"quantization": FORMATS[run["weight_precision"]], **(launch(run["notes"]) or {})}
    if run["engine"] == "SGLang":
        settings.setdefault("max_model_len", "auto")
    if engine == PARSES_TEMPLATES and run["model"] not in WITHOUT_TEMPLATE:
        settings["front_end_request_s"] = CHAT_TEMPLATE_S
    return resolve(run["model"], build(Pool, known({"gpu": GPUS[run["gpu"]], "engine": engine, **settings})))


def _closed(run: dict[str, Any]) -> bool:
    return bool(run["load_type"] == "closed_loop_concurrency")


def known_lengths(run: dict[str, Any]) -> bool:
    """Whether the lengths that decide a run are published: of random prompts, and of few requests at a time."""
    return _closed(run) or _random(run)


def server_and_requests(
    run: dict[str, Any], engine: str | None, known: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> tuple[ResolvedPool, Workload]:
    """Return the server and the requests of a run; `known` leaves out fields of the pool that nobody stated."""
    return _server(run, engine, known), _workload(run)


def _random(run: dict[str, Any]) -> bool:
    return any(abs(run["input_len"] / length - 1) < 0.02 for length in RANDOM_LENS)


def _simulated(run: dict[str, Any], resolved: ResolvedPool) -> dict[str, Any]:
    result = simulate(_workload(run), setup_of(resolved), frontend=engine_frontend(resolved))
    return dict(result.summary.to_dict())


def _workload(run: dict[str, Any]) -> Workload:
    num_requests = int(re.match(r"(\d+) requests", run["notes"]).group(1))  # type: ignore[union-attr]
    concurrency = int(run["batch_or_concurrency"]) if _closed(run) else None
    if _random(run):
        return random_requests(
            num_requests=num_requests,
            input_len=round(run["input_len"]),
            output_len=round(run["output_len"]),
            concurrency=concurrency,
        )
    prompts, outputs = sharegpt_lengths(num_requests, run["input_len"], run["output_len"])
    return Workload(
        arrival_s=np.zeros(num_requests),
        prompt_tokens=prompts,
        output_tokens=outputs,
        concurrency=concurrency,
        name="sharegpt",
    )


def sharegpt_lengths(count: int, prompt_mean: float, output_mean: float) -> tuple[IntArray, IntArray]:
    """`count` prompts and answers with the means that a document gives, as they are drawn from ShareGPT."""
    rng = random_stream(0, "lengths")
    prompt = LognormalLengths(prompt_mean, SHAREGPT_PROMPT_CV).draw(count, rng)
    output = GammaLengths(output_mean, SHAREGPT_OUTPUT_CV).draw(count, rng)
    prompt = _to_mean(prompt, prompt_mean, SHAREGPT_LONGEST_PROMPT)
    return prompt, _to_mean(output, output_mean, SHAREGPT_LONGEST - SHAREGPT_LONGEST_PROMPT)


def _to_mean(drawn: IntArray, mean: float, longest: int) -> IntArray:
    """The lengths by a factor and within their limits, so that their mean is `mean`."""
    factor = 1.0
    for _ in range(50):
        kept = np.clip(np.rint(drawn * factor), SHAREGPT_LEAST, longest).astype(np.int64)
        factor *= mean / kept.mean()
    return kept


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
