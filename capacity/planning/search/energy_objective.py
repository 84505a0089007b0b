"""Objectives `energy` and `carbon`: energy drawn or CO2 emitted per output token under the planned traffic.

`energy` is in joules of the GPUs, `carbon` in g CO2 of the whole facility per million tokens. The value is computed
from step times, without simulation, so the search can order candidates by it. An open loop has its mean rate; in a
closed loop all requests are in flight. A prefix cache is assumed to hold every shared prefix. If the SLO applies to the
busiest window, the load is that of the window.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from capacity.answers.costs import Pools, ServedLoad, saturated_load
from capacity.answers.drawn_energy import JOULES_PER_KWH, gpu_watts
from capacity.hardware.cost_estimate import MILLION
from capacity.hardware.drawn_power import drawn_power_table
from capacity.hardware.profile import HardwareProfile
from capacity.hardware.server_power import server_power
from capacity.planning.evaluation.cost_bounds import Load
from capacity.pool.resolve import ResolvedPool
from capacity.workload import Workload

BELOW_ROUNDING = 1 - 1e-9


@dataclass(eq=False)
class EnergyObjective:
    """Function from a number of replicas, at least `least`, to energy or carbon; `pools_of` returns the deployment.

    `co2_g_per_kwh`: carbon intensity for grams per million output tokens; None for joules per output token.

    The value never falls when the number of replicas rises, because the search requires this.
    """

    pools_of: Callable[[int], Pools]
    load: ServedLoad
    least: int
    co2_g_per_kwh: float | None = None
    _known: list[float] = field(default_factory=list, repr=False)

    def __call__(self, replicas: int) -> float:
        while len(self._known) <= replicas - self.least:
            pools = self.pools_of(self.least + len(self._known))
            own = per_token(pools, self.load, self.co2_g_per_kwh)
            self._known.append(max(own, self._known[-1] if self._known else 0.0))
        return self._known[max(replicas - self.least, 0)]


def per_token(pools: Pools, load: ServedLoad, co2_g_per_kwh: float | None = None) -> float:
    """Return the joules that the GPUs of `pools` draw per output token, or g CO2 of the facility per million."""
    served = saturated_load(pools, load)
    watts, tdp_watts = gpu_watts(pools, served)
    return _of_watts(watts.value, tdp_watts, served.requests_per_s * served.output_tokens, co2_g_per_kwh)


def idle_per_token(
    profile: HardwareProfile, gpus: int, load: Load, co2_g_per_kwh: float | None = None
) -> float:
    """Return a lower bound of `per_token`, with all GPUs idle; 0 for a closed loop, whose rate is unknown."""
    if load.offered_per_s is None:
        return 0.0
    tdp_watts = profile.tdp_watts * gpus
    watts, tokens_per_s = drawn_power_table().idle_share * tdp_watts, load.offered_per_s * load.output_tokens
    return BELOW_ROUNDING * _of_watts(watts, tdp_watts, tokens_per_s, co2_g_per_kwh)


def _of_watts(watts: float, tdp_watts: float, tokens_per_s: float, co2_g_per_kwh: float | None) -> float:
    if co2_g_per_kwh is None:
        return watts / tokens_per_s
    joules = server_power().facility_watts(watts, tdp_watts) / tokens_per_s
    return joules * co2_g_per_kwh * MILLION / JOULES_PER_KWH


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
