"""The blind rows (`served_blind.py`) as figures next to those of `interval_evidence.py`.

Each row is predicted at three levels of knowledge: without release and launch settings; with its release, where the
source names it; and with its launch line, where the source leaves nothing open (`not_said`). Nothing is known of the
client.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import served_blind
from interval_evidence import (
    NO_LAUNCH,
    PUBLISHED,
    PUBLISHED_NOTHING,
    PUBLISHED_RELEASE,
    Figure,
    without_launch,
)

from capacity.answers.deployment_run import verdict_on
from capacity.answers.interval_parts import VERSION
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
        for said, fields in levels_of(row).items():
            try:
                yield from _figures_of(row, fields, said)
            except CapacityError as error:
                print(f"{row['source']} {row['model']}, {said}: {error}", file=sys.stderr)


def levels_of(row: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the fields of the row's pool by level of knowledge; without the levels that its source does not state."""
    fields = served_blind.pool_fields(row)
    levels = {PUBLISHED_NOTHING: without_launch(fields, release=False)}
    if "@" in row["engine"] and "release" not in row["not_said"]:
        levels[PUBLISHED_RELEASE] = without_launch(fields, release=True)
    if not row["not_said"]:
        levels[PUBLISHED] = fields
    return levels


UNSAID = {PUBLISHED: "", PUBLISHED_RELEASE: NO_LAUNCH, PUBLISHED_NOTHING: f"{VERSION} {NO_LAUNCH}"}


def _figures_of(row: Mapping[str, str], fields: dict[str, Any], said: str) -> Iterator[Figure]:
    pool = Pool.model_validate(fields)
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
            said=said,
            measured_s=measured / 1e3,
            predicted_s=predicted,
            queue_share=bands.sensitivities.queue_share if metric == "ttft" else 0.0,
            ttft_share=asked.ttft_share if metric == "e2e" else 0.0,
            load_fraction=seen.load_fraction,
            sensitivity=own,
            unsaid=UNSAID[said],
            transferred=asked.transferred,
            error_factor=asked.error_factor,
        )
