"""`explain`: share of each bottleneck in the time of an estimate, effect of more of each resource, and sources of error
of each interval."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from capacity.answers.attribution import ResourceEffect, resource_effects, shares
from capacity.answers.estimate import breakdown
from capacity.answers.fit import drafting_notes, gpu_summary, model_summary
from capacity.answers.interval_parts import (
    CALIBRATE,
    Z_90,
    ExplainedInterval,
    IntervalPart,
    Part,
    acceptance_part,
    deviation_of,
    relative_ends,
)
from capacity.answers.intervals import (
    LoadBands,
    bands_of,
    client_range_s,
    length_spread,
    predicted_latencies,
)
from capacity.answers.phases import (
    Phases,
    RequestLengths,
    batch_over_ranks,
    estimate_fields,
    load_times,
    phases_of,
    request_lengths,
)
from capacity.answers.published_runs import nearest_runs
from capacity.answers.records import Attribution, Quantity
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, split
from capacity.base.record import make_from
from capacity.deployment import DeploymentFile, Pool, Traffic, make_deployment
from capacity.hardware.adjustment import Adjustment
from capacity.hardware.coefficients import Residuals
from capacity.hardware.spreads import Metric
from capacity.model import ModelSpec
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step.closed_form import PhaseTimes

METRICS: tuple[tuple[Metric, str], ...] = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E"))


def explained_intervals(
    resolved: ResolvedPool, phases: Phases, traffic: Traffic, lengths: RequestLengths
) -> tuple[ExplainedInterval, ...]:
    """Return the interval of each latency with its sources of error; empty without a steady state."""
    bands = bands_of(resolved, phases, traffic, lengths)
    found = predicted_latencies(resolved, phases, traffic, lengths)
    wider = predicted_latencies(resolved, phases, traffic, lengths, as_found=True)
    if bands is None or found is None or wider is None:
        return ()
    adjustment = resolved.profile.adjustment
    by_steps = phases.served is None and adjustment is None
    explained = []
    for metric, title in METRICS:
        quantity = getattr(found, f"{metric}_s")
        if quantity is None:
            continue
        parts, as_found = (
            [*(_step_bands(resolved, metric) if by_steps else _parts_with_ends(each, metric))]
            for each in (bands, replace(bands, as_found=True))
        )
        if metric != "tpot":
            client = [*_client_part(quantity, traffic, adjustment, bands.remaining_error(metric)[1])]
            as_found += client
            parts += client if adjustment is not None and adjustment.covariance else []
        explained.append(
            ExplainedInterval(
                metric=title,
                predicted_s=quantity,
                parts=_with_shares(parts),
                holds=_further_coverage(phases, metric),
                as_found_s=getattr(wider, f"{metric}_s"),
                as_found_parts=_with_shares(as_found),
            )
        )
    return tuple(explained)


def _parts_with_ends(bands: LoadBands, metric: Metric) -> Iterator[tuple[Part, float, float]]:
    """Yield each source of error of a metric, with the interval (relative) that this source alone would give."""
    kind = bands.kind(metric)
    for part in bands.parts(metric):
        low, high = relative_ends([part], kind)
        yield part, low - 1, high - 1


def _step_bands(resolved: ResolvedPool, metric: Metric) -> Iterator[tuple[Part, float, float]]:
    """Yield the sources of error of a batch: measured errors of its steps, and the uncertain acceptance of drafts."""
    phases: dict[Metric, tuple[str, ...]] = {"ttft": ("prefill",), "tpot": ("decode",)}
    for phase in phases.get(metric, ("prefill", "decode")):
        band: Residuals = resolved.step_model.residuals(phase)  # type: ignore[arg-type]
        deviation = (math.log1p(band.high) - math.log1p(band.low)) / (2 * Z_90)
        what = (
            f"measured over predicted times of {phase} steps of whole models on this GPU ({band.fit.basis})"
        )
        part = Part(name=f"{phase} steps", what=what, deviation=deviation, narrowed_by=CALIBRATE)
        yield part, band.low, band.high
    spread = length_spread(resolved)
    if spread and metric != "ttft":
        yield acceptance_part(spread), math.expm1(-Z_90 * spread), math.expm1(Z_90 * spread)


def _client_part(
    quantity: Quantity, traffic: Traffic, adjustment: Adjustment | None, remaining: float
) -> Iterator[tuple[Part, float, float]]:
    """Yield the error due to an unspecified client latency; nothing if the user specified it."""
    if "client_latency_s" in traffic.model_fields_set:
        return
    nearer_s, farther_s = (remaining * each for each in client_range_s(traffic, adjustment))
    low, high = -nearer_s / quantity.value, farther_s / quantity.value
    what = f"client and network: latency not specified, {traffic.client_latency_s * 1e3:.0f} ms assumed"
    deviation = (high - low) / (2 * Z_90)
    part = Part(name="client", what=what, deviation=deviation, narrowed_by="set --client-latency")
    yield part, max(low, -1.0), high


def _with_shares(parts: list[tuple[Part, float, float]]) -> tuple[IntervalPart, ...]:
    total = deviation_of(part for part, _, _ in parts) ** 2
    shown = [
        make_from(IntervalPart, part, low=low, high=high, variance_share=part.deviation**2 / total)
        for part, low, high in parts
    ]
    return tuple(sorted(shown, key=lambda part: -part.variance_share))


def _further_coverage(phases: Phases, metric: Metric) -> tuple[str, ...]:
    """Return descriptions of the errors that an interval covers in addition to its listed sources of error."""
    load = phases.served
    if load is None:
        return ()
    held = []
    if load.whole is not None:
        held.append("the mean over the whole run including warm-up and drain")
    if load.verdict.verdict == "saturated" and load.verdict.load_fraction is not None and metric != "tpot":
        held.append("no upper end, because queues may grow without bound this close to the engine's capacity")
    return tuple(held)


@document_options(Pool, Traffic)
@validate_arguments
def explain(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    profiles: str | Path | None = None,
    download: bool = False,
    evidence: bool = False,
    **options: Any,
) -> Attribution:
    """Return the fractions of an estimate's time that are compute, HBM, communication, launch and host, and the effect
    of 10 % more of each resource.

    With `evidence`, also return the published runs nearest to this load, each with its prediction. Other keywords and
    errors are those of `estimate`, except the price, because cost per token changes only with throughput.
    """
    pool, traffic = split(options, Pool, Traffic)
    deployment = make_deployment(model, pool=pool, traffic=estimate_fields(traffic), question="explain")
    resolved = resolve(deployment.model, deployment.pool, profiles=profiles, download=download)
    return explain_of(resolved, deployment.traffic, evidence=evidence)


def explain_of(resolved: ResolvedPool, traffic: Traffic, *, evidence: bool = False) -> Attribution:
    """Return `explain` for a resolved pool. Raises as `explain`."""
    lengths = request_lengths(resolved, traffic)
    resolved.memory.require_fit()
    phases = phases_of(resolved, traffic, lengths)
    times, steps = phases.times, TokenSteps(resolved)
    if phases.served is not None and phases.served.steady is None:
        verdict = phases.served.verdict
        raise InvalidInput(f"no steady state: {verdict.reason}; reduce the load")
    bound = None if phases.served is None else phases.served.verdict.bound_by
    prefill = steps.step_cost(times.prefill_shape)
    decode = steps.step_cost(times.decode_shape) if times.tpot_s is not None else None
    bounds = () if bound is None else (f"The load is {bound}; the steps below do not limit the throughput.",)
    notes = (*bounds, *resolved.step_model.notes, *drafting_notes(resolved))
    return make_from(
        Attribution,
        lengths,
        traffic,
        times,
        model=model_summary(resolved),
        gpu=gpu_summary(resolved),
        engine=resolved.engine.label,
        prefill=shares(prefill),
        decode=None if decode is None else shares(decode),
        breakdown=breakdown(prefill, decode),
        responses=_responses(resolved, traffic, lengths),
        intervals=explained_intervals(resolved, phases, traffic, lengths),
        warnings=(*resolved.notes, *resolved.memory.warnings, *notes, *phases.warnings),
        evidence=nearest_runs(resolved, lengths, phases.requests) if evidence else (),
    )


def _responses(
    resolved: ResolvedPool, traffic: Traffic, lengths: RequestLengths
) -> tuple[ResourceEffect, ...]:
    loads = ("batch_size", "request_rate", "concurrency")
    field = next(name for name in loads if getattr(traffic, name) is not None)

    def times_at(pool: ResolvedPool, load: float) -> PhaseTimes:
        if field == "batch_size":
            limits = pool.limits_from(traffic.client_latency_s)
            return batch_over_ranks(pool, limits, round(load), lengths)
        return load_times(pool, traffic.model_copy(update={field: load}), lengths)[0]

    return resource_effects(resolved, getattr(traffic, field), times_at)
