"""How wide the intervals of ordinary questions are, and how often they hold for sources that nothing was fitted to.

    python benchmarks/interval_widths.py            half-widths of 48 questions: 2 CPU minutes
    python benchmarks/interval_widths.py --judge    also the share held of published_runs.csv and of rows kept
                                                    for evaluation, in three states of knowledge: 2 CPU minutes more

The states: nothing known of the server, its release known, release and every launch setting known (as a deployment that
is launched as predicted). A client is not known where nothing is. These rows judge; nothing is chosen with them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

import served_blind
from served_data import shared_folder

import capacity
from capacity.answers.interval_parts import VERSION, interval_parts, relative_ends
from capacity.answers.intervals import LoadBands, add_client_latency_range
from capacity.answers.records import Quantity
from capacity.answers.run_intervals import run_bands
from capacity.answers.simulate import simulate
from capacity.base.errors import CapacityError
from capacity.deployment import Pool
from capacity.deployment.command_words import LAUNCH_DEFAULTS
from capacity.hardware.spreads import load_spreads
from capacity.pool.resolve import resolve
from capacity.workload import Workload, random_requests

MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {},
    "llama-3.1-70b": {"tensor_parallel_size": 4},
    "qwen3-30b-a3b": {},
    "gpt-oss-120b": {"tensor_parallel_size": 2},
}
GPUS = ("h100", "h200", "b200", "a100")
CONCURRENCIES = (1, 16, 64)
METRICS = ("ttft", "tpot")
STATES = {"nothing": (VERSION, *LAUNCH_DEFAULTS), "release": tuple(LAUNCH_DEFAULTS), "all": ()}


def half_width(found: Quantity) -> float:
    """Half of the interval over the prediction."""
    assert found.low is not None
    assert found.high is not None
    return (found.high - found.low) / 2 / found.value


def half_widths(
    models: Sequence[str] = tuple(MODELS), gpus: Sequence[str] = GPUS, loads: Sequence[int] = CONCURRENCIES
) -> Iterator[tuple[str, str, int, float, float]]:
    """Model, GPU, concurrency, and the half-widths of TTFT and TPOT of 1,000 tokens in and out."""
    for model in models:
        for gpu in gpus:
            for concurrency in loads:
                asked = {"gpu": gpu, "input_len": 1000, "output_len": 1000, "concurrency": concurrency}
                try:
                    found = capacity.estimate(model, **MODELS[model], **asked, max_model_len=8192)
                except CapacityError as error:
                    print(f"{model} {gpu}: {error}", file=sys.stderr)
                    continue
                if found.ttft_s is not None and found.tpot_s is not None:
                    yield model, gpu, concurrency, half_width(found.ttft_s), half_width(found.tpot_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Whether one figure's interval held, in each state."""

    source: str
    kind: str
    metric: str
    held: dict[str, bool]


def judged() -> Iterator[Held]:
    """Every figure of the judging rows that an answer is given to."""
    for row in served_blind.read_rows():
        if served_blind.is_too_old(row):
            continue
        try:
            pool = Pool.model_validate(served_blind.pool_fields(row))
            workload = served_blind.workload_of(row)
            bands, run = _predicted(row["model"], pool, workload)
        except CapacityError as error:
            print(f"{row['source']} {row['model']}: {error}", file=sys.stderr)
            continue
        latencies = served_blind.latencies_ms(run.records, served_blind.counted_of(row, len(run.records)))
        for name, measured, statistic in served_blind.figures_of(row):
            if name in METRICS and bands is not None:
                predicted = float(statistic(latencies[name]))
                yield _held(bands, row["source"], name, predicted / 1e3, measured / 1e3)
    yield from _evaluation()


def _predicted(model: str, pool: Pool, workload: Workload) -> tuple[LoadBands | None, Any]:
    run = simulate(model, workload=workload, **pool.model_dump(exclude_unset=True)).run
    return run_bands(resolve(model, pool), workload, run, None), run


def _evaluation() -> Iterator[Held]:
    """Closed loops on one pool of the rows kept for evaluation."""
    import pandas as pd

    folder = shared_folder()
    if folder is None:
        return
    table = pd.read_csv(folder / "reference/measured/evaluation/served_public.csv.gz")
    fields = ["kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens"]
    for row in table[table["set"].str.startswith("h200-")].to_dict("records"):
        given = {name: row[name] for name in fields if not _missing(row[name])}
        pool = Pool.model_validate(
            {"gpu": row["gpu"], "engine": row["engine"], "tensor_parallel_size": int(row["tp"])}
            | {name: value if isinstance(value, str) else int(value) for name, value in given.items()}
        )
        workload = random_requests(
            num_requests=int(row["num_prompts"]),
            input_len=int(row["input_len"]),
            output_len=int(row["output_len"]),
            range_ratio=float(row["range_ratio"]),
            concurrency=int(row["concurrency"]),
        )
        try:
            bands, run = _predicted(row["model"], pool, workload)
        except CapacityError as error:
            print(f"{row['id']}: {error}", file=sys.stderr)
            continue
        for name in METRICS:
            latency = getattr(run.summary, f"{name}_ms")
            if bands is not None and latency is not None:
                yield _held(bands, row["set"], name, latency.mean / 1e3, row[f"{name}_mean"] / 1e3)


def _missing(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _held(bands: LoadBands, source: str, metric: Any, predicted_s: float, measured_s: float) -> Held:
    held = {}
    for state, unsaid in STATES.items():
        asked = replace(bands.prediction_context("mean"), unsaid=unsaid)
        parts = interval_parts(metric, getattr(bands.sensitivities, metric), asked, load_spreads())
        low, high = relative_ends(parts, bands.kind(metric))
        if metric != "tpot" and state != "all":
            low, high = add_client_latency_range(low, high, predicted_s)
        held[state] = low <= measured_s / predicted_s <= high
    return Held(
        source=source, kind="experts" if bands.resolved.model.is_moe else "dense", metric=metric, held=held
    )


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--judge", action="store_true", help="also the share held of the judging rows")
    options = parser.parse_args()
    rows = list(half_widths())
    for model in (*MODELS, None):
        own = [row for row in rows if model in (row[0], None)]
        print(
            f"{model or 'all':16s} n {len(own):3d}  TTFT ±{median(r[3] for r in own):.0%}  "
            f"TPOT ±{median(r[4] for r in own):.0%}"
        )
    if options.judge:
        found = list(judged())
        print(
            f"{'':16s} {'figures':>7s} {'sources':>7s}   share held, of figures and of sources: "
            + ", ".join(STATES)
        )
        for kind in ("dense", "experts"):
            for metric in METRICS:
                own = [each for each in found if (each.kind, each.metric) == (kind, metric)]
                by_source: dict[str, list[Held]] = defaultdict(list)
                for each in own:
                    by_source[each.source].append(each)
                shares = (
                    f"{mean(each.held[state] for each in own):4.0%} "
                    f"{mean(mean(each.held[state] for each in group) for group in by_source.values()):4.0%}"
                    for state in STATES
                )
                print(f"{kind:8s} {metric:7s} {len(own):7d} {len(by_source):7d}   " + "   ".join(shares))
    return 0


if __name__ == "__main__":
    sys.exit(main())
