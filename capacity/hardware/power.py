"""What a power limit does to the clock: how much slower a card's busy tensor cores run than those of its sister card.

A card of the same chip under a lower limit (A100 PCIe at 300 W, H100 PCIe at 350 W, H100 NVL at 400 W, L4 at 72 W) has
the sister's kernels, but cannot hold the sister's clock while its tensor cores are busy. Dynamic power is
utilisation x SMs x clock x voltage², and voltage falls with the clock:

    limit = static + u·D·x·(1 - s·(1 - x))²        x: clock over the sister's datasheet clock

The sister's own limit fixes D. Memory-bound kernels keep their times: HBM has a clock of its own, and its power is in
the static part. Under loads that mix prefill with decode the mean power counts; here each kernel is taken as sustained.
"""

from pathlib import Path

from capacity.base.data_files import make_row, read_data
from capacity.base.spec import Spec
from capacity.hardware.coefficients import Coefficients, Fraction
from capacity.hardware.kernel_lookup import Found
from capacity.hardware.profile import HardwareProfile


class PowerConstants(Spec):
    """The numbers of `power.toml`, which says what each is and where it is from."""

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
QUIET_TABLE = "gemm: vllm "
SHORT_RUNS = "aiconfigurator"
"""What the source of constants from such tables begins with. What the validation harness measured on a card is that
card's own, under its own limits, and its clocks are in it: nothing is taken off."""
HALVED_NOTE = "of tensor cores at half rate (capacity/hardware/power.py)"
NOTE = "scaled by the power limit: {:.0f} W where {} has {:.0f} (capacity/hardware/power.py)"


def sustained_share(card: HardwareProfile, sister: HardwareProfile, utilisation: float) -> float:
    """Clock of `card` over that of `sister`, each of its own datasheet clock, at a kernel's share of peak FLOP/s.

    At most 1, and 1 for another chip (compute capability), whose energy per FLOP nobody measured.
    """
    if not same_chip(card, sister):
        return 1.0
    here, there = _sustained_clock(card, sister, utilisation), _sustained_clock(sister, sister, utilisation)
    return min(1.0, here / there)


def same_chip(card: HardwareProfile, sister: HardwareProfile) -> bool:
    """Whether two cards differ in clocks, memory and limits alone."""
    return (
        card.compute_capability is not None
        and card.compute_capability == sister.compute_capability
        and "bf16" in card.dense_flops_per_s
        and "bf16" in sister.dense_flops_per_s
    )


def _sustained_clock(card: HardwareProfile, sister: HardwareProfile, utilisation: float) -> float:
    """Of the card's own datasheet clock, at most 1."""
    busy = min(utilisation / POWER.saturated, 1.0)
    per_sm = sister.tdp_watts * (1 - POWER.static_share) / (sister.sm_count * _dynamic(POWER.sustained_clock))
    static = sister.tdp_watts * POWER.static_share * card.sm_count / sister.sm_count
    left = max(card.tdp_watts - static, 0.1 * card.tdp_watts)
    own, its = (each.dense_flops_per_s["bf16"] / each.sm_count for each in (card, sister))
    return min(
        1.0, _clock_of(left / (busy * per_sm * card.sm_count)) / (own / its)
    )  # clocks by FLOP/s of an SM


def _dynamic(clock: float) -> float:
    return clock * (1 - POWER.voltage_slope * (1 - clock)) ** 2


def _clock_of(power: float) -> float:
    """The clock whose dynamic power, of that at the sister's datasheet clock, is `power`; at most 2."""
    low, high = 0.0, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _dynamic(middle) < power else (low, middle)
    return low


def with_halved_tensor_cores(constants: Found, card: HardwareProfile, sister: HardwareProfile) -> Found:
    """A sister's constants on a card whose tensor cores accumulate in 32 bit at half their rate, where hers do not.

    The rest of its chip is not halved: its SMs bring on as much as hers, up to what such tensor cores keep.
    """
    fraction: float | None = getattr(constants, "compute_fraction", None)
    if fraction is None or not _is_halved(card) or _is_halved(sister):
        return constants
    peaks = sister.dense_flops_per_s["bf16"] / card.dense_flops_per_s["bf16"]
    share = max(min(fraction * peaks * card.sm_count / sister.sm_count, POWER.halved_keep), fraction)
    return constants.mark_assumed(HALVED_NOTE, compute_fraction=share)


def _is_halved(card: HardwareProfile) -> bool:
    """GeForce cards: twice the rate of FP32 units, where others' tensor cores have four times and more."""
    peaks = card.dense_flops_per_s
    return "bf16" in peaks and "fp32" in peaks and peaks["bf16"] < 3 * peaks["fp32"]


def under_limit(constants: Coefficients, card: HardwareProfile, sister: HardwareProfile) -> Coefficients:
    """A sister's constants with what the card's power limit leaves of their compute fraction."""
    fraction: float | None = getattr(constants, "compute_fraction", None)
    share = 1.0 if fraction is None else sustained_share(card, sister, fraction)
    if fraction is None or share == 1.0:
        return constants
    note = NOTE.format(card.tdp_watts, sister.name, sister.tdp_watts)
    return constants.mark_assumed(note, compute_fraction=fraction * share)


def sustained_constants(
    constants: Found, card: HardwareProfile, kernel: tuple[str, str] | None = None
) -> Found:
    """A table's constants as steps run them, which keep tensor cores busy for longer than the table's few runs did.

    Constants of another source stay as they are, and those of a `kernel` (operator, key) of `POWER.keep_their_rate`.
    """
    fraction: float | None = getattr(constants, "compute_fraction", None)
    share = POWER.sustained_shares.get(card.architecture, 1.0)
    if QUIET_TABLE in constants.fit.source:
        share *= POWER.quiet_shares.get(card.architecture, 1.0)
    short = constants.fit.source.startswith(SHORT_RUNS)
    if fraction is None or share == 1.0 or not short or kernel in POWER.keep_their_rate:
        return constants
    return constants.model_copy(update={"compute_fraction": fraction * share})
