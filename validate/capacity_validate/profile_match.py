"""Match a card to a GPU profile and list their differences; build a provisional profile for an unknown card, or measure
one of this machine's CPU.

Compute roofs of an unknown card are SMs x highest clock x FLOP per clock and SM; the last factor follows from the
compute capability. The efficiency of engine kernels on such a card is not measured, so the step model's universal
constants apply until the profile is calibrated. The profile of the CPU is measured at the time of the run; it describes
no GPU.
"""

import re
import time
import timeit
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from capacity.base.data_files import read_rows
from capacity.base.errors import InvalidInput
from capacity.hardware import HardwareProfile, Link, Provenance, load_profile, profile_names
from capacity_validate.devices import DeviceFacts

PROVISIONAL_MARK = "Provisional: "
COPY_REACH = 0.92  # large copies reach 85-95 % of memory bandwidth on all generations
# plausible copy rate / (clock x bus); outside, the driver's clock is wrong (HBM3e, unified memory)
COPY_PLAUSIBLE = (0.70, 1.0)
NVLINK_BYTES_PER_S = {8: 25e9, 9: 25e9, 10: 50e9}  # per link and direction, by compute capability
PCIE_LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
PCIE_REACH = 0.8
LINK_FIELDS = tuple(
    f"{group}.{name}"
    for group in ("scale_up", "pcie", "inter_node")
    for name in ("bytes_per_s", "latency_s", "domain_gpus")
)
SYSTEM_OVER_TDP = 2.47  # all-in watts per GPU over TDP, as in the bundled profiles


class _Rates(NamedTuple):
    """FLOP per clock and SM by data type for one compute capability, from architectures.toml."""

    architecture: str
    rates: dict[str, float]
    halved: bool = False


_RATES = read_rows(Path(__file__).with_name("architectures.toml"), _Rates, named=False)
_FULL_ON_GEFORCE = ("fp32", "int8", "fp4")
# reduced tensor cores for export: 148 TFLOP/s in bf16 with 78 SMs. Source: vendors' datasheets
_CUT_DOWN = {"h20": 0.25}


def is_provisional(profile: HardwareProfile) -> bool:
    """Return whether a profile was built from the driver's information only."""
    return (profile.notes or "").startswith(PROVISIONAL_MARK)


def provisional_profile(facts: DeviceFacts, *, copied_bytes_per_s: float | None = None) -> HardwareProfile:
    """Build a profile from the card's SMs, clocks, bus, memory and compute capability.

    `copied_bytes_per_s` is the rate of a large copy timed on the card, read plus write. Raises InvalidInput if the
    driver reports too little.
    """
    table = _RATES.get(facts.compute_capability or "")
    if table is None or facts.sm_clock_max_hz is None:
        raise InvalidInput(_no_profile_message(facts))
    hbm, hbm_source = _memory_rate(facts, copied_bytes_per_s)
    flops = _dense_flops(facts, table)
    driver = _provenance(f"the driver, on {facts.name}", "measured")
    worked_out = _provenance(
        f"{facts.compute_units} SMs x {facts.sm_clock_max_hz / 1e9:.3f} GHz x FLOP per clock and SM of compute "
        f"capability {facts.compute_capability}",
        "assumed",
    )
    watts = facts.power_limit_watts or 300.0
    values = profile_values(
        facts,
        hbm_bytes_per_s=hbm,
        tdp_watts=watts,
        system_watts_per_gpu=SYSTEM_OVER_TDP * watts,
        gpus_per_node=max(1, facts.devices_in_node),
    )
    assumed = _provenance("assumed to be the same as for other cards", "assumed")
    provenance = dict.fromkeys((*values, *(f"dense_flops_per_s.{name}" for name in flops)), driver)
    provenance |= dict.fromkeys((f"dense_flops_per_s.{name}" for name in flops), worked_out)
    provenance |= {"hbm_bytes_per_s": hbm_source, "system_watts_per_gpu": assumed}
    if facts.power_limit_watts is None:
        provenance["tdp_watts"] = assumed
    provenance |= dict.fromkeys(LINK_FIELDS, assumed)
    return HardwareProfile(
        name=_provisional_name(facts),
        vendor="nvidia",
        architecture=table.architecture,
        form_factor="unknown",
        compute_capability=facts.compute_capability,
        notes=f"{PROVISIONAL_MARK}from driver information about {facts.name}; not checked against a datasheet.",
        dense_flops_per_s=flops,
        provenance=provenance,
        **values,
        **_links(facts),
    )


def profile_values(facts: DeviceFacts, **others: Any) -> dict[str, Any]:
    """Return the profile fields that follow from a device's facts (memory, L2, SMs), and `others`."""
    names = ("memory_datasheet_bytes", "memory_driver_bytes", "memory_engine_bytes")
    memory = dict.fromkeys(names, facts.memory_total_bytes)
    return {**memory, "l2_bytes": facts.cache_bytes, "sm_count": facts.compute_units, **others}


def provisional_remark(profile: HardwareProfile) -> str:
    best = profile.compute_type_16_bit
    return (
        f"no bundled profile matches this card. The provisional profile {profile.name} uses driver information "
        f"({profile.sm_count} SMs, {profile.dense_flops_per_s[best] / 1e12:.0f} TFLOP/s in {best}, "
        f"{profile.hbm_bytes_per_s / 1e9:.0f} GB/s); only values calibrated here are measured"
    )


def _provenance(text: str, basis: Any) -> Provenance:
    return Provenance(source=text, date=date.today().isoformat(), basis=basis)


def _no_profile_message(facts: DeviceFacts) -> str:
    clock = "unknown" if facts.sm_clock_max_hz is None else "known"
    return (
        f"no hardware profile for {facts.name!r} ({facts.memory_total_bytes / 2**30:.0f} GiB), and the driver "
        f"reports too little to create one (compute capability {facts.compute_capability or 'unknown'}, highest "
        f"clock {clock}); name the nearest GPU with --gpu (`capacity gpus` lists them), or write a profile and "
        "give its folder with --profiles"
    )


def _dense_flops(facts: DeviceFacts, table: _Rates) -> dict[str, float]:
    words = set(re.split(r"[^a-z0-9]+", facts.name.lower()))
    game = bool(words & {"geforce", "titan"})
    cut = next((share for word, share in _CUT_DOWN.items() if word in words), 1.0)
    per_clock = facts.compute_units * (facts.sm_clock_max_hz or 0.0)
    return {
        name: per_clock
        * rate
        * (0.5 if game and table.halved and name not in _FULL_ON_GEFORCE else 1.0)
        * (1.0 if name == "fp32" else cut)
        for name, rate in table.rates.items()
    }


def _memory_rate(facts: DeviceFacts, copied_bytes_per_s: float | None) -> tuple[float, Provenance]:
    """Return the bandwidth and its source: 2 x memory clock x bus width, or the timed copy if the two disagree."""
    stated = None
    if facts.memory_clock_max_hz and facts.memory_bus_bits:
        stated = 2.0 * facts.memory_clock_max_hz * facts.memory_bus_bits / 8
    if stated is not None:
        reach = COPY_PLAUSIBLE[1] if copied_bytes_per_s is None else copied_bytes_per_s / stated
        if COPY_PLAUSIBLE[0] <= reach <= COPY_PLAUSIBLE[1]:
            text = (
                f"2 x {(facts.memory_clock_max_hz or 0) / 1e6:.0f} MHz x {facts.memory_bus_bits} bits, from the "
                "driver"
            )
            return stated, _provenance(text, "assumed")
    if copied_bytes_per_s is None:
        raise InvalidInput(_no_profile_message(facts))
    return copied_bytes_per_s / COPY_REACH, _provenance(
        f"a copy timed on {facts.name}, assumed to reach {COPY_REACH:.0%} of the bandwidth", "measured"
    )


def _links(facts: DeviceFacts) -> dict[str, Any]:
    generation = int((facts.compute_capability or "8").partition(".")[0])
    lane = PCIE_LANE_BYTES_PER_S.get(facts.pcie_generation or 4, PCIE_LANE_BYTES_PER_S[4])
    gpus = max(1, facts.devices_in_node)
    pcie = Link(
        kind="pcie",
        bytes_per_s=PCIE_REACH * lane * (facts.pcie_lanes or 16),
        latency_s=10e-6,
        domain_gpus=gpus,
    )
    scale_up = pcie
    if facts.nvlink_links:
        rate = facts.nvlink_links * NVLINK_BYTES_PER_S.get(generation, 25e9)
        scale_up = Link(kind="nvlink", bytes_per_s=rate, latency_s=5e-6, domain_gpus=gpus)
    network = Link(kind="network", bytes_per_s=1.5625e9, latency_s=50e-6, domain_gpus=1024)
    return {"scale_up": scale_up, "pcie": pcie, "inter_node": network}


def _provisional_name(facts: DeviceFacts) -> str:
    """Return a name in the style of bundled profiles: the card's name without the vendor, and its memory."""
    words = re.findall(r"[a-z0-9.]+", facts.name.lower())
    left_out = {"nvidia", "geforce", "tesla", "generation", "graphics", "hbm3", "hbm3e", "hbm2e"}
    kept = [word for word in words if word not in left_out and not re.fullmatch(r"\d+gb", word)]
    return f"{'-'.join(kept)}-{round(facts.memory_total_bytes / 1e9)}gb"


POWER_CAP_FRACTION = 0.97
MEMORY_MATCH_FRACTION = 0.12
_NOT_FAMILY = ("sxm", "pcie", "nvl", "rtx", "nvl72")
# words that denote a different card of the same family
OTHER_CARD = {"3e", "d", "ti", "super", "laptop", "mobile", "mig"}


def match_profile(
    facts: DeviceFacts,
    *,
    gpu: str | None = None,
    directories: tuple[str, ...] = (),
    copied_bytes_per_s: Callable[[], float] | None = None,
) -> tuple[HardwareProfile, tuple[str, ...]]:
    """Return the profile of a GPU, and remarks on differences between the two. `gpu` names the profile explicitly.

    A card without a matching profile gets a provisional one, for which `copied_bytes_per_s` times a copy. Raises
    InvalidInput if the driver reports too little for that, or if `gpu` has another compute capability than the card.
    """
    if gpu is not None:
        profile = load_profile(gpu, directories)
        own, card = profile.compute_capability, facts.compute_capability
        if own is not None and card is not None and own != card:  # a calibration would mix the two kinds
            raise InvalidInput(
                f"--gpu {profile.name} has compute capability {own}, but this {facts.name} has {card}: leave "
                "--gpu out to use a provisional profile for this card"
            )
        return profile, mismatches(facts, profile)
    candidates = [load_profile(name, directories) for name in profile_names(directories) if "@" not in name]
    scored = [
        (_name_score(facts.name, profile), profile)
        for profile in candidates
        if abs(facts.memory_total_bytes / profile.memory_driver_bytes - 1) <= MEMORY_MATCH_FRACTION
    ]
    best = max(scored, key=lambda pair: pair[0], default=(0.0, None))
    if best[1] is None or best[0] <= 0:
        copied = None if copied_bytes_per_s is None else copied_bytes_per_s()
        made = provisional_profile(facts, copied_bytes_per_s=copied)
        return made, (provisional_remark(made),)
    return best[1], mismatches(facts, best[1])


def find_profile_name(device: str, directories: tuple[str, ...] = ()) -> str | None:
    """Return the profile whose name fits a GPU's name best; None if none fits, or if several fit equally well."""
    words = _name_words(device)
    scores: dict[str, float] = {}
    for name in profile_names(directories):
        score = 0.0 if "@" in name else _name_score(device, load_profile(name, directories))
        if score > 0:
            scores[name] = score + 0.1 * len(words & _name_words(name))  # the memory size too
    best = [name for name, score in scores.items() if score == max(scores.values())]
    return best[0] if len(best) == 1 else None


def _name_words(text: str) -> set[str]:
    cleaned = "".join(c if c.isalnum() else " " for c in text.lower())
    return set(cleaned.replace("sxm4", "sxm").replace("sxm5", "sxm").replace("sxm6", "sxm").split())


def is_card_of_profile(card_name: str, profile: HardwareProfile) -> bool:
    """Return whether a card's name and a profile have the same GPU family (`NVIDIA H100 80GB HBM3` and h100-pcie)."""
    card, own = _name_words(card_name), _name_words(profile.name)
    return _family_words(own) <= card and not (OTHER_CARD & card) - own


def _family_words(words: set[str]) -> set[str]:
    return {word for word in words if not word.endswith("gb") and word not in _NOT_FAMILY}


def _name_score(device: str, profile: HardwareProfile) -> float:
    if not is_card_of_profile(device, profile):
        return 0.0
    card, own = _name_words(device), _name_words(profile.name)
    forms = {"sxm", "pcie", "nvl"}
    card_form, own_form = card & forms, own & forms
    form = 1.0 if card_form == own_form else 0.5 if not card_form and "sxm" in own_form else 0.0
    return 1.0 + len(_family_words(own)) + form


def mismatches(facts: DeviceFacts, profile: HardwareProfile) -> tuple[str, ...]:
    """Return remarks on differences between a card and its profile: form factor, power cap, number of SMs, memory."""
    remarks = []
    card, own = _name_words(facts.name), _name_words(profile.name)
    for form in ("pcie", "nvl", "sxm"):
        if form in card and form not in own:
            remarks.append(f"{facts.name} is a {form.upper()} card, profile {profile.name} is not")
    if facts.compute_units != profile.sm_count:
        remarks.append(f"{facts.compute_units} SMs, but profile {profile.name} has {profile.sm_count}")
    if facts.power_limit_watts and facts.power_limit_watts < POWER_CAP_FRACTION * profile.tdp_watts:
        remarks.append(
            f"power capped at {facts.power_limit_watts:.0f} W, but {profile.name} has {profile.tdp_watts:.0f} W: "
            "large matrix multiplications will be slower"
        )
    if abs(facts.memory_total_bytes / profile.memory_driver_bytes - 1) > MEMORY_MATCH_FRACTION:
        remarks.append(
            f"{facts.memory_total_bytes / 2**30:.1f} GiB of memory, but profile {profile.name} has "
            f"{profile.memory_driver_bytes / 2**30:.1f} GiB"
        )
    return tuple(remarks)


_MATRICES = ((512, 1536, 512), (256, 1024, 1024), (512, 3072, 512))  # m, n, k
_WEIGHTS = ((1536, 512), (3072, 512), (2048, 2048))
_COPY_VALUES = (2**20, 2**22)
_REPETITIONS = 7
_HEADROOM = 1.1  # the best of a few calls on a shared machine is below the roof


def measure_cpu_profile(torch: Any, facts: DeviceFacts) -> HardwareProfile:
    """Measure compute roofs by dtype with matrix multiplications, and bandwidth with copies and matrix-vector
    products.

    Each roof is the best of a few calls, plus 10 %. Bandwidth is that of the memory level that holds a small model's
    working set: the last-level cache if it is large. Link values are assumptions for two processes of this machine.
    """
    rates = {
        name: _best_rate(torch, _product_calls(torch, getattr(torch, kind))) for name, kind in _DTYPES.items()
    }
    bandwidth = _best_rate(torch, _bandwidth_calls(torch))
    measured = _provenance(
        f"best of {_REPETITIONS} calls, {facts.compute_units} thread(s), on {facts.name}, plus 10 %",
        "measured",
    )
    read = _provenance(f"operating system, on {facts.name}", "measured")
    assumed = _provenance("not used on a CPU; an arbitrary value", "assumed")
    link = Link(kind="pcie", bytes_per_s=bandwidth / 4, latency_s=20e-6, domain_gpus=1)
    watts = {"tdp_watts": 1.0, "system_watts_per_gpu": 1.0}
    values = profile_values(facts, hbm_bytes_per_s=bandwidth, gpus_per_node=1, **watts)
    provenance = dict.fromkeys(
        ("hbm_bytes_per_s", *(f"dense_flops_per_s.{name}" for name in rates)), measured
    )
    provenance |= dict.fromkeys(
        (n for n in values if n.startswith("memory") or n in ("l2_bytes", "sm_count")), read
    )
    provenance |= dict.fromkeys(("tdp_watts", "system_watts_per_gpu", "gpus_per_node", *LINK_FIELDS), assumed)
    return HardwareProfile(
        name="cpu",
        vendor="other",
        platform="cpu",
        architecture="cpu",
        form_factor="CPU",
        notes=f"Not a GPU. {facts.name}, {facts.compute_units} thread(s), measured by the validation harness.",
        dense_flops_per_s=rates,
        scale_up=link,
        pcie=link,
        inter_node=link,
        provenance=provenance,
        **values,
    )


_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def _best_rate(torch: Any, work: Iterable[tuple[float, Callable[[], object]]]) -> float:
    """Return the highest rate of all calls, plus headroom; `work` has (FLOP or bytes, call) pairs."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best = 0.0
    for amount, call in work:
        call()
        best = max(best, amount / min(timeit.repeat(call, timer=clock, number=1, repeat=_REPETITIONS)))
    return _HEADROOM * best


def _product_calls(torch: Any, dtype: Any) -> Iterator[tuple[float, Callable[[], object]]]:
    for m, n, k in _MATRICES if dtype is torch.float32 else _MATRICES[:1]:
        a, w = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
        yield 2.0 * m * n * k, partial(torch.nn.functional.linear, a, w)


def _bandwidth_calls(torch: Any) -> Iterator[tuple[float, Callable[[], object]]]:
    """Yield (bytes read and written, call) pairs for matrix-vector multiplications and copies of several sizes."""
    for n, k in _WEIGHTS:
        yield 4.0 * n * k, partial(torch.nn.functional.linear, torch.randn(1, k), torch.randn(n, k))
    for count in _COPY_VALUES:
        source = torch.randn(count)
        yield 8.0 * count, partial(torch.empty_like(source).copy_, source)
