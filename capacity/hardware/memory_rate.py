"""What kernels that wait for memory reach on a card that takes its constants from one with other memory.

A byte's way from memory has two parts: the memory's own, and that over the chip to an SM. Memory streams at `STREAMED`
of the datasheet's rate, less what check bits take where they lie in the same memory; what a kernel of the sister takes
beyond that is the chip's, and grows with the bytes that each SM has to move:

    1/rate = 1/(streamed·BW) + (1/(f·BW') - 1/(streamed'·BW'))·SMs'/SMs      ': of the sister, f its fitted fraction

So slower memory is used better: an A100 of 40 GB streams 84 % of its datasheet's rate in FluidX3D's lattice-Boltzmann
benchmark, one of 80 GB 77 % (github.com/ProjectPhysX/FluidX3D, README, read 2026-11), and an L40S 67 % where an RTX
6000 Ada, the same chip without check bits, has 80 %.
"""

from capacity.hardware.coefficients import Coefficients
from capacity.hardware.profile import HardwareProfile

STREAMED = 0.92
"""Plain reads and writes of 4 to 16 bytes a thread: 0.90 to 0.91 of an RTX 4090, 0.86 to 0.89 of an A100 of 40 GB
(github.com/xytpai/nvbench, README, read 2026-11); FluidX3D has 0.80 to 0.90 on cards without check bits in memory."""
CHECK_BITS = 16 / 17
"""One sector of check bits is read with sixteen of data: they take a sixteenth of the memory (`checks_in_memory`)."""
HELD_BACK = 0.945
"""Share of the nominal memory below which the rest holds check bits: 15/16 of it is left, less what drivers take."""
NOTE = "scaled to memory of {:.2f} TB/s (capacity/hardware/memory_rate.py)"


def checks_in_memory(card: HardwareProfile) -> bool:
    """Whether ECC of its memory lies in that memory: PCIe cards with GDDR for data centres hold 1/16 back."""
    nominal = card.memory_datasheet_bytes / 1e9 * 2**30
    return card.form_factor == "PCIe" and card.memory_driver_bytes < HELD_BACK * nominal


def streamed_share(card: HardwareProfile) -> float:
    """Of the datasheet's rate, what streams."""
    return STREAMED * (CHECK_BITS if checks_in_memory(card) else 1.0)


def rate_share(card: HardwareProfile, sister: HardwareProfile, fraction: float) -> float:
    """The fraction of the card's rate that a kernel reaches which reaches `fraction` of its sister's, at most 1."""
    own, its = streamed_share(card), streamed_share(sister)
    if fraction >= its:
        return min(fraction * own / its, 1.0)
    on_chip = (1 / fraction - 1 / its) / sister.hbm_bytes_per_s * sister.sm_count / card.sm_count
    return 1 / (1 / own + on_chip * card.hbm_bytes_per_s)


def with_memory_of(constants: Coefficients, card: HardwareProfile, sister: HardwareProfile) -> Coefficients:
    """A sister's constants with what the card's memory makes of their bandwidth fraction; not between vendors."""
    fraction: float | None = getattr(constants, "bandwidth_fraction", None)
    if fraction is None or card.vendor != "nvidia" or sister.vendor != "nvidia":
        return constants
    share = rate_share(card, sister, fraction)
    if share == fraction:
        return constants
    return constants.mark_assumed(NOTE.format(card.hbm_bytes_per_s / 1e12), bandwidth_fraction=share)
