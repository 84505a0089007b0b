"""`explain`: which share of an estimate each bound takes, and what more of each resource would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capacity.answers.attribution import Response, responses, shares
from capacity.answers.estimate import breakdown
from capacity.answers.explained_intervals import explained_intervals
from capacity.answers.fit import drafting_notes, gpu_summary, model_summary
from capacity.answers.phases import (
    RequestLengths,
    batch_over_ranks,
    estimate_fields,
    load_times,
    phases_of,
    request_lengths,
)
from capacity.answers.records import Attribution
from capacity.base.checked import checked
from capacity.base.errors import InvalidInput
from capacity.base.keywords import documented, split
from capacity.deployment import DeploymentFile, Pool, Traffic, deployment_of
from capacity.model import ModelSpec
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step.closed_form import PhaseTimes


@documented(Pool, Traffic)
@checked
def explain(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Attribution:
    """Which share of an estimate is compute, HBM, communication, launch and host, and what +10 % of each would do.

    Keywords and errors are those of `estimate`, without the price: cost per token follows throughput.
    """
    pool, traffic = split(options, Pool, Traffic)
    deployment = deployment_of(model, pool=pool, traffic=estimate_fields(traffic), question="explain")
    resolved = resolve(deployment.model, deployment.pool, profiles=profiles, download=download)
    return explain_of(resolved, deployment.traffic)


def explain_of(resolved: ResolvedPool, traffic: Traffic) -> Attribution:
    """`explain` of what was looked up before. Raises as `explain`."""
    lengths = request_lengths(resolved, traffic)
    resolved.memory.require_fit()
    phases = phases_of(resolved, traffic, lengths)
    times, steps = phases.times, TokenSteps(resolved)
    if phases.served is not None and phases.served.steady is None:
        verdict = phases.served.verdict
        raise InvalidInput(f"no steady state: {verdict.reason}; ask for less")
    bound = None if phases.served is None else phases.served.verdict.bound_by
    prefill = steps.step_cost(times.prefill_shape)
    decode = steps.step_cost(times.decode_shape) if times.tpot_s is not None else None
    bounds = () if bound is None else (f"the load is {bound}; the steps below are not the limit",)
    notes = (*bounds, *resolved.step_model.notes, *drafting_notes(resolved))
    return Attribution(
        model=model_summary(resolved),
        gpu=gpu_summary(resolved),
        engine=resolved.engine.label,
        input_len=lengths.input_len,
        output_len=lengths.output_len,
        batch_size=traffic.batch_size,
        concurrency=traffic.concurrency,
        request_rate=traffic.request_rate,
        ttft_s=times.ttft_s,
        tpot_s=times.tpot_s,
        prefill=shares(prefill),
        decode=None if decode is None else shares(decode),
        breakdown=breakdown(prefill, decode),
        responses=_responses(resolved, traffic, lengths),
        intervals=explained_intervals(resolved, phases, traffic, lengths),
        warnings=(*resolved.notes, *resolved.memory.warnings, *notes, *phases.warnings),
    )


def _responses(resolved: ResolvedPool, traffic: Traffic, lengths: RequestLengths) -> tuple[Response, ...]:
    """What more of each resource would do to this batch or load."""
    if traffic.batch_size is not None:

        def together(pool: ResolvedPool, requests: float) -> PhaseTimes:
            return batch_over_ranks(
                pool, pool.limits_from(traffic.client_latency_s), round(requests), lengths
            )

        return responses(resolved, traffic.batch_size, together)
    field = "concurrency" if traffic.request_rate is None else "request_rate"

    def loaded(pool: ResolvedPool, load: float) -> PhaseTimes:
        return load_times(pool, traffic.model_copy(update={field: load}), lengths)[0]

    return responses(resolved, getattr(traffic, field), loaded)
