"""Objective `energy`: joules per output token that the GPUs of a deployment draw under the planned traffic.

It is computed from step times, without simulation, so the search can order candidates by it. An open loop has its mean
rate; in a closed loop all requests are in flight. A prefix cache is assumed to hold every shared prefix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from capacity.answers.costs import Pools, ServedLoad, saturated_load
from capacity.answers.drawn_energy import gpu_watts
from capacity.hardware.drawn_power import drawn_power_table
from capacity.hardware.profile import HardwareProfile
from capacity.planning.evaluation.cost_bounds import Load
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Workload

BELOW_ROUNDING = 1 - 1e-9


@dataclass(eq=False)
class EnergyObjective:
    """Joules per output token by the number of replicas, at least `least`; `pools_of` returns the deployment.

    The value is at least that of fewer replicas, so that it rises with their number, as the search requires.
    """

    pools_of: Callable[[int], Pools]
    load: ServedLoad
    least: int
    _known: list[float] = field(default_factory=list, repr=False)

    def __call__(self, replicas: int) -> float:
        """Return the joules per output token of this many replicas."""
        while len(self._known) <= replicas - self.least:
            pools = self.pools_of(self.least + len(self._known))
            own = joules_per_token(pools, self.load)
            self._known.append(max(own, self._known[-1] if self._known else 0.0))
        return self._known[max(replicas - self.least, 0)]


def joules_per_token(pools: Pools, load: ServedLoad) -> float:
    """Return the joules that the GPUs of `pools` draw per output token."""
    served = saturated_load(pools, load)
    watts, _ = gpu_watts(pools, served)
    return watts.value / (served.requests_per_s * served.output_tokens)


def idle_joules_per_token(profile: HardwareProfile, gpus: int, load: Load) -> float:
    """Return a lower bound: the GPUs idle. It is 0 for a closed loop, whose rate is unknown."""
    if load.offered_per_s is None:
        return 0.0
    watts = drawn_power_table().idle_share * profile.tdp_watts * gpus
    return BELOW_ROUNDING * watts / (load.offered_per_s * load.output_tokens)


def planned_load(resolved: ResolvedPool, load: Load, workload: Workload) -> ServedLoad:
    """Return the load of the planned traffic on all replicas; an infinite rate in a closed loop."""
    hits = 1 - load.computed_input_tokens / load.input_tokens
    return ServedLoad(
        requests_per_s=load.offered_per_s or math.inf,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        in_flight=None if workload.concurrency is None else float(workload.concurrency),
        hit_fraction=hits if resolved.prefix_caching else 0.0,
    )
