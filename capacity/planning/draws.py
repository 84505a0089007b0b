"""The same traffic drawn several times, with seeds of its own: what chance alone makes of it."""

from __future__ import annotations

from capacity.answers.engine_setup import make_workload, requests_of
from capacity.deployment import Traffic
from capacity.simulator.replications import check_replications
from capacity.workload import Workload


def draws(
    traffic: Traffic, workload: Workload | None, count: int, max_model_len: int | None = None
) -> tuple[Workload, ...]:
    """The traffic with `count` seeds; once where it is a trace or a workload of one's own. Raises InvalidInput."""
    check_replications(count)
    if workload is not None:
        return (requests_of(traffic, workload),)
    if traffic.trace is not None:
        return (make_workload(traffic),)
    seeds = range(traffic.seed, traffic.seed + count)
    drawn = (traffic.model_copy(update={"seed": seed}) for seed in seeds)
    return tuple(make_workload(each, max_model_len) for each in drawn)
