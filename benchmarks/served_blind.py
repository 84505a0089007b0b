"""Predict published serving runs that nothing here was made with, and say how far off, by source and by kind.

    python benchmarks/served_blind.py [--judged] [--only TEXT] [--save PATH.csv] [--rows] [--too-old]

The table is `capacity/answers/published_runs.csv`: documentation, public benchmarks and threads, each row with its
address, what it says of engine and settings and what it leaves open (`not_said`). Every row is asked as a user would
ask it, the engine's own defaults standing for what is not said: `capacity simulate` with the same requests, and the
interval of a server as found.
Who names a release that is older than any listed is refused: with `--too-old` the oldest one stands for it.

`--judged` reads `capacity/answers/judged_runs.csv` instead: rows in the same columns that no fit reads, now or later.

One part of the intervals is fitted with these rows among others (`beyond_said.py`): `fit_spreads.py` judges each source
by those of the others.

`lengths`: `fixed`, every request has the same; `mean`, only means (or medians) are published, and every request has
those; `sglang`, `sglang.bench_serving` drew them (`--random-range-ratio 0`, seed 1), and they are drawn here as there:
the sums are the published ones. `counted`: `second pass`, the prompts had all been sent before, and were in the prefix
cache; `steady`, neither the first burst nor the last requests count, as genai-perf has it; else all requests.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capacity.answers.published_runs import pool_fields
from capacity.answers.records import Quantity, Simulation
from capacity.answers.simulate import simulate
from capacity.base.errors import CapacityError, InvalidInput
from capacity.deployment import Pool
from capacity.model import load_model
from capacity.simulator.metrics import RequestTable
from capacity.step import PS_PER_S
from capacity.workload import Workload, random_requests
from capacity.workload.content import PromptContent

TABLE = Path(__file__).parent.parent / "capacity" / "answers" / "published_runs.csv"
JUDGED = TABLE.with_name("judged_runs.csv")
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "request time", "throughput": "throughput"}
METRICS = tuple(NAMES)
BENCH_SERVING_SEED = 1
SECOND_PASS, FIRST_PASS_S = "second pass", 1e5  # so long after the first, which has ended by then
OLDER = "older than"  # of a row's `not_said`: its engine's release is older than any listed here


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One figure of a row, in ms or tokens per second: measured, and predicted with its 90 % interval."""

    source: str
    label: str
    gpu: str
    engine: str
    is_moe: bool
    metric: str
    measured: float
    predicted: Quantity
    not_said: str

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted.value / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lay in the interval; None where there is none."""
        low, high = self.predicted.low, self.predicted.high
        return None if low is None or high is None else low <= self.measured <= high


def read_rows(path: Path = TABLE) -> list[dict[str, str]]:
    """The table's rows as they stand."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def is_too_old(row: Mapping[str, str]) -> bool:
    """Whether its engine's release is older than any that is listed: who asks for it by name is refused."""
    return OLDER in row["not_said"]


# requests


def workload_of(row: Mapping[str, str]) -> Workload:
    """The requests of a row's run."""
    prompts, outputs = lengths_of(row)
    count, rate = len(prompts), float(row["rate"] or math.inf)
    concurrency = int(row["concurrency"]) if row["concurrency"] else None
    arrivals = random_requests(
        num_requests=count, input_len=1, output_len=1, request_rate_per_s=rate, concurrency=concurrency
    )
    if row["counted"] != SECOND_PASS:
        return Workload(
            arrival_s=arrivals.arrival_s,
            prompt_tokens=prompts,
            output_tokens=outputs,
            concurrency=concurrency,
        )
    twice = np.concatenate([prompts, prompts])
    return Workload(
        arrival_s=np.repeat([0.0, FIRST_PASS_S], count),
        prompt_tokens=twice,
        output_tokens=np.concatenate([outputs, outputs]),
        content=PromptContent.from_segments([[(i % count, int(n))] for i, n in enumerate(twice)]),
        concurrency=concurrency,
    )


def counted_of(row: Mapping[str, str], requests: int) -> slice:
    """The requests, of so many, that a row's figures are of."""
    if row["counted"] == SECOND_PASS:
        return slice(requests // 2, requests)
    if row["counted"] == "steady":
        return slice(min(2 * int(row["concurrency"]), requests // 3), requests - int(row["concurrency"]))
    return slice(0, requests)


def lengths_of(row: Mapping[str, str]) -> tuple[Any, Any]:
    """Prompt and output tokens of every request."""
    count = int(row["prompts"])
    longest = int(row["input_len"]), int(row["output_len"])
    if row["lengths"].startswith("ratio "):  # vLLM's --random-range-ratio
        ratio = float(row["lengths"].removeprefix("ratio "))
        draw = np.random.default_rng(0)
        bounds = [(math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))) for mean in longest]
        prompts, outputs = (draw.integers(low, high, size=count, endpoint=True) for low, high in bounds)
        return prompts, outputs
    if row["lengths"] != "sglang":
        return np.full(count, longest[0]), np.full(count, longest[1])
    draw = np.random.RandomState(BENCH_SERVING_SEED)
    prompts, outputs = (draw.randint(1, longest + 1, size=count) for longest in longest)
    return prompts.astype(np.int64), outputs.astype(np.int64)


# predictions


def judged(row: Mapping[str, str]) -> list[Judged]:
    """Every figure of a row beside what is predicted for it. Raises CapacityError where nothing can be."""
    fields = pool_fields(row)
    replicas = {
        name: int(str(fields.pop(name))) for name in ("replicas", "prefill_replicas") if name in fields
    }
    pool = Pool.model_validate(fields).model_dump(exclude_unset=True)
    answer = simulate(row["model"], workload=workload_of(row), **pool, **replicas)
    if not answer.run.records.completed.all():
        raise InvalidInput("not every request was served")
    counted = counted_of(row, len(answer.run.records))
    latencies = latencies_ms(answer.run.records, counted)
    found = []
    for metric, measured, statistic in figures_of(row):
        if metric == "throughput":
            predicted = _throughput(answer, row)
        else:
            value = float(statistic(latencies[metric]))
            predicted = _around(answer, metric, value)
        load = f"c{row['concurrency']}" if row["concurrency"] else f"{row['rate']}/s"
        found.append(
            Judged(
                source=row["source"],
                label=f"{row['model']} {row['quantization']} {row['settings'].split(' ')[0]} "
                f"{row['input_len']}/{row['output_len']} {load}",
                gpu=row["gpu"],
                engine=row["engine"],
                is_moe=load_model(row["model"]).is_moe,
                metric=metric,
                measured=measured,
                predicted=predicted,
                not_said=row["not_said"],
            )
        )
    return found


def figures_of(row: Mapping[str, str]) -> list[tuple[str, float, Callable[[Any], Any]]]:
    """What a row gives: metric, figure and statistic. A TPOT counts before the throughput that follows from it."""
    statistics = {"mean": np.mean, "median": np.median}
    found = [
        (metric, float(row[f"{metric}_ms"]), statistics[row[f"{metric}_of"]])
        for metric in ("ttft", "tpot")
        if row[f"{metric}_ms"]
    ]
    if row["e2e_ms"]:
        found.append(("e2e", float(row["e2e_ms"]), np.mean))
    if row["output_tok_s"] and not row["tpot_ms"]:
        found.append(("throughput", float(row["output_tok_s"]), np.mean))
    return found


def latencies_ms(records: RequestTable, counted: slice) -> dict[str, Any]:
    """Of every request that counts."""
    ttft = (records.first_token_ps - records.arrival_ps)[counted] * 1e3 / PS_PER_S
    e2e = (records.finish_ps - records.arrival_ps)[counted] * 1e3 / PS_PER_S
    further = records.output_tokens[counted] - 1
    return {"ttft": ttft, "e2e": e2e, "tpot": ((e2e - ttft) / np.maximum(further, 1))[further > 0]}


def _around(answer: Simulation, metric: str, value: float) -> Quantity:
    """The value with the relative interval of its mean."""
    mean = answer.as_found_ms.get({"e2e": "mean_e2el_ms"}.get(metric, f"mean_{metric}_ms"))
    return Quantity(value=value) if mean is None else mean.scale(value / mean.value)


def throughput_of(records: RequestTable, row: Mapping[str, str]) -> float:
    """Output tokens per second of the requests that count."""
    counted = counted_of(row, len(records))
    seconds = (records.finish_ps[counted].max() - records.arrival_ps[counted].min()) / PS_PER_S
    return float(records.output_tokens[counted].sum() / seconds)


def _throughput(answer: Simulation, row: Mapping[str, str]) -> Quantity:
    """As sure as the time that a request takes."""
    value = throughput_of(answer.run.records, row)
    time = answer.as_found_ms.get("mean_e2el_ms")
    return Quantity(value=value) if time is None else time.inverse(value * time.value)


def predictions(rows: Iterable[Mapping[str, str]]) -> list[Judged]:
    """All of them; rows that cannot be predicted are named on standard error."""
    found: list[Judged] = []
    for row in rows:
        try:
            found += judged(row)
        except CapacityError as error:
            print(f"{row['source']} {row['model']} {row['gpu']} {row['engine']}: {error}", file=sys.stderr)
    return found


# tables

KINDS: tuple[tuple[str, Callable[[Judged], str]], ...] = (
    ("source", lambda j: j.source),
    ("engine", lambda j: j.engine.split("@")[0]),
    ("GPU", lambda j: j.gpu),
    ("model", lambda j: "experts" if j.is_moe else "dense"),
    (
        "settings",
        lambda j: "release too old" if OLDER in j.not_said else "known" if not j.not_said else "part said",
    ),
)


def summary(name: str, found: Sequence[Judged]) -> str:
    """One line: errors by metric, and how often the intervals held."""
    cells = []
    for metric in METRICS:
        own = [j for j in found if j.metric == metric]
        if not own:
            cells.append(f"{'-':>30s}")
            continue
        errors = np.array([j.error for j in own])
        held = [j.inside for j in own if j.inside is not None]
        share = f"{np.mean(held):4.0%}" if held else "   -"
        median, p90 = np.median(np.abs(errors)), np.quantile(np.abs(errors), 0.9)
        cells.append(f"{len(own):4d} {median:5.1%}/{p90:5.1%} {np.median(errors):+5.0%} {share}")
    return f"{name:24s} " + "  ".join(f"{cell:>30s}" for cell in cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print errors by source, engine, GPU and kind of model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows with this text in them")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--save", type=Path, help="every figure, as a CSV file")
    parser.add_argument(
        "--too-old", action="store_true", help="also what is refused by name: by the oldest release"
    )
    parser.add_argument(
        "--judged", action="store_true", help=f"the rows of {JUDGED.name}, which no fit reads"
    )
    asked = parser.parse_args(arguments)
    rows = [
        row for row in read_rows(JUDGED if asked.judged else TABLE) if asked.only in " ".join(row.values())
    ]
    refused = [] if asked.too_old else [row for row in rows if is_too_old(row)]
    if refused:
        print(
            f"{len(refused)} rows of releases that are refused by name are left out: --too-old predicts them"
        )
    found = predictions(row for row in rows if row not in refused)
    if asked.rows:
        for j in found:
            span = "" if j.inside is None else f"[{j.predicted.low:10.2f} {j.predicted.high:10.2f}]"
            print(
                f"{j.source:22s} {j.gpu:15s} {j.label[:66]:66s} {j.metric:10s} {j.measured:10.2f} "
                f"{j.predicted.value:10.2f} {j.error:+5.0%} {span} {'' if j.inside else 'out'}"
            )
    if asked.save:
        _save(asked.save, found)
    print(f"{'median/p90 error, bias, held':24s} " + "  ".join(f"{m:>30s}" for m in METRICS))
    for _, key in KINDS:
        for name in sorted({key(j) for j in found}):
            print(summary(name, [j for j in found if key(j) == name]))
        print()
    print(summary("all", found))
    return 0


def _save(path: Path, found: Sequence[Judged]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("source", "gpu", "engine", "row", "metric", "measured", "predicted", "low", "high"))
        for j in found:
            q = j.predicted
            writer.writerow(
                (j.source, j.gpu, j.engine, j.label, j.metric, j.measured, q.value, q.low, q.high)
            )


if __name__ == "__main__":
    sys.exit(main())
