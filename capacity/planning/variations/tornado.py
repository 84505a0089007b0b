"""Sensitivity analysis: how cost and p95 latency change when each input is off by ±20 %, all else equal."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from capacity.base.checked import validate_arguments
from capacity.base.keywords import document_options
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic
from capacity.model import ModelSpec
from capacity.planning.variations.outcome import (
    ComparedDeployment,
    Outcome,
    Progress,
    measure,
    outcome,
    relative_change,
    report_each,
)
from capacity.planning.variations.prefix_hit_rate import ideal_hits, scale_prefix_hits
from capacity.pool.drafting import pool_speculator
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Workload
from capacity.workload.windows import Window

SWING = 0.20
BILLS = ("usd_per_hour", "usd_per_request_served", "usd_per_request_full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """Outcomes and their relative changes with one input lowered and raised by the fraction `SWING`."""

    input: str
    low: Outcome
    high: Outcome
    e2e_p95_change: tuple[float | None, float | None]
    ttft_p95_change: tuple[float | None, float | None]
    cost_change: tuple[float | None, float | None]
    full_cost_change: tuple[float | None, float | None]

    @property
    def span(self) -> float:
        """Return the sum of the absolute changes of E2E p95 and of both costs; inputs are sorted by it."""
        moves = (*self.e2e_p95_change, *self.cost_change, *self.full_cost_change)
        return sum(abs(move) for move in moves if move is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tornado(AnswerRecord):
    """Sensitivity of one deployment: inputs in order of their effect; changes are relative to `base`.

    `cost_change` is the change of $ per request at the served load, `full_cost_change` that at full load, which also
    depends on request lengths and prefix cache hits.
    """

    SCHEMA: ClassVar[str] = "capacity/tornado/v1"
    ROWS: ClassVar[str] = "swings"

    deployment: str
    workload: str
    busiest_window: Window | None  # the compared window of longer traffic; None: all requests
    swing: float
    base: Outcome
    swings: tuple[Swing, ...]
    not_varied: tuple[str, ...]
    warnings: tuple[str, ...]


@document_options(Pool, Traffic, Cost)
@validate_arguments
def tornado(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo_window: str = "15m",
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Tornado:
    """Compute cost and p95 latency with request lengths, request rate, prefix cache hits, draft acceptance, price or
    step times changed by ±20 %.

    Traffic longer than `slo_window` is reduced to its busiest window. `progress(done, total)` is called after each
    input. Raises DoesNotFit.
    """
    as_it_is = ComparedDeployment.read(model, options, "tornado", slo_window, workload, profiles, download)
    resolved, workload, price = as_it_is.resolved, as_it_is.requests, as_it_is.price

    def outcome_of(
        requests: Workload = workload, *, pool: ResolvedPool = resolved, factor: float = 1.0
    ) -> Outcome:
        return outcome(pool, measure(pool, requests, stretch=factor), price)

    base = outcome_of()
    inputs, left_out = _inputs_of(as_it_is, base, outcome_of)
    swings = [
        _make_swing(name, base, vary(1 - SWING), vary(1 + SWING))
        for name, vary in report_each(inputs.items(), len(inputs), progress)
    ]
    return make_from(
        Tornado,
        as_it_is,
        swing=SWING,
        base=base,
        swings=tuple(sorted(swings, key=lambda swing: -swing.span)),
        not_varied=tuple(left_out),
        warnings=(*resolved.notes, *resolved.split_notes(workload.mean_prompt_tokens), *workload.notices),
    )


def _inputs_of(
    as_it_is: ComparedDeployment, base: Outcome, tried: Callable[..., Outcome]
) -> tuple[dict[str, Callable[[float], Outcome]], list[str]]:
    """Return the varied inputs, each with a function that multiplies it by a factor and returns the outcome, and the
    inputs that are not varied, with reasons.
    """
    resolved, workload = as_it_is.resolved, as_it_is.requests
    inputs: dict[str, Callable[[float], Outcome]] = {
        "prompt lengths": lambda f: tried(with_prompts(workload, f)),
        "output lengths": lambda f: tried(with_outputs(workload, f)),
        "step times (calibration error)": lambda f: tried(factor=f),
    }
    left_out = []
    if workload.content is None:
        left_out.append("prefix-cache hit rate (prompts share no text)")
    elif not resolved.prefix_caching:
        left_out.append("prefix-cache hit rate (the prefix cache is off)")
    elif not ideal_hits(workload).any():
        left_out.append("prefix-cache hit rate (no prompt shares a prefix with an earlier one)")
    else:
        inputs["prefix-cache hit rate"] = lambda f: tried(scale_prefix_hits(workload, f))
    if resolved.pool.speculator is None:
        left_out.append("draft acceptance rate (no speculative decoding)")
    else:
        inputs["draft acceptance rate"] = lambda f: tried(pool=with_acceptance(resolved, f))
    if workload.is_closed_loop or not workload.span_s > 0:
        left_out.append("request rate (requests have no arrival times)")
    else:
        inputs["request rate"] = lambda f: tried(workload.scale_rate(f))
    if as_it_is.price is None:
        left_out.append("price per GPU-hour (no price given)")
    else:
        inputs["price per GPU-hour"] = lambda f: replace_cost(base, f)
    return inputs, left_out


def replace_cost(base: Outcome, factor: float) -> Outcome:
    """Return the outcome with all costs multiplied by `factor` and the same latencies."""
    bills = ((name, getattr(base, name)) for name in BILLS)
    return replace(base, **{name: usd and usd * factor for name, usd in bills})


def with_outputs(workload: Workload, factor: float) -> Workload:
    outputs = np.maximum(np.rint(workload.output_tokens * factor), 1).astype(np.int64)
    return replace(workload, output_tokens=outputs)


def with_prompts(workload: Workload, factor: float) -> Workload:
    """Return the workload with text lengths of prompts multiplied by `factor`; shared text stays shared."""
    content = workload.content
    if content is None:
        pictured = workload.encoded_tokens
        text = np.rint((workload.prompt_tokens - pictured) * factor)
        prompts = np.maximum(pictured + text, 1).astype(np.int64)
        return replace(workload, prompt_tokens=prompts)
    tokens = np.maximum(np.rint(content.segment_tokens * factor), 1).astype(np.int64)
    longer = replace(content, segment_tokens=tokens)
    return replace(workload, content=longer, prompt_tokens=longer.prompt_tokens)


def with_acceptance(resolved: ResolvedPool, factor: float) -> ResolvedPool:
    """Return the pool with the acceptance rate of each draft position multiplied by `factor`, at most 1."""
    pool = resolved.pool
    speculator = pool_speculator(pool, resolved.model)
    drafts = speculator.depth(pool.num_speculative_tokens)
    rates = [min(rate * factor, 1.0) for rate in speculator.first_rates(drafts)]
    acceptance = ",".join(f"{rate:.6f}" for rate in (*rates, rates[-1]))
    return replace(resolved, pool=pool.model_copy(update={"acceptance": acceptance}))


def _make_swing(name: str, base: Outcome, low: Outcome, high: Outcome) -> Swing:
    def changes(field: str) -> tuple[float | None, float | None]:
        before = getattr(base, field)
        return relative_change(before, getattr(low, field)), relative_change(before, getattr(high, field))

    return Swing(
        input=name,
        low=low,
        high=high,
        e2e_p95_change=changes("e2e_p95_s"),
        ttft_p95_change=changes("ttft_p95_s"),
        cost_change=changes("usd_per_request_served"),
        full_cost_change=changes("usd_per_request_full"),
    )
