"""Figures of laboratories whose launch is published and to whose rows nothing was fitted: how far machines differ.

GPUStack's lab (`served_gpustack.py`): closed loops, and prompts of known lengths sent at once. ML.ENERGY's leaderboard
v3: the median time between tokens of vLLM 0.11.1 with at most `MOST_IN_FLIGHT` requests, as a decode step; of dense
models only the configurations that are held out, because the cost of sampling was fitted to the others.

Each is predicted with its launch, with its release alone, and with neither. ML.ENERGY's sampling parameters are known
with the launch only, so where they are unknown they are part of how much servers differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from interval_evidence import NO_LAUNCH, NOTHING, OTHER_LAB, RELEASE, Figure, without_launch
from ml_energy import CHAT_PROMPT, held_out, model_name, published_pool
from reference_tables.form import read
from served_gpustack import RUN, engine_of, known_lengths, replayable, server_and_requests

from capacity.answers.deployment_run import run_service, verdict_on
from capacity.answers.intervals import batch_bands
from capacity.answers.phases import RequestLengths
from capacity.answers.run_intervals import run_bands
from capacity.base.errors import CapacityError
from capacity.deployment import Pool, Service
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator.load_means import whole_run_means
from capacity.step.closed_form import batch_times
from capacity.workload import Workload

MOST_IN_FLIGHT = 64  # the loads of ordinary questions
LEVELS = {
    OTHER_LAB: "",
    RELEASE: NO_LAUNCH,
    NOTHING: "",
}  # what is known of the launch, and which settings are not


def known_at(level: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the function that leaves out the fields of a pool that are not known at this level."""
    return dict if level == OTHER_LAB else partial(without_launch, release=level == RELEASE)


def other_labs(measured: Path) -> Iterator[Figure]:
    """Return the figures of both laboratories."""
    yield from _gpustack(measured)
    for level in LEVELS:
        yield from _ml_energy(measured, level)


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
        for level in LEVELS:
            try:
                engine = engine_of(run["engine"], str(rows.date_or_version.iloc[0]))
                resolved, requests = server_and_requests(run, engine, known_at(level))
                yield from _gpustack_run(run, values, resolved, requests, level)
            except CapacityError as error:
                print(f"gpustack {run['model']}, {level}: {error}", file=sys.stderr)


def _gpustack_run(
    run: dict[str, Any], values: Mapping[str, float], resolved: ResolvedPool, requests: Workload, level: str
) -> Iterator[Figure]:
    result = run_service([resolved], Service(), requests)
    verdict = verdict_on(result, [resolved], Service(), requests)
    bands = run_bands(resolved, requests, result, verdict)
    means = whole_run_means(result.summary, result.records)
    if bands is None or means is None:
        return
    place = f"{run['model']} {resolved.profile.name} {resolved.engine.name}"
    for metric in ("ttft", "tpot"):
        predicted_s, own = getattr(means, f"{metric}_s"), getattr(bands.sensitivities, metric)
        if predicted_s and own is not None:
            yield _figure(
                resolved,
                metric,
                values[f"{metric}_mean_ms"] / 1e3,
                predicted_s,
                source=f"gpustack {place}",
                group=f"gpustack {place}",
                run=f"{run['input_len']:.0f}/{run['output_len']:.0f} at {run['batch_or_concurrency']}",
                sensitivity=own,
                said=level,
                unsaid=LEVELS[level],
            )


def ml_energy_rows(
    measured: Path, *, said: bool, known: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> Iterator[tuple[Any, ResolvedPool]]:
    """Return the rows of ML.ENERGY's leaderboard with their servers; unknown models are named once and left out.

    `said`: the servers sample as the requests ask. `known` leaves out fields of the pool that nobody stated.
    """
    unknown = set()
    table = read(measured, "ml_energy_v3_lm_arena")
    for row in table.assign(held_out=held_out(table)).itertuples():
        name = model_name(row)
        try:
            pool = Pool.model_validate(known(published_pool(row, said=said).model_dump(exclude_unset=True)))
            yield row, resolve(name, pool)
        except CapacityError as error:
            if name not in unknown:
                print(f"ML.ENERGY {name}: {error}", file=sys.stderr)
            unknown.add(name)


def _ml_energy(measured: Path, level: str) -> Iterator[Figure]:
    for row, resolved in ml_energy_rows(measured, said=level == OTHER_LAB, known=known_at(level)):
        if row.max_num_seqs > MOST_IN_FLIGHT or not (row.held_out or resolved.model.is_moe):
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
            said=level,
            unsaid=LEVELS[level],
        )
