"""Replay published served measurements in closed loop, and say how far off TTFT and TPOT are, by group.

    python benchmarks/served_rows.py [--every 5] [--metric formula|simulate] [--only trtllm] [--jobs 1]

The rows are read from the folder of reference data (CAPACITY_SHARED, or ../shared beside the checkout), never from
the project. `served_launches.toml` says how the servers were started.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from capacity.answers.engine_setup import engine_frontend, engine_setup
from capacity.base.errors import CapacityError
from capacity.deployment import Pool
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator import FrontendTimes, simulate
from capacity.step import PS_PER_S
from capacity.step.closed_form import closed_loop_times
from capacity.workload import random_requests

ROOT = Path(__file__).resolve().parents[1]
GPUS = {"h100_sxm": "h100-sxm-80gb", "h200_sxm": "h200-sxm-141gb", "b200_sxm": "b200-sxm-180gb"}
ENGINES = {"trtllm": "tensorrt-llm", "vllm": "vllm", "sglang": "sglang"}
MODELS = {
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",  # same architecture
    "zhipuai/GLM-5": "glm-5.2",  # same architecture
}
FORMATS = {"fp4": "nvfp4", "fp8": "fp8", "int4": None, "bf16": "bf16", "": "bf16"}
BLOCK_FP8 = ("deepseek", "qwen3", "minimax", "glm-5")  # checkpoints whose FP8 is 128 x 128
PROMPTS_PER_CONCURRENCY = 10  # InferenceX's scripts; gap-analysis: inferred
LONG_RUN_TOKENS = 100_000  # concurrency x output: beyond, so many rounds stand for ten
LONG_RUN_ROUNDS = 4
LEAST_PROMPTS = 320  # small runs are repeated with other seeds up to this many


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """One measurement, in the project's names and SI units. `concurrency` is one replica's, over its ranks."""

    campaign: str
    source: str
    gpu: str
    backend: str
    version: str
    model: str
    quantization: str | None
    dense: bool
    input_len: int
    output_len: int
    length_scale: float
    concurrency: int
    tensor_parallel: int
    data_parallel: int
    expert_parallel: bool
    ttft_s: float
    tpot_s: float

    @property
    def group(self) -> tuple[str, ...]:
        return (self.campaign, self.gpu, self.backend, self.model, self.quantization or "checkpoint")


def shared_folder() -> Path | None:
    """The folder of reference data, if it is at hand."""
    named = os.environ.get("CAPACITY_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    return folder if (folder / "reference" / "measured").is_dir() else None


def read_rows(folder: Path, *, dense: bool = True, moe: bool = True) -> list[ServedRow]:
    """Usable rows of the served tables: those with a concurrency, of models and GPUs that are known here."""
    import pandas as pd

    rows: list[ServedRow] = []
    for name, wanted in (("silicon_e2e_dense", dense), ("silicon_e2e_moe", moe)):
        if wanted:
            table = pd.read_csv(folder / "reference" / "measured" / f"{name}.csv.gz", low_memory=False)
            rows += [row for record in table.to_dict("records") if (row := _row(record, name))]
    return rows


def _row(record: Mapping[str, Any], source: str) -> ServedRow | None:
    def number(name: str, default: float) -> float:
        value = record[name]
        return default if value is None or math.isnan(value) else float(value)

    def text(name: str) -> str:
        value = record[name]
        return value if isinstance(value, str) else ""

    concurrency = number("concurrency", 0)
    if concurrency < 1 or record["system"] not in GPUS:
        return None
    path = record["model_path"]
    model = _model(MODELS.get(path, path))
    dense = source.endswith("dense")
    tensor, data = int(number("tp_size", 1)), int(number("attention_dp_size", 1))
    if record["backend"] == "vllm" and data > 1 and tensor >= data:
        tensor //= data  # vLLM's label counts the GPUs of all ranks
    per_replica = number("batch_size", concurrency) * data  # the label counts the requests of all replicas
    return ServedRow(
        campaign=record["campaign"],
        source=source,
        gpu=GPUS[record["system"]],
        backend=record["backend"],
        version=text("backend_version"),
        model=model,
        quantization=_quantization(model, text("precision")),
        dense=dense,
        input_len=int(record["isl"]),
        output_len=int(record["osl"]),
        length_scale=number("length_scale", 1.0),
        concurrency=round(min(concurrency, per_replica)),
        tensor_parallel=tensor,
        data_parallel=data,
        expert_parallel=number("moe_ep_size", 1) > 1,
        ttft_s=number("silicon_ttft_ms", math.nan) / 1e3,
        tpot_s=number("silicon_tpot_ms", math.nan) / 1e3,
    )


@lru_cache(maxsize=64)
def _model(path: str) -> str:
    from capacity.model import load_model

    return load_model(path).name


def _quantization(model: str, precision: str) -> str | None:
    if model.startswith("gpt-oss"):
        return None
    if precision == "fp8" and model.startswith(BLOCK_FP8):
        return "fp8-block"
    return FORMATS[precision]


# launches


@lru_cache(maxsize=1)
def _launches() -> list[dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "served_launches.toml").read_text())["launch"]


def launch_settings(row: ServedRow) -> dict[str, Any]:
    """What is known of how the server of this row was started."""
    found: dict[str, Any] = {}
    for launch in _launches():
        if _matches(row, launch["match"]):
            found = {key: value for key, value in launch.items() if key != "match"} | found
    return found


def _matches(row: ServedRow, match: Mapping[str, Any]) -> bool:
    for key, wanted in match.items():
        if key == "tensor_parallel_below":
            holds = row.tensor_parallel < wanted
        elif key == "data_parallel_above":
            holds = row.data_parallel > wanted
        elif key == "version":
            holds = row.version.startswith(wanted) if wanted else row.version == ""
        else:
            holds = getattr(row, key) == wanted
        if not holds:
            return False
    return True


@dataclass(frozen=True, kw_only=True)
class Server:
    """A row's server: one engine, of one or more data-parallel ranks."""

    resolved: ResolvedPool
    frontend: FrontendTimes
    policy_options: dict[str, Any]
    prompt_wait_steps: int
    concurrency: int


def server_of(row: ServedRow, *, engine: str | None = None) -> Server:
    """The server that this row describes. Raises CapacityError where it cannot be (does not fit, unknown format)."""
    launch = launch_settings(row)
    concurrency = max(1, row.concurrency // row.data_parallel)  # of a rank
    model_len = row.input_len + row.output_len + launch.get("model_len_extra", 64)
    budget = launch.get("max_num_batched_tokens")
    budget = model_len if budget == "model length" else budget
    everybody = (
        row.concurrency if row.backend == "vllm" else concurrency
    )  # vLLM gives each rank the whole limit
    slots = {"concurrency": everybody, "concurrency - 1": concurrency - 1}.get(
        launch.get("max_num_seqs"), launch.get("max_num_seqs")
    )
    if budget is not None and slots is not None:
        budget = max(budget, slots)
    name = engine or launch.get("engine") or _engine_label(row)
    resolved = resolve(
        row.model,
        Pool(
            gpu=row.gpu,
            tensor_parallel_size=row.tensor_parallel,
            data_parallel_size=row.data_parallel,
            enable_expert_parallel=row.expert_parallel,
            quantization=row.quantization,
            kv_cache_dtype=launch.get("kv_cache_dtype", "auto"),
            gpu_memory_utilization=launch.get("gpu_memory_utilization"),
            engine=name,
            max_model_len=model_len,
            max_num_seqs=slots,
            max_num_batched_tokens=budget,
            enable_prefix_caching=False,
            async_scheduling=launch.get("async_scheduling"),
        ),
    )
    usual = engine_frontend(resolved)
    frontend = FrontendTimes(
        request_latency_s=usual.request_latency_s,
        response_latency_s=usual.response_latency_s,
        output_token_s=launch.get("output_token_s", usual.output_token_s),
        # message boundaries matter only to the queue: neither TTFT nor TPOT sees them otherwise
        stream_interval=1 if launch.get("output_token_s") == 0 else launch.get("stream_interval", 1),
    )
    options = {
        key: launch[key]
        for key in ("asynchronous", "prompts_per_step", "batch_wait_steps", "batch_wait_tokens_fraction")
        if key in launch and row.backend == "trtllm"
    }
    return Server(
        resolved=resolved,
        frontend=frontend,
        policy_options=options,
        prompt_wait_steps=launch.get("prompt_wait_steps", 0) if row.data_parallel > 1 else 0,
        concurrency=concurrency * row.data_parallel,
    )


def _engine_label(row: ServedRow) -> str:
    name = ENGINES[row.backend]
    listed = row.version and row.version[0].isdigit()
    return f"{name}@{row.version}" if listed else name


# predictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is predicted for a row; None: it cannot be (`problem` says why)."""

    row: ServedRow
    ttft_s: float | None = None
    tpot_s: float | None = None
    problem: str | None = None

    def error(self, metric: str) -> float:
        """Predicted over measured, minus one."""
        predicted = getattr(self, metric)
        measured = getattr(self.row, metric)
        return math.nan if predicted is None else predicted / measured - 1


def by_formula(row: ServedRow) -> Prediction:
    """The closed loop's steady state: a check of step times, without queueing."""
    try:
        server = server_of(row)
        times = closed_loop_times(
            server.resolved.step_model,
            server.resolved.limits,
            server.concurrency,
            ranks=server.resolved.lockstep_ranks,
            input_len=max(1, round(row.input_len * row.length_scale)),
            output_len=max(2, round(row.output_len * row.length_scale)),
        )
    except CapacityError as error:
        return Prediction(row=row, problem=str(error))
    return Prediction(row=row, ttft_s=times.ttft_s, tpot_s=times.tpot_s)


def by_simulation(row: ServedRow) -> Prediction:
    """The row's own run: 10 prompts for each place in the loop, means over all requests."""
    try:
        server = server_of(row)
        rounds = PROMPTS_PER_CONCURRENCY
        if server.concurrency * row.output_len > LONG_RUN_TOKENS:
            rounds = LONG_RUN_ROUNDS
        num_prompts = rounds * server.concurrency
        ttft: list[float] = []
        tpot: list[float] = []
        for seed in range(max(1, round(LEAST_PROMPTS / num_prompts))):
            result = simulate(
                _workload(row, num_prompts, server.concurrency, seed),
                replace(
                    engine_setup(server.resolved),
                    policy_options=server.policy_options,
                    prompt_wait_steps=server.prompt_wait_steps,
                ),
                frontend=server.frontend,
            )
            if result.status != "complete":
                return Prediction(row=row, problem=result.reason)
            means = _means(result.records, server.concurrency, rounds)
            ttft.append(means[0])
            tpot.append(means[1])
    except CapacityError as error:
        return Prediction(row=row, problem=str(error))
    return Prediction(row=row, ttft_s=float(np.mean(ttft)), tpot_s=float(np.mean(tpot)))


def _means(records: Any, concurrency: int, rounds: int) -> tuple[float, float]:
    """TTFT and TPOT over the whole run; of a shortened one, its middle stands for the rounds that are missing."""
    ttft = (records.first_token_ps - records.arrival_ps) / PS_PER_S
    tpot = (records.finish_ps - records.first_token_ps) / PS_PER_S / np.maximum(records.output_tokens - 1, 1)
    weights = np.ones(len(ttft))
    weights[concurrency:-concurrency] = (PROMPTS_PER_CONCURRENCY - 2) / (rounds - 2)
    return float(np.average(ttft, weights=weights)), float(np.average(tpot, weights=weights))


def _workload(row: ServedRow, num_prompts: int, concurrency: int, seed: int) -> Any:
    """Lengths fixed, or (InferenceX) uniform from 0.8 to 1.0 of the label: `length_scale` is their mean."""
    spread = (1 - row.length_scale) / row.length_scale
    return random_requests(
        num_requests=num_prompts,
        input_len=round(row.input_len * row.length_scale),
        output_len=round(row.output_len * row.length_scale),
        request_rate_per_s=math.inf,
        burstiness=1.0,
        range_ratio=spread,
        concurrency=concurrency,
        seed=seed,
    )


# accuracy by group


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAccuracy:
    """Errors of one group in one metric: medians and 90th percentiles of absolute ones, and the median itself."""

    group: tuple[str, ...]
    metric: str
    rows: int
    median: float
    p90: float
    bias: float


def accuracy(predictions: Iterable[Prediction], metric: str, key: Any) -> Iterator[GroupAccuracy]:
    """Errors by `key(row)`."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for prediction in predictions:
        error = prediction.error(metric)
        if not math.isnan(error):
            groups.setdefault(key(prediction.row), []).append(error)
    for group, errors in sorted(groups.items()):
        absolute = np.abs(errors)
        yield GroupAccuracy(
            group=group,
            metric=metric,
            rows=len(errors),
            median=float(np.median(absolute)),
            p90=float(np.percentile(absolute, 90)),
            bias=float(np.median(errors)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A 90 % band of measured / predicted - 1, and how often bands made without a group held for that group."""

    metric: str
    groups: int
    rows: int
    low: float
    high: float
    coverage: float
    half_width: float  # median over left-out groups


def held_out_band(predictions: Iterable[Prediction], metric: str) -> Band:
    """The band over all groups, each of the same weight, judged by leaving one group out at a time."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for prediction in predictions:
        error = prediction.error(metric)
        if not math.isnan(error):
            groups.setdefault(prediction.row.group, []).append(1 / (1 + error) - 1)
    covered, widths = [], []
    for left_out, residuals in groups.items():
        low, high = _quantiles([found for group, found in groups.items() if group != left_out])
        covered += [low <= residual <= high for residual in residuals]
        widths.append((high - low) / 2)
    low, high = _quantiles(list(groups.values()))
    return Band(
        metric=metric,
        groups=len(groups),
        rows=len(covered),
        low=low,
        high=high,
        coverage=float(np.mean(covered)),
        half_width=float(np.median(widths)),
    )


def _quantiles(groups: list[list[float]]) -> tuple[float, float]:
    """5 % and 95 % quantiles, a group's residuals sharing a weight of one."""
    values = np.concatenate([np.asarray(group) for group in groups])
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in groups])
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order]) / weights.sum()
    low, high = np.interp([0.05, 0.95], cumulated, values[order])
    return min(float(low), 0.0), max(float(high), 0.0)


def scored(row: ServedRow) -> bool:
    """Rows that the project's targets count: not those whose labels contradict themselves or hide speculation."""
    mixed_with_drafts = row.model == "deepseek-r1" and row.backend == "trtllm"
    return row.dense or (row.concurrency < 512 and not mixed_with_drafts)


def print_bands(predictions: list[Prediction]) -> None:
    """Bands by kind of model and metric."""
    for dense in (True, False):
        kept = [p for p in predictions if p.row.dense == dense and scored(p.row) and not p.problem]
        if len({p.row.group for p in kept}) > 1:
            for metric in ("ttft_s", "tpot_s"):
                band = held_out_band(kept, metric)
                print(
                    f"{'dense' if dense else 'moe':6} {metric:7} {band.low * 100:+5.0f} to {band.high * 100:+5.0f} %; "
                    f"{band.groups} groups, {band.rows} rows; left out: {band.coverage * 100:.0f} % covered, "
                    f"half-width {band.half_width * 100:.0f} %"
                )


def print_table(predictions: list[Prediction]) -> None:
    """Errors by group and in all, for both metrics."""
    print(f"{'group':70} {'n':>4} {'TPOT med/p90 (bias) %':>24} {'TTFT med/p90 (bias) %':>24}")
    for key in (
        lambda row: row.group,
        _class_of,
        lambda row: (row.source, "" if scored(row) else "(not scored)"),
    ):
        tables = [{a.group: a for a in accuracy(predictions, m, key)} for m in ("tpot_s", "ttft_s")]
        for group in sorted(set(tables[0]) | set(tables[1])):
            cells = [_cell(table.get(group)) for table in tables]
            rows = max(table[group].rows for table in tables if group in table)
            print(f"{' '.join(group):70} {rows:4d} {cells[0]:>24} {cells[1]:>24}")
        print()
    problems = [p for p in predictions if p.problem]
    if problems:
        print(f"{len(problems)} rows without a prediction, such as: {problems[0].problem}")


def _class_of(row: ServedRow) -> tuple[str, ...]:
    return (row.source, row.campaign, row.backend)


def _cell(found: GroupAccuracy | None) -> str:
    if found is None:
        return "-"
    return f"{found.median * 100:5.1f} /{found.p90 * 100:6.1f} ({found.bias * 100:+.0f})"


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every n-th row")
    parser.add_argument("--method", choices=("simulate", "formula"), default="simulate")
    parser.add_argument("--only", default="", help="only rows whose group contains this text")
    parser.add_argument("--class", dest="model_class", choices=("dense", "moe"), default=None)
    parser.add_argument("--most-tokens", type=int, default=None, help="leave out runs of more output tokens")
    parser.add_argument("--save", default=None, help="write the predictions to this CSV file")
    options = parser.parse_args(arguments)
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    rows = read_rows(folder, dense=options.model_class != "moe", moe=options.model_class != "dense")
    rows = [row for row in rows if options.only in " ".join(row.group)]
    if options.most_tokens:
        rows = [
            r for r in rows if r.concurrency * r.output_len * PROMPTS_PER_CONCURRENCY <= options.most_tokens
        ]
    predict = by_simulation if options.method == "simulate" else by_formula
    begin = time.process_time()
    predictions = [predict(row) for row in rows[:: options.every]]
    print_table(predictions)
    print_bands(predictions)
    print(f"{len(predictions)} rows in {time.process_time() - begin:.0f} CPU s")
    if options.save:
        _save(predictions, Path(options.save))
    return 0


def _save(predictions: list[Prediction], path: Path) -> None:
    import dataclasses

    import pandas as pd

    pd.DataFrame(
        [
            {
                **dataclasses.asdict(p.row),
                "predicted_ttft_s": p.ttft_s,
                "predicted_tpot_s": p.tpot_s,
                "problem": p.problem,
            }
            for p in predictions
        ]
    ).to_csv(path, index=False)


if __name__ == "__main__":
    sys.exit(main())
