"""Effect of a power cap (`nvidia-smi -pl`) on a GPU: the clock under the cap, and the rates of kernels at this clock.

A kernel that draws `demand` watts without a cap runs under a lower cap at the fraction x of its clock:

    cap = static + (demand - static)·x·V²        V = max(voltage_floor, 1 - voltage_slope·(1 - x))

`static` is the power that does not fall with the clock. Compute rates are proportional to x, memory rates to
x^memory_exponent, because memory has its own clock. The demand is the power of `capacity/hardware/drawn_power.py` for a
kernel that runs continuously; a kernel whose demand is below the cap keeps its rate. `benchmarks/fit_power_cap.py` fits
the constants to measured sweeps and writes `power_cap.toml`. No sweep of H100, H200 or B200 was found, so answers under
a cap have wider intervals and a note.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from capacity.base.data_files import make_row, read_data, read_rows
from capacity.base.errors import InvalidInput
from capacity.hardware.coefficients import Coefficients, Fraction
from capacity.hardware.drawn_power import GpuUse, drawn_power_table
from capacity.hardware.kernel_lookup import Found
from capacity.hardware.power import clock_for_power
from capacity.hardware.profile import HardwareProfile, Provenance
from capacity.hardware.server_power import server_power

TABLE = Path(__file__).with_name("power_cap.toml")
LIMITS = Path(__file__).with_name("power_limits.toml")
GDDR_CAPABILITIES = ("7.5", "8.6", "8.9", "12.0")
"""Compute capabilities of cards with GDDR memory, whose power does not fall with the clock."""
NOTE = "scaled to a power cap of {:.0f} W (capacity/hardware/power_cap.py)"
DEFAULT_CAPS = (None, "80%", "65%", "50%")
"""Caps that `--power-cap auto` searches, as shares of the TDP; prefill needs the least energy at 50 to 65 %."""


class PowerCapConstants(Coefficients):
    """Contents of `power_cap.toml`.

    `static_share_hbm` and `static_share_gddr`: fractions of the TDP. 90 % of measured rates are within a factor of
    exp(error x (1 - cap / TDP)) of predicted rates. `lowest_share`: lowest cap in the fitted sweeps, as a share of the
    TDP.
    """

    static_share_hbm: Fraction
    static_share_gddr: Fraction
    voltage_slope: Annotated[float, Field(gt=0, le=2)]
    voltage_floor: Fraction
    memory_exponent: Fraction
    prefill_error: Annotated[float, Field(ge=0, le=2)]
    decode_error: Annotated[float, Field(ge=0, le=2)]
    lowest_share: Fraction

    def static_share(self, card: HardwareProfile) -> float:
        """Return the power that does not fall with the clock, as a share of the TDP."""
        return (
            self.static_share_gddr if card.compute_capability in GDDR_CAPABILITIES else self.static_share_hbm
        )

    def clock_share(self, cap_watts: float, demand_watts: float, static_watts: float) -> float:
        """Return a kernel's clock under a cap, relative to that without a cap, at which it draws `demand_watts`."""
        if demand_watts <= cap_watts:
            return 1.0
        power = max(cap_watts - static_watts, 0.0) / (demand_watts - static_watts)
        return max(clock_for_power(power, self.voltage_slope, self.voltage_floor), LOWEST_CLOCK_SHARE)


LOWEST_CLOCK_SHARE = 0.1
"""NVIDIA cards do not clock below 210 to 345 MHz, a tenth to a sixth of their highest clock."""


class PowerLimit(Provenance):
    """Lowest power cap of a GPU that the driver accepts, in watts."""

    name: str
    watts: Annotated[float, Field(gt=0)]


@cache
def power_cap_constants() -> PowerCapConstants:
    """Return the package's constants. Raises MalformedFile."""
    return make_row(TABLE, "", PowerCapConstants, read_data(TABLE))


@cache
def power_limits() -> dict[str, PowerLimit]:
    """Return the lowest power cap by GPU name; `other` (all other GPUs) is a share of the TDP. Raises MalformedFile."""
    return read_rows(LIMITS, PowerLimit)


def lowest_cap(card: HardwareProfile) -> PowerLimit:
    """Return the lowest power cap of a GPU; for a GPU that is not listed, it is assumed."""
    root = card.name.partition("@")[0].partition("+")[0]
    known = power_limits().get(root)
    if known is not None:
        return known
    other = power_limits()["other"]
    return other.model_copy(update={"watts": other.watts * card.tdp_watts})


def with_power_cap(card: HardwareProfile, cap: float | str | None) -> HardwareProfile:
    """Return the GPU under a power cap in watts, or as a share of the TDP such as "70%"; unchanged for None or the TDP.

    Raises InvalidInput for a cap above the TDP or below the lowest cap of the GPU.
    """
    if cap is None:
        return card
    watts = float(cap.rstrip("%")) / 100 * card.tdp_watts if isinstance(cap, str) else cap
    if watts > card.tdp_watts:
        raise InvalidInput(
            f"--power-cap {cap_text(cap)} is above the TDP of {card.name}, {card.tdp_watts:g} W: give at most that"
        )
    least = lowest_cap(card)
    if watts < least.watts:
        raise InvalidInput(
            f"--power-cap {cap_text(cap)} is below the lowest cap of {card.name}, {least.watts:.0f} W "
            f"({least.source}): give {least.watts:.0f} to {card.tdp_watts:g}"
        )
    return limit_power(card, watts)


def cap_text(cap: float | str) -> str:
    """Return a cap as the user writes it: watts, or a share of the TDP."""
    return cap if isinstance(cap, str) else f"{cap:g} W"


def limit_power(card: HardwareProfile, watts: float) -> HardwareProfile:
    """Return the GPU under a power cap; provisioned power of GPU and cooling falls, that of the host does not."""
    if watts >= card.tdp_watts:
        return card
    saved = server_power().facility_watts(card.tdp_watts - watts, 0.0)
    provisioned = max(card.system_watts_per_gpu - saved, watts)
    return card.model_copy(update={"power_cap_watts": watts, "system_watts_per_gpu": provisioned})


def scale_to_power_cap(constants: Found, card: HardwareProfile) -> Found:
    """Return a kernel's constants at the clock that the card sustains under its power cap."""
    cap = card.power_cap_watts
    if cap is None:
        return constants
    table, known = drawn_power_table(), power_cap_constants()
    static_watts = known.static_share(card) * card.tdp_watts
    compute: float = getattr(constants, "compute_fraction", None) or 0.0
    memory: float = getattr(constants, "bandwidth_fraction", None) or 0.0

    def clock_share(flops_per_s: float, bytes_per_s: float) -> float:
        use = GpuUse(duty=1.0, kernel_fraction=1.0, bytes_per_s=bytes_per_s, flops_per_s=flops_per_s)
        return known.clock_share(cap, table.uncapped_watts(card, use), static_watts)

    compute_share = clock_share(compute * card.dense_flops_per_s[card.compute_type_16_bit], 0.0)
    memory_share = clock_share(0.0, memory * card.hbm_bytes_per_s) ** known.memory_exponent
    scaled = {
        name: getattr(constants, name) * (compute_share if name == "compute_fraction" else memory_share)
        for name in ("compute_fraction", "bandwidth_fraction", "routed_fraction", "quantize_fraction")
        if getattr(constants, name, None) is not None
    }
    if min(compute_share if compute else 1.0, memory_share) == 1.0:
        return constants
    return constants.mark_assumed(NOTE.format(cap), **scaled)


def power_cap_error(card: HardwareProfile, phase: Literal["prefill", "decode"]) -> float:
    """Return the factor by which 90 % of rates measured under a cap differ at most from predictions; 1 without a
    cap."""
    if card.power_cap_watts is None:
        return 1.0
    import math

    known = power_cap_constants()
    error = known.prefill_error if phase == "prefill" else known.decode_error
    return math.exp(error * (1 - card.power_cap_watts / card.tdp_watts))


def power_cap_notes(card: HardwareProfile) -> tuple[str, ...]:
    """Return a note on the measurements behind the predictions for a capped GPU; empty without a cap."""
    if card.power_cap_watts is None:
        return ()
    known, share = power_cap_constants(), card.power_cap_watts / card.tdp_watts
    text = (
        f"Power cap of {card.power_cap_watts:.0f} W, {share:.0%} of the TDP of {card.name}: clocks are assumed as in "
        "published sweeps of A100 and RTX 3090, with wider intervals."
    )
    if share < known.lowest_share:
        text += f" No fitted sweep goes below {known.lowest_share:.0%} of the TDP."
    if card.vendor != "nvidia":
        text += " No sweep of this vendor's GPUs was found."
    return (text,)
