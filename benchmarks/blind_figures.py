"""The blind rows (`served_blind.py`) as figures beside those of `interval_evidence.py`.

Asked as strangers publish them: with the launch settings that they state, and nothing said of their client.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping

import served_blind
from interval_evidence import PUBLISHED, Figure

from capacity.answers.deployment_run import verdict_on
from capacity.answers.run_intervals import run_bands
from capacity.answers.simulate import simulate
from capacity.base.errors import CapacityError
from capacity.deployment import Pool, Service
from capacity.hardware.spreads import Metric
from capacity.pool.resolve import resolve


def blind_figures(rows: Iterable[Mapping[str, str]] | None = None) -> Iterator[Figure]:
    """Of every row that an answer is given to; the others are named on standard error."""
    for row in served_blind.read_rows() if rows is None else rows:
        if served_blind.is_too_old(row):
            continue
        try:
            yield from _figures_of(row)
        except CapacityError as error:
            print(f"{row['source']} {row['model']}: {error}", file=sys.stderr)


def _figures_of(row: Mapping[str, str]) -> Iterator[Figure]:
    pool = Pool.model_validate(served_blind.pool_fields(row))
    workload = served_blind.workload_of(row)
    run = simulate(row["model"], workload=workload, **pool.model_dump(exclude_unset=True)).run
    resolved = resolve(row["model"], pool)
    verdict = verdict_on(run, [resolved], Service(), workload)
    bands = run_bands(resolved, workload, run, verdict)
    if bands is None:
        return
    asked, seen = bands.prediction_context("mean"), bands.seen
    latencies = served_blind.latencies_ms(run.records, served_blind.counted_of(row, len(run.records)))
    for name, measured, statistic in served_blind.figures_of(row):
        metric: Metric = "e2e" if name == "throughput" else name  # type: ignore[assignment]
        own = getattr(bands.sensitivities, metric)
        if own is None:
            continue
        predicted = float(statistic(latencies[metric])) / 1e3
        if name == "throughput":  # by Little's law
            measured = 1e3 * predicted * served_blind.throughput_of(run.records, row) / measured
        source = f"{row['source'].replace(' ', '-')} {asked.engine} {asked.gpu}"
        yield Figure(
            source=source,
            group=f"{source} {row['model']} {row['quantization']} {row['settings']}",
            run=f"{row['input_len']}/{row['output_len']} at {row['concurrency'] or row['rate']} {row['counted']}",
            gpu=asked.gpu,
            engine=asked.engine,
            version=asked.engine_label,
            model=asked.model,
            is_moe=asked.is_moe,
            metric=metric,
            statistic="throughput" if metric == "e2e" and asked.saturated else "mean",
            said=PUBLISHED,
            measured_s=measured / 1e3,
            predicted_s=predicted,
            queue_share=bands.sensitivities.queue_share if metric == "ttft" else 0.0,
            ttft_share=asked.ttft_share if metric == "e2e" else 0.0,
            load_fraction=seen.load_fraction,
            sensitivity=own,
            unsaid=" ".join(asked.unsaid),
            transferred=asked.transferred,
            error_factor=asked.error_factor,
        )
