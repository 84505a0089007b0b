"""What a power limit does to the clock: how much slower a card's busy tensor cores run than those of its sister card.

A card of the same chip under a lower limit (A100 PCIe at 300 W, H100 PCIe at 350 W, H100 NVL at 400 W, L4 at 72 W) has
the sister's kernels, but cannot hold the sister's clock while its tensor cores are busy. Dynamic power is
utilisation x SMs x clock x voltage², and voltage falls with the clock:

    limit = static + u·D·x·(1 - s·(1 - x))²        x: clock over the sister's datasheet clock

The sister's own limit fixes D. Memory-bound kernels keep their times: HBM has a clock of its own, and its power is in
the static part. Under loads that mix prefill with decode the mean power counts; here each kernel is taken as sustained.
"""

from capacity.hardware.coefficients import Coefficients, Found
from capacity.hardware.profile import HardwareProfile

SUSTAINED_CLOCK = 0.92
"""Of the datasheet's clock, at the datasheet's power: A100 SXM holds 1,305 of 1,410 MHz through HPL (Glenn Lockwood,
garden/peak-FLOPS, read 2026-11); H100 SXM loses as much in products of 8,192 rows and more."""
STATIC_SHARE = 0.15
"""Of the sister's power limit: leakage, memory, board; 55 to 100 W of idle A100 and H100 cards. Assumed."""
VOLTAGE_SLOPE = 0.25
"""Relative fall of the voltage with the clock. Chosen on half of the A100 PCIe rows of TensorRT-LLM 0.14 (Llama-3.1-8B)
and on MLPerf Inference v4.1 GPT-J offline (H100 NVL and PCIe against SXM); judged on Mistral-7B and on IOG's
servers (H100 PCIe)."""
SATURATED = 0.8
"""Share of peak FLOP/s of products that keep tensor cores busy all the time."""
SUSTAINED_SHARES = {"hopper": 0.92, "blackwell": 0.85, "blackwell-ultra": 0.85}
"""Of the rate that fits to kernel tables give kernels bound by compute, what steps keep, by architecture.

Tables are of nine runs in a row at locked clocks, most of them over before the power limit is reached: of products that
last a millisecond and more, the fits to all of them take 2 to 9 % too little on Hopper, 8 to 13 % on Blackwell, nothing
on Ampere (aiconfigurator-core 0.12.0). B200: 1,965 MHz fall to 1,580 after 5 ms of work, FP16 attention from 1,450
to 1,237 TFLOP/s (flashinfer PR 2899, 2026-03): 0.85. Hopper: 0.92, of 0.85, 0.92 and 1 chosen on half of the groups
of served rows, every other by name; 1,980 MHz fall to 1,575 under work and messages at once (DeepGEMM issue 120,
2025-06)."""
KEEP_THEIR_RATE = {("gemm", "nvfp4")}
"""Kernels (operator, key) that keep the table's rate in long work: tensor cores wait for more of their time.

In a loop on a B200 in which bf16 falls to 0.63 of its peak (0.85 of what fits to tables give it), NVFP4 products keep
0.60 to 0.61 of theirs, at 6,144 and 8,192 rows, where the fit has 0.58 (pytorch/ao pull request 2427, 2025-06)."""
QUIET_SHARES = {"ampere": 0.87}
"""Of the rate that fits to tables of weights nobody set give, what weights of a model keep, by architecture.

The collector of vLLM's 16-bit products takes random activations and the weights that memory happens to hold
(aiconfigurator, collector/vllm/collect_gemm.py: "TODO, to evaluate random weights impact"; TensorRT-LLM's and SGLang's
draw them from a normal distribution, and their A100 tables give 250 to 265 and 240 TFLOP/s where vLLM's gives 290 to
297). Bits that do not flip take no power, and the clock need not fall: an A100 makes 295 TFLOP/s of zeros and 257 of
normal numbers, 8192 x 8192 x 8192 (Horace He, thonking.ai, "Strangely, Matrix Multiplications on GPUs Run Faster When
Given Predictable Data", 2024): 0.87. Of Hopper and Blackwell it is in what served rows chose above."""
QUIET_TABLE = "gemm: vllm "
SHORT_RUNS = "aiconfigurator"
"""What the source of constants from such tables begins with. What the validation harness measured on a card is that
card's own, under its own limits, and its clocks are in it: nothing is taken off."""
HALVED_KEEP = 0.95
"""Of the datasheet's rate, what tensor cores at half rate keep: 16-bit products make 160 to 170 TFLOP/s on an RTX 4090
of 165, 76 on an RTX 3090 of 71 (zzc0721/torch-performance-test-data) and 254 on an RTX 5090 of 210
(xzwgit/gpu-flops-bench, both read 2026-11), where an L40S makes 0.54 to 0.60 of 362."""
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
    busy = min(utilisation / SATURATED, 1.0)
    per_sm = sister.tdp_watts * (1 - STATIC_SHARE) / (sister.sm_count * _dynamic(SUSTAINED_CLOCK))
    static = sister.tdp_watts * STATIC_SHARE * card.sm_count / sister.sm_count
    left = max(card.tdp_watts - static, 0.1 * card.tdp_watts)
    return min(1.0, _clock_of(left / (busy * per_sm * card.sm_count)) / _clock_ratio(card, sister))


def _clock_ratio(card: HardwareProfile, sister: HardwareProfile) -> float:
    """Datasheet clocks of two cards of a chip, by their FLOP/s per SM."""
    return (card.dense_flops_per_s["bf16"] / card.sm_count) / (
        sister.dense_flops_per_s["bf16"] / sister.sm_count
    )


def _dynamic(clock: float) -> float:
    return clock * (1 - VOLTAGE_SLOPE * (1 - clock)) ** 2


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
    share = max(min(fraction * peaks * card.sm_count / sister.sm_count, HALVED_KEEP), fraction)
    fit = constants.fit.model_copy(
        update={"basis": "assumed", "source": f"{constants.fit.source}; {HALVED_NOTE}"}
    )
    return constants.model_copy(update={"compute_fraction": share, "fit": fit})


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
    fit = constants.fit.model_copy(update={"basis": "assumed", "source": f"{constants.fit.source}; {note}"})
    return constants.model_copy(update={"compute_fraction": fraction * share, "fit": fit})


def sustained(constants: Found, card: HardwareProfile, kernel: tuple[str, str] | None = None) -> Found:
    """A table's constants as steps run them, which keep tensor cores busy for longer than the table's few runs did.

    Constants of another source stay as they are, and those of a `kernel` (operator, key) of `KEEP_THEIR_RATE`.
    """
    fraction: float | None = getattr(constants, "compute_fraction", None)
    share = SUSTAINED_SHARES.get(card.architecture, 1.0)
    if QUIET_TABLE in constants.fit.source:
        share *= QUIET_SHARES.get(card.architecture, 1.0)
    short = constants.fit.source.startswith(SHORT_RUNS)
    if fraction is None or share == 1.0 or not short or kernel in KEEP_THEIR_RATE:
        return constants
    return constants.model_copy(update={"compute_fraction": fraction * share})
