"""Published runs of servers that are nearest to a load of the user, each with its prediction.

`published_runs.csv` and `judged_runs.csv` have measurements that third parties published, with the engine and the
settings as far as the source states them. Nothing was fitted to `judged_runs.csv`. In a prediction, settings that are
not stated have the engine's defaults, and the interval is that of a server with unknown settings.
"""

import csv
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from capacity.answers.estimate import estimate_of
from capacity.answers.load_point import Progress
from capacity.answers.phases import RequestLengths
from capacity.answers.records import PublishedRun, Quantity
from capacity.base.errors import CapacityError
from capacity.deployment import Pool, Traffic
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.pool.resolve import ResolvedPool, resolve

FILES = ("published_runs.csv", "judged_runs.csv")
NUM_NEAREST = 5
REPLAYED = "second pass"  # runs whose prompts were all in the prefix cache
NOT_ENGINE_FIELDS = ("replicas", "prefill_replicas")
MEAN_OF_UNIFORM = 0.5  # sglang.bench_serving draws lengths from 1 to the label


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Properties of a run from which its distance to another run is computed. Sizes are logarithms to base 2."""

    model: str
    is_moe: bool
    gpu: str
    architecture: str
    engine: str
    sizes: tuple[float, ...]

    def distance(self, other: "_Place") -> float:
        """Return the distance: 1 for each doubling of a size, plus a fixed amount for each name that differs."""
        names = 0.5 * (self.model != other.model) + 2.0 * (self.is_moe != other.is_moe)
        names += 0.5 * (self.gpu != other.gpu) + 1.5 * (self.architecture != other.architecture)
        names += 1.0 * (self.engine != other.engine)
        return names + math.dist(self.sizes, other.sizes)


class MeasuredRun(NamedTuple):
    """Measured values of a published run: decode speed of a user (1/TPOT), and output tokens/s per GPU."""

    text: str
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float


@cache
def published_rows() -> tuple[Mapping[str, str], ...]:
    """Return the rows of all published runs of single engines, in the order of the files."""
    rows: list[Mapping[str, str]] = []
    for name in FILES:
        with Path(__file__).with_name(name).open(newline="", encoding="utf-8") as file:
            rows += csv.DictReader(file)
    return tuple(
        row
        for row in rows
        if row["counted"] != REPLAYED and not any(name in row["settings"] for name in NOT_ENGINE_FIELDS)
    )


def nearest_runs(
    resolved: ResolvedPool, lengths: RequestLengths, requests: float
) -> tuple[PublishedRun, ...]:
    """Return the published runs nearest to a load of `requests` requests in flight, the nearest first.

    Runs that cannot be predicted (unsupported model or release) are left out.
    """
    own = _Place(
        model=resolved.model.name,
        is_moe=resolved.model.is_moe,
        gpu=resolved.profile.name,
        architecture=resolved.profile.architecture,
        engine=resolved.engine.name,
        sizes=_sizes(
            resolved.model.active_params,
            resolved.pool.tensor_parallel_size,
            requests,
            lengths.input_len,
            lengths.output_len,
        ),
    )
    ordered = sorted(published_rows(), key=lambda row: own.distance(_place(row)))
    found: list[PublishedRun] = []
    for row in ordered:
        found += _predict(row)
        if len(found) == NUM_NEAREST:
            break
    return tuple(found)


def predict_published_runs(progress: Progress | None = None) -> tuple[PublishedRun, ...]:
    """Return all published runs that can be predicted. `progress` is called with (completed, all) runs."""
    found: list[PublishedRun] = []
    for number, row in enumerate(published_rows(), start=1):
        found += _predict(row)
        if progress is not None:
            progress(number, len(published_rows()))
    return tuple(found)


def measured_runs(model: str, gpus: Collection[str]) -> Iterator[MeasuredRun]:
    """Yield the published runs of a model on some of these GPUs that state TPOT and throughput."""
    for row in published_rows():
        if (
            load_model(row["model"]).name == model
            and row["gpu"] in gpus
            and row["tpot_ms"]
            and row["output_tok_s"]
        ):
            pool = Pool.model_validate(pool_fields(row))
            prompt, output = _mean_lengths(row)
            yield MeasuredRun(
                text=f"{pool.num_gpus} x {row['gpu']}, {row['engine']}, {prompt}/{output} tokens, {row['source']}",
                tokens_per_s_per_user=1e3 / float(row["tpot_ms"]),
                tokens_per_s_per_gpu=float(row["output_tok_s"]) / pool.num_gpus,
            )


def _sizes(*values: float) -> tuple[float, ...]:
    return tuple(math.log2(max(value, 1.0)) for value in values)


def _place(row: Mapping[str, str]) -> _Place:
    model, profile = load_model(row["model"]), load_profile(row["gpu"])
    prompt, output = _mean_lengths(row)
    in_flight = float(row["concurrency"] or 0) or float(row["rate"]) * float(row["e2e_ms"] or 1000) / 1e3
    return _Place(
        model=model.name,
        is_moe=model.is_moe,
        gpu=profile.name,
        architecture=profile.architecture,
        engine=row["engine"].split("@")[0],
        sizes=_sizes(
            model.active_params,
            float(str(pool_fields(row).get("tensor_parallel_size", 1))),
            in_flight,
            prompt,
            output,
        ),
    )


def _mean_lengths(row: Mapping[str, str]) -> tuple[int, int]:
    share = MEAN_OF_UNIFORM if row["lengths"] == "sglang" else 1.0
    return max(round(int(row["input_len"]) * share), 1), max(round(int(row["output_len"]) * share), 1)


def pool_fields(row: Mapping[str, str]) -> dict[str, object]:
    """Return the launch settings and numbers of replicas of a published run, by the names of the fields of `Pool`."""
    booleans: dict[str, object] = {"true": True, "false": False}
    words = (setting.split("=", 1) for setting in row["settings"].split())
    fields = {name: booleans.get(value, value) for name, value in words}
    fields |= {"gpu": row["gpu"], "engine": row["engine"]}
    return fields | ({"quantization": row["quantization"]} if row["quantization"] else {})


def _predict(row: Mapping[str, str]) -> Iterator[PublishedRun]:
    """Yield the run with its predictions; yield nothing if it cannot be predicted."""
    prompt, output = _mean_lengths(row)
    concurrency, rate = row["concurrency"], row["rate"]
    traffic = Traffic(
        input_len=prompt,
        output_len=output,
        concurrency=int(concurrency) if concurrency else None,
        request_rate=float(rate) if rate else None,
        num_prompts=int(row["prompts"]),
        random_range_ratio=0.0,
    )
    try:
        resolved = resolve(row["model"], Pool.model_validate(pool_fields(row)))
        answer = estimate_of(resolved, traffic, None)
    except CapacityError:
        return
    if answer.as_found is None or answer.tpot_s is None:
        return
    yield PublishedRun(
        **{name: row[name] for name in ("source", "url", "date", "model", "gpu", "engine", "not_said")},
        num_gpus=resolved.pool.num_gpus,
        settings=" ".join(filter(None, (row["quantization"], row["settings"]))),
        input_len=prompt,
        output_len=output,
        concurrency=traffic.concurrency,
        request_rate=traffic.request_rate,
        ttft_measured_s=_seconds(row["ttft_ms"]),
        ttft_s=answer.as_found["ttft_s"],
        tpot_measured_s=_seconds(row["tpot_ms"]),
        tpot_s=answer.as_found["tpot_s"],
        output_tokens_per_s_measured=float(row["output_tok_s"]) if row["output_tok_s"] else None,
    )


def _seconds(text: str) -> float | None:
    return float(text) / 1e3 if text else None


def relative_error(measured: float | None, predicted: Quantity | None) -> float | None:
    """Return predicted / measured - 1; None if one of them is None."""
    return None if measured is None or predicted is None else predicted.value / measured - 1
