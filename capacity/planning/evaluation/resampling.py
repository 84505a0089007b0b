"""The same traffic drawn several times, with seeds of its own: what chance alone makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from capacity.answers.engine_setup import make_workload, requests_of
from capacity.deployment import Traffic
from capacity.simulator.peaks import LEAST_RESIDENCES
from capacity.simulator.replications import check_replications
from capacity.workload import Workload

MOST_REQUESTS = 60_000  # of all draws together, where --num-prompts does not set it
SHORTEST_RUN = 5  # in mean end-to-end latencies: a shorter run mostly shows its start


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


def is_endless(traffic: Traffic) -> bool:
    """Whether the traffic has a steady rate and no length of its own: what is drawn is a sample of it."""
    rate, has_length = traffic.request_rate, traffic.num_prompts is not None or traffic.trace is not None
    return rate is not None and 0 < rate < math.inf and not has_length and traffic.arrivals == "steady"


def longer_draws(
    traffic: Traffic, workloads: Sequence[Workload], mean_e2e_s: float, max_model_len: int
) -> tuple[Workload, ...] | None:
    """Draws that are long enough for a steady state with requests of `mean_e2e_s`, for runs that are too short.

    None for runs of at least `SHORTEST_RUN` times `mean_e2e_s`, and where the traffic sets its own length.
    """
    rate, first = traffic.request_rate, workloads[0]
    if rate is None or not is_endless(traffic) or first.is_closed_loop:
        return None
    most = MOST_REQUESTS // len(workloads)
    if first.span_s >= SHORTEST_RUN * mean_e2e_s or len(first) >= most:
        return None
    count = min(math.ceil(1.5 * LEAST_RESIDENCES * mean_e2e_s * rate), most)
    return draws(traffic.model_copy(update={"num_prompts": count}), None, len(workloads), max_model_len)
