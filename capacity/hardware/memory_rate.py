"""Bandwidth fraction of memory-bound kernels on a card whose constants come from a card with different memory.

The time to read a byte has two parts: the memory itself, and the path across the chip to an SM. Memory streams at
`STREAMED_SHARE` of the datasheet's rate, and less if ECC bits are stored in the same memory. The rest of a kernel's
time on the source card belongs to the chip, and grows with the bytes that each SM moves:

    1/rate = 1/(streamed·BW) + (1/(f·BW') - 1/(streamed'·BW'))·SMs'/SMs    ': source card, f: its fitted fraction

So kernels reach a larger fraction of slower memory: an A100 of 40 GB streams 84 % of its datasheet's rate in
FluidX3D's lattice-Boltzmann benchmark, an A100 of 80 GB 77 % (github.com/ProjectPhysX/FluidX3D, README, read 2026-11).
An L40S streams 67 %, an RTX 6000 Ada, the same chip without ECC, 80 %.
"""

from capacity.hardware.coefficients import Coefficients
from capacity.hardware.profile import HardwareProfile

STREAMED_SHARE = 0.92
"""Fraction of the datasheet's rate. Reads and writes of 4 to 16 bytes per thread reach 0.90 to 0.91 on an RTX 4090,
0.86 to 0.89 on an A100 of 40 GB (github.com/xytpai/nvbench, README, read 2026-11); FluidX3D has 0.80 to 0.90 on cards
without ECC bits in memory."""
ECC_RATE_SHARE = 16 / 17
"""One sector of ECC bits is read with sixteen sectors of data, so 1/16 of the memory is ECC (`has_inline_ecc`)."""
ECC_MEMORY_SHARE = 0.945
"""If the driver sees a smaller share of the nominal memory, ECC bits use the difference: they leave 15/16, minus driver
memory."""
MEMORY_NOTE = "scaled to a memory bandwidth of {:.2f} TB/s (capacity/hardware/memory_rate.py)"


def has_inline_ecc(card: HardwareProfile) -> bool:
    """Return whether ECC bits take 1/16 of the main memory (PCIe data centre cards with GDDR)."""
    nominal = card.memory_datasheet_bytes / 1e9 * 2**30
    return card.form_factor == "PCIe" and card.memory_driver_bytes < ECC_MEMORY_SHARE * nominal


def streamed_share(card: HardwareProfile) -> float:
    """Return the fraction of the datasheet's memory rate that a streaming kernel reaches."""
    return STREAMED_SHARE * (ECC_RATE_SHARE if has_inline_ecc(card) else 1.0)


def scaled_bandwidth_fraction(card: HardwareProfile, source_card: HardwareProfile, fraction: float) -> float:
    """Return the bandwidth fraction on `card`, at most 1, of a kernel that reaches `fraction` on `source_card`."""
    own, its = streamed_share(card), streamed_share(source_card)
    if fraction >= its:
        return min(fraction * own / its, 1.0)
    on_chip = (1 / fraction - 1 / its) / source_card.hbm_bytes_per_s * source_card.sm_count / card.sm_count
    return 1 / (1 / own + on_chip * card.hbm_bytes_per_s)


def scale_to_memory(
    constants: Coefficients, card: HardwareProfile, source_card: HardwareProfile
) -> Coefficients:
    """Return the constants with the bandwidth fraction converted from `source_card` to `card` (NVIDIA cards only)."""
    fraction: float | None = getattr(constants, "bandwidth_fraction", None)
    if fraction is None or card.vendor != "nvidia" or source_card.vendor != "nvidia":
        return constants
    share = scaled_bandwidth_fraction(card, source_card, fraction)
    if share == fraction:
        return constants
    return constants.mark_assumed(MEMORY_NOTE.format(card.hbm_bytes_per_s / 1e12), bandwidth_fraction=share)
