"""Effect of a power limit on the clock of a card with busy tensor cores, relative to another card of the same chip.

A card of the same chip under a lower limit (A100 PCIe at 300 W, H100 PCIe at 350 W, H100 NVL at 400 W, L4 at 72 W)
runs the same kernels, but cannot sustain the clock while its tensor cores are busy. Dynamic power is utilisation x SMs
x clock x voltage², and the voltage falls with the clock:

    limit = static + u·D·x·(1 - s·(1 - x))²        x: clock over the source card's datasheet clock

u is the utilisation, s the slope of the voltage, and D follows from the source card's limit. Memory-bound kernels keep
their times: HBM has its own clock, and its power is in the static part. Under loads that mix prefill with decode the
mean power determines the clock; here each kernel is treated as if it ran continuously. A cap that the user sets
(`nvidia-smi -pl`) is modelled in `power_cap.py` with other constants, because cards sold with a lower limit run at a
higher voltage.
"""

from pathlib import Path

from capacity.base.data_files import make_row, read_data
from capacity.base.spec import Spec
from capacity.hardware.coefficients import Coefficients, Fraction
from capacity.hardware.kernel_lookup import Found
from capacity.hardware.profile import HardwareProfile


class PowerConstants(Spec):
    """Constants of the power model; `power.toml` has their values, meanings and sources."""

    sustained_clock: Fraction
    static_share: Fraction
    voltage_slope: Fraction
    saturated: Fraction
    sustained_shares: dict[str, Fraction]
    keep_their_rate: tuple[tuple[str, str], ...]
    quiet_shares: dict[str, Fraction]
    halved_keep: Fraction


TABLE = Path(__file__).with_name("power.toml")
POWER = make_row(TABLE, "", PowerConstants, read_data(TABLE))
UNINITIALISED_WEIGHTS_TABLE = "gemm: vllm "
KERNEL_TABLE_SOURCE = "aiconfigurator"
"""Prefix of the source of constants from kernel tables. Measurements by the validation harness already include the
card's own clocks and limits, so they are not reduced."""
HALVED_NOTE = "tensor cores at half rate (capacity/hardware/power.py)"
POWER_NOTE = "scaled to a power limit of {:.0f} W ({}: {:.0f} W; capacity/hardware/power.py)"


def sustained_share(card: HardwareProfile, source_card: HardwareProfile, utilisation: float) -> float:
    """Return the ratio, at most 1, of the sustained clocks of two cards, each relative to its datasheet clock.

    `utilisation` is a kernel's fraction of peak FLOP/s. The result is 1 if the chips (compute capabilities) differ,
    because the energy per FLOP of the chip of `card` has not been measured.
    """
    if not same_chip(card, source_card):
        return 1.0
    here, there = (
        _sustained_clock(card, source_card, utilisation),
        _sustained_clock(source_card, source_card, utilisation),
    )
    return min(1.0, here / there)


def same_chip(card: HardwareProfile, source_card: HardwareProfile) -> bool:
    """Return whether two cards have the same chip, so that they differ only in clocks, memory and limits."""
    return (
        card.compute_capability is not None
        and card.compute_capability == source_card.compute_capability
        and "bf16" in card.dense_flops_per_s
        and "bf16" in source_card.dense_flops_per_s
    )


def _sustained_clock(card: HardwareProfile, source_card: HardwareProfile, utilisation: float) -> float:
    """Return the sustained clock of `card` relative to its datasheet clock, at most 1."""
    busy = min(utilisation / POWER.saturated, 1.0)
    per_sm = (
        source_card.tdp_watts
        * (1 - POWER.static_share)
        / (source_card.sm_count * _dynamic_power(POWER.sustained_clock, POWER.voltage_slope))
    )
    static = source_card.tdp_watts * POWER.static_share * card.sm_count / source_card.sm_count
    left = max(card.tdp_watts - static, 0.1 * card.tdp_watts)
    # FLOP/s per SM, which are proportional to the clock
    own, its = (each.dense_flops_per_s["bf16"] / each.sm_count for each in (card, source_card))
    power = left / (busy * per_sm * card.sm_count)
    return min(1.0, clock_for_power(power, POWER.voltage_slope) / (own / its))


def _dynamic_power(clock: float, slope: float, floor: float = 0.0) -> float:
    return clock * max(floor, 1 - slope * (1 - clock)) ** 2


def clock_for_power(power: float, slope: float, floor: float = 0.0) -> float:
    """Return the clock (at most 2) at which a chip draws the dynamic power `power`, both relative to a reference. The
    voltage falls with the clock by `slope`, but not below `floor`."""
    low, high = 0.0, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _dynamic_power(middle, slope, floor) < power else (low, middle)
    return low


def scale_to_halved_tensor_cores(
    constants: Found, card: HardwareProfile, source_card: HardwareProfile
) -> Found:
    """Return constants for a card whose tensor cores accumulate in FP32 at half rate, if those of `source_card` do not.

    Other parts of the chip are not halved: an SM delivers as much data as on `source_card`, so the compute fraction
    rises, up to the limit measured for such tensor cores.
    """
    fraction: float | None = getattr(constants, "compute_fraction", None)
    if fraction is None or not _has_halved_tensor_cores(card) or _has_halved_tensor_cores(source_card):
        return constants
    peaks = source_card.dense_flops_per_s["bf16"] / card.dense_flops_per_s["bf16"]
    share = max(min(fraction * peaks * card.sm_count / source_card.sm_count, POWER.halved_keep), fraction)
    return constants.mark_assumed(HALVED_NOTE, compute_fraction=share)


def _has_halved_tensor_cores(card: HardwareProfile) -> bool:
    """Return whether tensor cores have only twice the FP32 rate (GeForce); other cards have four times or more."""
    peaks = card.dense_flops_per_s
    return "bf16" in peaks and "fp32" in peaks and peaks["bf16"] < 3 * peaks["fp32"]


def scale_to_power_limit(
    constants: Coefficients, card: HardwareProfile, source_card: HardwareProfile
) -> Coefficients:
    """Return the constants with the compute fraction reduced like the clock under the card's power limit."""
    fraction: float | None = getattr(constants, "compute_fraction", None)
    share = 1.0 if fraction is None else sustained_share(card, source_card, fraction)
    if fraction is None or share == 1.0:
        return constants
    note = POWER_NOTE.format(card.tdp_watts, source_card.name, source_card.tdp_watts)
    return constants.mark_assumed(note, compute_fraction=fraction * share)


def sustained_constants(
    constants: Found, card: HardwareProfile, kernel: tuple[str, str] | None = None
) -> Found:
    """Return constants with the compute fraction that tensor cores sustain in whole engine steps.

    Only constants from the public kernel tables are reduced, because they were measured in short runs. A `kernel`
    (operator, key) that `power.toml` lists as keeping its rate is unchanged.
    """
    fraction: float | None = getattr(constants, "compute_fraction", None)
    share = POWER.sustained_shares.get(card.architecture, 1.0)
    if UNINITIALISED_WEIGHTS_TABLE in constants.fit.source:
        share *= POWER.quiet_shares.get(card.architecture, 1.0)
    short = constants.fit.source.startswith(KERNEL_TABLE_SOURCE)
    if fraction is None or share == 1.0 or not short or kernel in POWER.keep_their_rate:
        return constants
    return constants.model_copy(update={"compute_fraction": fraction * share})
