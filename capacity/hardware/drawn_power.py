"""Power that a GPU draws at a given utilization.

A GPU whose engine runs steps for the fraction `duty` of the time draws

    idle + duty * (limit - idle) * (1 - exp(-(busy * kernels + memory * bytes/s / HBM + compute * FLOP/s / peak)))

on average. `idle` and `limit` are shares of the TDP, `kernels` is the fraction of the steps' time in which kernels run,
and `peak` is the dense 16-bit rate. The power approaches the limit exponentially, because clocks fall near it.
`benchmarks/fit_drawn_power.py` fits busy, memory and compute for each measured GPU and writes `drawn_power.toml`. Other
GPUs use the constants of their architecture, else of all measured GPUs, scaled by the TDP, with a wider interval. In
all published sweeps of power caps, a GPU whose steps would draw more than the cap draws the cap.
"""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.data_files import make_row, read_data
from capacity.base.quantity import Quantity
from capacity.base.spec import Spec
from capacity.hardware.coefficients import Coefficients, Fraction
from capacity.hardware.profile import HardwareProfile

TABLE = Path(__file__).with_name("drawn_power.toml")
ALL = "all"

NotNegative = Annotated[float, Field(ge=0, le=100)]
Factor = Annotated[float, Field(gt=0, le=10)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Mean utilization of a GPU. `duty` is the fraction of time in which steps run; the other fields are means while
    steps run.

    `kernel_fraction`: fraction of the time in which kernels run. `bytes_per_s`: HBM traffic.
    """

    duty: float
    kernel_fraction: float
    bytes_per_s: float
    flops_per_s: float


class DrawnPowerConstants(Coefficients):
    """Constants of the formula for one GPU, or for all measured GPUs (`architecture` "all")."""

    architecture: str
    busy: NotNegative
    memory: NotNegative
    compute: NotNegative


class PowerInterval(Spec):
    """90 % interval of measured / predicted power."""

    low: Factor
    high: Factor


class DrawnPowerTable(Spec):
    """Contents of `drawn_power.toml`: shares of the TDP, constants of each measured GPU, and intervals.

    `gpus` also has constants fitted on all measured GPUs together. `measured` is the interval of GPUs with their own
    constants, `transferred` that of other GPUs.
    """

    idle_share: Fraction
    limit_share: Fraction
    measured: PowerInterval
    transferred: PowerInterval
    gpus: dict[str, DrawnPowerConstants]

    def constants(self, profile: HardwareProfile) -> DrawnPowerConstants:
        """Return the constants of a GPU, else of its architecture, else of all measured GPUs. The basis is "assumed"
        unless they were fitted on this GPU."""
        own = self.gpus.get(profile.name)
        if own is not None:
            return own
        sisters = (each for each in self.gpus.values() if each.architecture == profile.architecture)
        nearest = next(sisters, self.gpus[ALL])
        return nearest.mark_assumed(f"architecture: {nearest.architecture}, scaled by the TDP")

    def interval(self, profile: HardwareProfile) -> PowerInterval:
        """Return the interval of measured / predicted power, which is wider for a GPU without its own constants."""
        return self.measured if profile.name in self.gpus else self.transferred

    def watts(self, profile: HardwareProfile, use: GpuUse) -> float:
        """Return the mean watts of one GPU by the formula of this module; while steps run, at most the power cap."""
        watts = self.uncapped_watts(profile, use)
        if profile.power_cap_watts is None:
            return watts
        return min(
            watts, self.idle_share * profile.tdp_watts * (1 - use.duty) + profile.power_cap_watts * use.duty
        )

    def uncapped_watts(self, profile: HardwareProfile, use: GpuUse) -> float:
        """Return the mean watts of one GPU without a power cap."""
        constants = self.constants(profile)
        peak = profile.dense_flops_per_s[profile.compute_type_16_bit]
        load = (
            constants.busy * use.kernel_fraction
            + constants.memory * use.bytes_per_s / profile.hbm_bytes_per_s
            + constants.compute * use.flops_per_s / peak
        )
        drawn = (self.limit_share - self.idle_share) * -math.expm1(-load)
        return profile.tdp_watts * (self.idle_share + use.duty * drawn)


@cache
def drawn_power_table() -> DrawnPowerTable:
    """Return the package's constants. Raises MalformedFile."""
    return make_row(TABLE, "", DrawnPowerTable, read_data(TABLE))


def drawn_watts(profile: HardwareProfile, use: GpuUse) -> Quantity:
    """Return the mean watts that one GPU draws, with the 90 % interval, which ends at the TDP or the power cap."""
    table = drawn_power_table()
    watts, ends = table.watts(profile, use), table.interval(profile)
    return Quantity(
        value=watts,
        low=watts * ends.low,
        high=min(watts * ends.high, profile.power_cap_watts or profile.tdp_watts),
    )
