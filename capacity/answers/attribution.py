"""Time attribution of an estimate: the fraction of time that each bound takes, and the effect of more of each resource.

A bound is what limits a step: compute, HBM, communication, kernel launch or host. To compute an effect, the estimate is
repeated with one resource changed by `CHANGE`, so the effect includes changes of the bound (for example from memory to
compute).
"""

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
"""Function that returns the latencies of a pool at a load (batch size, concurrency, or requests per second)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Fractions of one step's time that each bound takes (compute, HBM, ...), which add up to 1."""

    compute: float
    memory: float
    communication: float
    launch: float
    host: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceEffect:
    """Relative change of TTFT, TPOT and cost per token when only one resource changes, by the fraction `change`.

    `tpot` is None for a single output token. The cost changes only with throughput: faster resources cost the same.
    """

    resource: str
    change: float
    ttft: float
    tpot: float | None
    cost_per_token: float

    @property
    def label(self) -> str:
        """Return a label such as `+10% HBM bandwidth`."""
        return f"{self.change:+.0%} {self.resource}"


def shares(cost: StepCost) -> Shares:
    """Return the fractions of a step's time that are compute, HBM, communication, kernel launch and host."""
    seconds, total = dict.fromkeys(BOUNDS, 0.0), cost.seconds
    for op in cost.operators:
        seconds[op.bound] += op.seconds
    return Shares(**{bound: value / total for bound, value in seconds.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTime:
    """One bound (such as memory): the fraction of steps in which it takes the most time, and its time in all steps."""

    bound: Bound
    steps_fraction: float
    time_s: float
    time_fraction: float


def largest_bound(parts: Shares) -> Bound:
    """Return the bound (compute, HBM, ...) that takes the largest part of a step's time."""
    return max(BOUNDS, key=lambda bound: float(getattr(parts, bound)))


def bound_times(works: "Iterable[StepWork]") -> tuple[BoundTime, ...]:
    """Return a record for each bound: the fraction of steps in which it takes the most time, and its time in all steps.

    Empty if there are no steps. Times are those of the step model's operators. Waiting for KV that was offloaded counts
    as communication. Decode steps are grouped by approximate batch size and context, and steps with a prefill are
    sampled (`capacity.simulator.step_work`). The total time is exact.
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


def resource_effects(resolved: ResolvedPool, load: float, timed: PhaseTimer) -> tuple[ResourceEffect, ...]:
    """Return the effects on latency and cost when one resource of the pool, or the load, changes by 10 % (`CHANGE`). An
    integer `load` is a number of requests; a float is a request rate (requests/s)."""
    before, profile, engine = timed(resolved, load), resolved.profile, resolved.engine
    links = {name: getattr(profile, name) for name in ("scale_up", "pcie", "inter_node")}
    faster: dict[str, dict[str, object]] = {
        "HBM bandwidth": {"hbm_bytes_per_s": scale_rate(profile.hbm_bytes_per_s)},
        "compute rate": {
            "dense_flops_per_s": {name: scale_rate(rate) for name, rate in profile.dense_flops_per_s.items()}
        },
        "link bandwidth": {
            name: link.model_copy(update={"bytes_per_s": scale_rate(link.bytes_per_s)})
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
    more = max(load + 1, math.ceil(load * (1 + CHANGE))) if counted else scale_rate(load)
    name = "requests at a time" if counted else "requests/s"
    answers.append(_response(name, more / load - 1, before, timed(resolved, more)))
    return tuple(answers)


def scale_rate(value: float) -> float:
    """Return the rate `value` of a resource (for example bytes/s), increased by the fraction `CHANGE`."""
    return value * (1 + CHANGE)


def _response(resource: str, change: float, before: PhaseTimes, after: PhaseTimes) -> ResourceEffect:
    return ResourceEffect(
        resource=resource,
        change=change,
        ttft=after.ttft_s / before.ttft_s - 1,
        tpot=None if before.tpot_s is None or after.tpot_s is None else after.tpot_s / before.tpot_s - 1,
        cost_per_token=before.requests_per_s / after.requests_per_s - 1,
    )
