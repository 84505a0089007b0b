"""What an answer hangs on: cost and p95 when each input is wrong by ±20 %, everything else as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from capacity.planning.outcome import Outcome, change, outcome
from capacity.planning.step_error import Factors
from capacity.pricing import Price
from capacity.resolve import ResolvedPool
from capacity.workload import Workload

SWING = 0.20


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """One input at -`SWING` and +`SWING`: the outcomes, and the relative changes that they are."""

    input: str
    low: Outcome
    high: Outcome
    e2e_p95_change: tuple[float | None, float | None]
    ttft_p95_change: tuple[float | None, float | None]
    cost_change: tuple[float | None, float | None]

    @property
    def span(self) -> float:
        """How far the p95 of E2E and the cost move, together: what tornado bars are sorted by."""
        moves = (*self.e2e_p95_change, *self.cost_change)
        return sum(abs(move) for move in moves if move is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tornado:
    """The inputs by how much hangs on them; changes are relative to `base`; cost is $ per 1M output tokens served."""

    SCHEMA: ClassVar[str] = "capacity/tornado/v1"

    deployment: str
    workload: str
    swing: float
    base: Outcome
    swings: tuple[Swing, ...]
    not_varied: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, `schema` first."""
        return {"schema": self.SCHEMA, **asdict(self)}


def tornado_of(
    resolved: ResolvedPool, workload: Workload, *, replicas: int = 1, price: Price | None = None
) -> Tornado:
    """Vary lengths, rate, price and step times. Raises DoesNotFit."""

    def tried(requests: Workload = workload, *, quote: Price | None = price, factor: float = 1.0) -> Outcome:
        factors = Factors(prefill=factor, decode=factor)
        return outcome(resolved, requests, replicas=replicas, price=quote, factors=factors)

    base = tried()
    inputs: dict[str, Callable[[float], Outcome]] = {
        "output lengths": lambda f: tried(_with_outputs(workload, f)),
        "step times (calibration error)": lambda f: tried(factor=f),
    }
    left_out = ["acceptance of drafts (no speculation here)"]
    if workload.content is None:
        inputs["prompt lengths"] = lambda f: tried(_with_prompts(workload, f))
        left_out.append("prefix-cache hit rate (no two prompts share anything)")
    else:
        inputs["prefix-cache hit rate"] = lambda f: tried(_with_hits(workload, f))
        left_out.append("prompt lengths (they follow from the shared texts)")
    if not workload.is_closed_loop and workload.span_s > 0:
        inputs["request rate"] = lambda f: tried(workload.at_rate_factor(f))
    if price is not None:
        inputs["price of a GPU-hour"] = lambda f: replace_cost(base, f)
    swings = [_swing(name, base, vary(1 - SWING), vary(1 + SWING)) for name, vary in inputs.items()]
    gpus = f"{replicas} x {resolved.pool.num_gpus} {resolved.profile.name}"
    return Tornado(
        deployment=f"{resolved.model.name} on {gpus}, {resolved.engine.label}",
        workload=workload.name,
        swing=SWING,
        base=base,
        swings=tuple(sorted(swings, key=lambda swing: -swing.span)),
        not_varied=tuple(left_out),
    )


def replace_cost(base: Outcome, factor: float) -> Outcome:
    """The same latencies at another price."""
    names = ("usd_per_hour", "usd_per_million_served", "usd_per_million_full")
    found: dict[str, Any] = {name: getattr(base, name) for name in names}
    return replace(base, **{name: usd and usd * factor for name, usd in found.items()})


def _with_outputs(workload: Workload, factor: float) -> Workload:
    outputs = np.maximum(np.rint(workload.output_tokens * factor), 1).astype(np.int64)
    return replace(workload, output_tokens=outputs)


def _with_prompts(workload: Workload, factor: float) -> Workload:
    prompts = np.maximum(np.rint(workload.prompt_tokens * factor), 1).astype(np.int64)
    return replace(workload, prompt_tokens=prompts)


def _with_hits(workload: Workload, factor: float) -> Workload:
    """Fewer hits: a share of prompts becomes a stranger's; more cannot be made of the same texts, so they stay."""
    if factor >= 1 or workload.content is None:
        return workload
    content = workload.content
    period = max(round(1 / (1 - factor)), 1)
    owner = np.repeat(np.arange(len(workload)), np.diff(content.offsets))
    fresh = int(content.segment_ids.max()) + 1 + np.arange(len(content.segment_ids))
    stranger = owner % period == 0
    ids = np.where(stranger, fresh + int(content.answer_ids.max()) + 1, content.segment_ids)
    return replace(workload, content=replace(content, segment_ids=ids))


def _swing(name: str, base: Outcome, low: Outcome, high: Outcome) -> Swing:
    def changes(field: str) -> tuple[float | None, float | None]:
        before = getattr(base, field)
        return change(before, getattr(low, field)), change(before, getattr(high, field))

    return Swing(
        input=name,
        low=low,
        high=high,
        e2e_p95_change=changes("e2e_p95_s"),
        ttft_p95_change=changes("ttft_p95_s"),
        cost_change=changes("usd_per_million_served"),
    )
