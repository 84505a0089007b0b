"""Which GPU profile a card is described by, and where the two disagree."""

from __future__ import annotations

from collections.abc import Callable

from capacity.base.errors import InvalidInput
from capacity.hardware import HardwareProfile, load_profile, profile_names
from capacity_validate.devices import DeviceFacts
from capacity_validate.provisional import provisional_profile, provisional_remark

POWER_CAP_FRACTION = 0.97
MEMORY_MATCH_FRACTION = 0.12
OTHER_CARD = {
    "d",
    "ti",
    "super",
    "laptop",
    "mobile",
    "mig",
}  # words that make another card of the same family


def match_profile(
    facts: DeviceFacts,
    *,
    gpu: str | None = None,
    directories: tuple[str, ...] = (),
    copied_bytes_per_s: Callable[[], float] | None = None,
) -> tuple[HardwareProfile, tuple[str, ...]]:
    """The profile of a GPU, with remarks where the two disagree; `gpu` names one where the card is not known.

    A card that no profile describes gets a provisional one; `copied_bytes_per_s` times a copy for it. Raises
    InvalidInput where the driver says too little for that, or where `gpu` is another kind of card.
    """
    if gpu is not None:
        profile = load_profile(gpu, directories)
        _require_kind(facts, profile)
        return profile, mismatches(facts, profile)
    candidates = [load_profile(name, directories) for name in profile_names(directories) if "@" not in name]
    scored = [(_likeness(facts, profile), profile) for profile in candidates]
    best = max(scored, key=lambda pair: pair[0], default=(0.0, None))
    if best[1] is None or best[0] <= 0:
        copied = None if copied_bytes_per_s is None else copied_bytes_per_s()
        made = provisional_profile(facts, copied_bytes_per_s=copied)
        return made, (provisional_remark(made),)
    return best[1], mismatches(facts, best[1])


def _require_kind(facts: DeviceFacts, profile: HardwareProfile) -> None:
    """Raises InvalidInput where a named profile is of another kind of card: its calibration would be of neither."""
    own, card = profile.compute_capability, facts.compute_capability
    if own is not None and card is not None and own != card:
        raise InvalidInput(
            f"--gpu {profile.name} is of compute capability {own}, this {facts.name} of {card}: leave --gpu out, a "
            "provisional profile is made of a card that none describes"
        )


def _words(text: str) -> set[str]:
    cleaned = "".join(c if c.isalnum() else " " for c in text.lower())
    return set(cleaned.replace("sxm4", "sxm").replace("sxm5", "sxm").replace("sxm6", "sxm").split())


def _likeness(facts: DeviceFacts, profile: HardwareProfile) -> float:
    """0 where the family or the memory differ; higher the more words of the name agree."""
    card, own = _words(facts.name), _words(profile.name)
    family = {
        word for word in own if not word.endswith("gb") and word not in ("sxm", "pcie", "nvl", "rtx", "nvl72")
    }
    if not family <= card or (OTHER_CARD & card) - own:
        return 0.0
    if abs(facts.memory_total_bytes / profile.memory_driver_bytes - 1) > MEMORY_MATCH_FRACTION:
        return 0.0
    forms = {"sxm", "pcie", "nvl"}
    card_form, own_form = card & forms, own & forms
    form = 1.0 if card_form == own_form else 0.5 if not card_form and "sxm" in own_form else 0.0
    return 1.0 + len(family) + form


def mismatches(facts: DeviceFacts, profile: HardwareProfile) -> tuple[str, ...]:
    """Where a card is not quite what its profile says: another form factor, a power cap, fewer SMs, less memory."""
    remarks = []
    card, own = _words(facts.name), _words(profile.name)
    for form in ("pcie", "nvl", "sxm"):
        if form in card and form not in own:
            remarks.append(f"{facts.name} is a {form.upper()} card, profile {profile.name} is not")
    if facts.compute_units != profile.sm_count:
        remarks.append(f"{facts.compute_units} SMs, where profile {profile.name} has {profile.sm_count}")
    if facts.power_limit_watts and facts.power_limit_watts < POWER_CAP_FRACTION * profile.tdp_watts:
        remarks.append(
            f"power capped at {facts.power_limit_watts:.0f} W, where {profile.name} has {profile.tdp_watts:.0f} W: "
            "large matrix products will be slower"
        )
    if abs(facts.memory_total_bytes / profile.memory_driver_bytes - 1) > MEMORY_MATCH_FRACTION:
        remarks.append(
            f"{facts.memory_total_bytes / 2**30:.1f} GiB of memory, where profile {profile.name} has "
            f"{profile.memory_driver_bytes / 2**30:.1f} GiB"
        )
    return tuple(remarks)
