"""Power that a deployment draws at the load that it serves, and the energy of an output token.

All commands compute it with `drawn_energy`. The step model predicts the use of each GPU at the load,
`capacity/hardware/drawn_power.py` the power at this use, and `capacity/hardware/server_power.py` the power of hosts and
building. Provisioned power, in contrast, is the power of GPUs, hosts and building at full use.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace

from capacity.answers.costs import Pools, ServedLoad, stream_load
from capacity.base.quantity import Quantity
from capacity.hardware.coefficients import Basis
from capacity.hardware.cost_estimate import MILLION
from capacity.hardware.drawn_power import drawn_power_table, drawn_watts
from capacity.hardware.server_power import server_power
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.step.gpu_use import gpu_use

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnEnergy:
    """Power that a deployment draws at a load, and energy per output token, prompts included, with 90 % intervals.

    `gpu_watts` and `joules_per_output_token` include only the GPUs. `facility_watts` and
    `facility_joules_per_output_token` add hosts, fans, losses of power supplies, and cooling (`pue`); their intervals
    cover the GPUs only. `basis` is "fitted" if the power of these GPUs was measured, else "assumed". The carbon fields
    are None without a carbon intensity.
    """

    gpu_watts: Quantity
    joules_per_output_token: Quantity
    facility_watts: Quantity
    facility_joules_per_output_token: Quantity
    pue: float
    basis: Basis
    co2_g_per_kwh: float | None = None
    co2_g_per_million_output_tokens: Quantity | None = None

    def with_carbon(self, co2_g_per_kwh: float | None) -> "DrawnEnergy":
        """Return the energy with the carbon at this intensity (g CO2 per kWh); unchanged for None."""
        if co2_g_per_kwh is None:
            return self
        grams = self.facility_joules_per_output_token.scale(co2_g_per_kwh * MILLION / JOULES_PER_KWH)
        return replace(self, co2_g_per_kwh=co2_g_per_kwh, co2_g_per_million_output_tokens=grams)


def drawn_energy(pools: Pools, load: ServedLoad, requests_per_s: Quantity | None = None) -> DrawnEnergy:
    """Return the power that `pools` draw at `load`, and the energy per output token.

    `requests_per_s` is the rate of `load` with its interval, which widens the interval of the energy per token.
    """
    watts, tdp_watts = gpu_watts(pools, load)
    server = server_power()
    ends = (watts.low, watts.high)
    facility = Quantity(
        value=server.facility_watts(watts.value, tdp_watts),
        low=None if ends[0] is None else server.facility_watts(ends[0], tdp_watts),
        high=None if ends[1] is None else server.facility_watts(ends[1], tdp_watts),
    )
    rate = requests_per_s or Quantity(value=load.requests_per_s)
    table = drawn_power_table()
    bases = {table.constants(pool.profile).fit.basis for pool, _ in pools}
    return DrawnEnergy(
        gpu_watts=watts,
        joules_per_output_token=_per_token(watts, rate, load.output_tokens),
        facility_watts=facility,
        facility_joules_per_output_token=_per_token(facility, rate, load.output_tokens),
        pue=server.pue.value,
        basis="fitted" if bases == {"fitted"} else "assumed",
    )


def gpu_watts(pools: Pools, load: ServedLoad) -> tuple[Quantity, float]:
    """Return the watts that all GPUs of `pools` draw at `load`, and the sum of their TDPs.

    Replicas of one role share the load equally. The prediction error is assumed to be the same for all GPUs.
    """
    replicas = Counter[str]()
    for pool, count in pools:
        replicas[pool.pool.role] += count
    drawn, tdp_watts = [0.0, 0.0, 0.0], 0.0
    for pool, count in pools:
        steps, gpus = TokenSteps(pool), pool.pool.num_gpus * count
        share = stream_load(steps, load, replicas[pool.pool.role])
        each = drawn_watts(pool.profile, gpu_use(steps, pool.limits, share))
        for place, value in enumerate((each.value, each.low, each.high)):
            drawn[place] += gpus * (value or 0.0)
        tdp_watts += gpus * pool.profile.tdp_watts
    return Quantity(value=drawn[0], low=drawn[1], high=drawn[2]), tdp_watts


def _per_token(watts: Quantity, rate: Quantity, output_tokens: float) -> Quantity:
    """Return watts / (output tokens per second); the relative errors of both are assumed to be independent."""

    def end(of_watts: float | None, of_rate: float | None) -> float:
        power = math.log((of_watts or watts.value) / watts.value)
        return math.hypot(power, math.log((of_rate or rate.value) / rate.value))

    value = watts.value / (rate.value * output_tokens)
    return Quantity(
        value=value,
        low=value * math.exp(-end(watts.low, rate.high)),
        high=value * math.exp(end(watts.high, rate.low)),
    )
