"""Figures of laboratories whose launch is published and to whose rows nothing was fitted: how far machines differ.

GPUStack's lab (`served_gpustack.py`): closed loops, and prompts of known lengths sent at once. ML.ENERGY's leaderboard
v3: the median time between tokens of vLLM 0.11.1 with at most `MOST_IN_FLIGHT` requests, as a decode step.
Its sampling parameters are left out: users rarely state theirs, so they are part of how much servers differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from interval_evidence import OTHER_LAB, Figure
from ml_energy import CHAT_PROMPT, model_name, published_pool
from reference_tables.form import read
from served_gpustack import RUN, engine_of, known_lengths, replayable, server_and_requests

from capacity.answers.deployment_run import run_service, verdict_on
from capacity.answers.intervals import batch_bands
from capacity.answers.phases import RequestLengths
from capacity.answers.run_intervals import run_bands
from capacity.base.errors import CapacityError
from capacity.deployment import Service
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator.load_means import whole_run_means
from capacity.step.closed_form import batch_times

MOST_IN_FLIGHT = 64  # the loads of ordinary questions


def other_labs(measured: Path) -> Iterator[Figure]:
    """Return the figures of both laboratories."""
    yield from _gpustack(measured)
    yield from _ml_energy(measured)


def _figure(
    resolved: ResolvedPool, metric: str, measured_s: float, predicted_s: float, **fields: Any
) -> Figure:
    return Figure(
        gpu=resolved.profile.name,
        engine=resolved.engine.name,
        version=resolved.engine.label,
        model=resolved.model.name,
        is_moe=resolved.model.is_moe,
        metric=metric,
        statistic="mean",
        said=OTHER_LAB,
        measured_s=measured_s,
        predicted_s=predicted_s,
        queue_share=0.0,
        load_fraction=None,
        error_factor=resolved.step_model.error_factor,
        **fields,
    )


def _gpustack(measured: Path) -> Iterator[Figure]:
    for key, rows in replayable(read(measured, "gpustack")).groupby(RUN, sort=False):
        run = dict(zip(RUN, key, strict=True))
        values = dict(zip(rows.metric, rows.value, strict=True))
        if not {"ttft_mean_ms", "tpot_mean_ms"} <= set(values) or not known_lengths(run):
            continue
        try:
            engine = engine_of(run["engine"], str(rows.date_or_version.iloc[0]))
            resolved, requests = server_and_requests(run, engine)
            result = run_service([resolved], Service(), requests)
        except CapacityError as error:
            print(f"gpustack {run['model']}: {error}", file=sys.stderr)
            continue
        verdict = verdict_on(result, [resolved], Service(), requests)
        bands, means = (
            run_bands(resolved, requests, result, verdict),
            whole_run_means(result.summary, result.records),
        )
        if bands is None or means is None:
            continue
        for metric in ("ttft", "tpot"):
            predicted_s, own = getattr(means, f"{metric}_s"), getattr(bands.sensitivities, metric)
            if predicted_s and own is not None:
                place = f"{run['model']} {resolved.profile.name} {resolved.engine.name}"
                yield _figure(
                    resolved,
                    metric,
                    values[f"{metric}_mean_ms"] / 1e3,
                    predicted_s,
                    source=f"gpustack {place}",
                    group=f"gpustack {place}",
                    run=f"{run['input_len']:.0f}/{run['output_len']:.0f} at {run['batch_or_concurrency']}",
                    sensitivity=own,
                )


def ml_energy_rows(measured: Path, *, said: bool) -> Iterator[tuple[Any, ResolvedPool]]:
    """Return the rows of ML.ENERGY's leaderboard with their servers; unknown models are named once and left out.

    `said`: the servers sample as the requests ask.
    """
    unknown = set()
    for row in read(measured, "ml_energy_v3_lm_arena").itertuples():
        name = model_name(row)
        try:
            yield row, resolve(name, published_pool(row, said=said))
        except CapacityError as error:
            if name not in unknown:
                print(f"ML.ENERGY {name}: {error}", file=sys.stderr)
            unknown.add(name)


def _ml_energy(measured: Path) -> Iterator[Figure]:
    for row, resolved in ml_energy_rows(measured, said=False):
        if row.max_num_seqs > MOST_IN_FLIGHT:
            continue
        name = model_name(row)
        batch = max(round(row.avg_batch_size / resolved.independent_ranks), 1)
        lengths = RequestLengths(input_len=CHAT_PROMPT, output_len=round(row.avg_output_len))
        limits = resolved.limits_from(0.0)
        times = batch_times(
            TokenSteps(resolved), limits, batch, input_len=lengths.input_len, output_len=lengths.output_len
        )
        own = batch_bands(resolved, times, lengths, batch).sensitivities.tpot
        if own is None or times.tpot_s is None:
            continue
        yield _figure(
            resolved,
            "tpot",
            row.median_itl_ms / 1e3,
            times.tpot_s,
            source=f"ML.ENERGY {resolved.profile.name}",
            group=f"ML.ENERGY {name} {resolved.profile.name} {row.num_gpus}",
            run=f"{row.max_num_seqs} in flight, {row.expert_parallel}",
            sensitivity=own,
        )
