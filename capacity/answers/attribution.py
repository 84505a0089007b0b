"""Where the time of an estimate goes, and what would help: shares by bound, and the response to each resource.

The responses are computed, not derived: the estimate is made again with one resource changed by `CHANGE`, through
the same step model, so that a change of regime (from memory to compute bound, say) shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

from capacity.pool.resolve import ResolvedPool
from capacity.step import PS_PER_S, Bound, StepCost
from capacity.step.closed_form import PhaseTimes

if TYPE_CHECKING:
    from capacity.simulator.step_work import StepWork

CHANGE = 0.10
HOST_FIELDS = (
    *("host_base_s", "host_per_layer_s", "host_per_sequence_s", "host_serial_s"),
    "kernel_launch_s",
)
BOUNDS: tuple[Bound, ...] = get_args(Bound)

PhaseTimer = Callable[[ResolvedPool, float], PhaseTimes]
"""The latency of a pool at a load (batch size, concurrency, or requests per second)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of one step's time by what bounds its operators; they add up to 1."""

    compute: float
    memory: float
    communication: float
    launch: float
    host: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """Relative change of TTFT, TPOT and cost per token when one resource changes by `change`, all else equal.

    `tpot` is None for a single output token. Cost follows throughput; the resource itself is free here.
    """

    resource: str
    change: float
    ttft: float
    tpot: float | None
    cost_per_token: float

    @property
    def label(self) -> str:
        """`+10% HBM bandwidth`."""
        return f"{self.change:+.0%} {self.resource}"


def shares(cost: StepCost) -> Shares:
    """Which part of a step's time is compute, HBM, communication, kernel launch and host."""
    seconds, total = dict.fromkeys(BOUNDS, 0.0), cost.seconds
    for op in cost.operators:
        seconds[op.bound] += op.seconds
    return Shares(**{bound: value / total for bound, value in seconds.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTime:
    """Steps of a run that one bound takes the largest part of, and the busy time, of all steps, that it takes."""

    bound: Bound
    steps_fraction: float
    time_s: float
    time_fraction: float


def largest_bound(parts: Shares) -> Bound:
    """The bound that takes most of a step."""
    return max(BOUNDS, key=lambda bound: float(getattr(parts, bound)))


def bound_times(works: Iterable[StepWork]) -> tuple[BoundTime, ...]:
    """What bound the steps of a run, by the operators of its step model; empty without steps, or without a table.

    Waits for KV to come back from another memory are communication. Decode steps count by batch and context to a few
    leading bits, steps with a prefill by a sample (`capacity.simulator.step_work`); the time in all is exact.
    """
    steps = dict.fromkeys(BOUNDS, 0.0)
    busy_ps = dict.fromkeys(BOUNDS, 0.0)
    for work in works:
        step_cost = getattr(work.step_times, "step_cost", None)
        if step_cost is None:
            return ()
        busy_ps["communication"] += work.held_ps
        for kind in work.kinds():
            if not kind.shape.num_tokens:  # a batch without a forward pass
                continue
            parts = shares(step_cost(kind.shape))
            steps[largest_bound(parts)] += kind.steps
            for bound in BOUNDS:
                busy_ps[bound] += kind.busy_ps * getattr(parts, bound)
    count, total_ps = sum(steps.values()), sum(busy_ps.values())
    if not count or not total_ps:
        return ()
    return tuple(
        BoundTime(
            bound=bound,
            steps_fraction=steps[bound] / count,
            time_s=busy_ps[bound] / PS_PER_S,
            time_fraction=busy_ps[bound] / total_ps,
        )
        for bound in BOUNDS
    )


def responses(resolved: ResolvedPool, load: float, timed: PhaseTimer) -> tuple[Response, ...]:
    """How the latency at `load` answers to each resource of the pool; a whole `load` is a count, else it is a rate."""
    before, profile, engine = timed(resolved, load), resolved.profile, resolved.engine
    links = {name: getattr(profile, name) for name in ("scale_up", "pcie", "inter_node")}
    faster: dict[str, dict[str, object]] = {
        "HBM bandwidth": {"hbm_bytes_per_s": scaled(profile.hbm_bytes_per_s)},
        "compute rate": {
            "dense_flops_per_s": {name: scaled(rate) for name, rate in profile.dense_flops_per_s.items()}
        },
        "link bandwidth": {
            name: link.model_copy(update={"bytes_per_s": scaled(link.bytes_per_s)})
            for name, link in links.items()
        },
    }
    answers = []
    for name, fields in faster.items():
        after = timed(replace(resolved, profile=profile.model_copy(update=fields)), load)
        answers.append(_response(name, CHANGE, before, after))
    host = {name: getattr(engine, name) * (1 - CHANGE) for name in HOST_FIELDS}
    after = timed(replace(resolved, engine=engine.model_copy(update=host)), load)
    answers.append(_response("host time", -CHANGE, before, after))
    counted = isinstance(load, int)
    more = max(load + 1, math.ceil(load * (1 + CHANGE))) if counted else scaled(load)
    name = "requests at a time" if counted else "requests/s"
    answers.append(_response(name, more / load - 1, before, timed(resolved, more)))
    return tuple(answers)


def scaled(value: float) -> float:
    """A resource's rate with the change."""
    return value * (1 + CHANGE)


def _response(resource: str, change: float, before: PhaseTimes, after: PhaseTimes) -> Response:
    return Response(
        resource=resource,
        change=change,
        ttft=after.ttft_s / before.ttft_s - 1,
        tpot=None if before.tpot_s is None or after.tpot_s is None else after.tpot_s / before.tpot_s - 1,
        cost_per_token=before.requests_per_s / after.requests_per_s - 1,
    )
