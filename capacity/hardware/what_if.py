"""Hypothetical GPUs: a GPU's profile with a few changed datasheet values; values that depend on them become assumed."""

from __future__ import annotations  # `keywords_of` finds flags in annotations as text

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import outside_path
from capacity.base.flags import with_flags
from capacity.hardware.coefficients import StepCoefficients
from capacity.hardware.power_cap import limit_power
from capacity.hardware.profile import HardwareProfile, Provenance, read_profile, write_profile
from capacity.hardware.profile_search import find_profile, profile_paths, user_profiles_directory

UNMEASURED_CHIP_ERROR_FACTOR = 1.4
"""Error factor of steps on a chip without measured kernels: assumed, as for the bundled GB10 and T4."""
FACTS: Mapping[str, tuple[str, float]] = {  # name in a change: fact, SI units per unit of a change
    "memory": ("memory_datasheet_bytes", 1e9),
    "hbm": ("hbm_bytes_per_s", 1e12),
    "tdp": ("tdp_watts", 1.0),
    "l2": ("l2_bytes", 1e6),
    "sms": ("sm_count", 1.0),
    "scale-up": ("scale_up.bytes_per_s", 1e9),
}
UNITS = "memory in GB, hbm in TB/s, tdp in W, l2 in MB, sms, scale-up in GB/s, and bf16, fp8, ... in dense TFLOP/s"
ALL_RATES = "compute"
_CHANGE = re.compile(r"(?P<fact>[a-z0-9-]+)=(?P<times>x?)(?P<value>\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedGpu:
    """Result of `capacity gpus add`: the profile, its `given` values, and those `assumed` from the GPU `like`."""

    name: str
    path: Path
    like: str
    given: tuple[str, ...]
    assumed: tuple[str, ...]


def changed_profile(base: HardwareProfile, changes: str) -> HardwareProfile:
    """Return a hypothetical GPU: the profile `base` with `changes` such as `hbm=x2+tdp=500`.

    A number after x is a factor; any other number is a value in the units of `UNITS`. The profile's name is the base's
    name plus the changes. Its kernel constants are transferred from the base. Raises InvalidInput.
    """
    facts: dict[str, float] = {}
    for change in changes.split("+"):
        found = _CHANGE.fullmatch(change.strip().lower())
        if found is None:
            raise InvalidInput(
                f"--change {change!r}: write FACT=xFACTOR or FACT=VALUE, e.g. hbm=x2 ({UNITS})"
            )
        name, value = found["fact"], float(found["value"])
        rates = [f"dense_flops_per_s.{each}" for each in base.dense_flops_per_s]
        fact, unit = FACTS.get(name, (f"dense_flops_per_s.{name}", 1e12))
        if name == ALL_RATES and not found["times"]:
            raise InvalidInput(f"--change {change!r} needs a factor, for example {ALL_RATES}=x2")
        if name not in FACTS and name != ALL_RATES and fact not in rates:
            known = ", ".join([*FACTS, ALL_RATES, *base.dense_flops_per_s])
            raise InvalidInput(f"--change {change!r}: {base.name} has no {name}; use one of {known}")
        if not 0 < value < 1e9:
            raise InvalidInput(f"--change {change!r}: the value must be above 0 and below 1e9")
        for each in rates if name == ALL_RATES else [fact]:
            facts[each] = _get_fact(base, each) * value if found["times"] else value * unit
    watts = facts.get("tdp_watts", math.inf)
    if watts < base.tdp_watts:  # a lower limit is a power cap on the same GPU
        del facts["tdp_watts"]
    source = f"assumed: {changes} of {base.name}"
    dates = {name: base.provenance[name].date for name in facts}
    origins = {name: Provenance(source=source, date=date, basis="assumed") for name, date in dates.items()}
    changed = _replace_facts(base, f"{base.name}+{changes}", facts, {**base.provenance, **origins})
    return limit_power(changed, watts)


def load_profile(name: str, directories: Sequence[Path | str] = ()) -> HardwareProfile:
    """Load a profile by name, alias, `name@variant` or TOML path; `h100+hbm=x2` adds changes (`FACTS`).

    Searches `directories`, then CAPACITY_PROFILES, then the user's own folder (where `capacity calibrate` writes),
    then the bundled profiles; the first match wins. Raises UnknownName (with suggestions) or MalformedFile.
    """
    if name.endswith(".toml"):
        path = outside_path(name)
        if not path.exists():
            raise MalformedFile(path, "hardware profile file does not exist")
        return read_profile(path)
    base, plus, changes = name.partition("+")
    if plus:
        return changed_profile(load_profile(base, directories), changes)
    return read_profile(find_profile(name, directories))


@validate_arguments
@with_flags
def add_gpu(
    name: str,
    *,
    like: str | None = None,
    memory_gb: float | None = None,
    hbm_tb_s: float | None = None,
    bf16_tflops: float | None = None,
    fp8_tflops: float | None = None,
    scale_up_gb_s: float | None = None,
    tdp_watts: float | None = None,
    profiles: str | Path | None = None,
) -> AddedGpu:
    """Write a profile of a GPU from its datasheet; values that are not given are assumed from the GPU `like`.

    Rates are dense, and `scale_up_gb_s` is per direction. Rates that are not given scale with `bf16_tflops`.
    `profiles` is the folder; default: the first folder in CAPACITY_PROFILES, else the user's own. Raises InvalidInput
    if required values are missing (the message names all of them) or if the name is taken.
    """
    if memory_gb is None or hbm_tb_s is None or bf16_tflops is None or like is None:
        needed = {"memory-gb": memory_gb, "hbm-tb-s": hbm_tb_s, "bf16-tflops": bf16_tflops, "like": like}
        missing = [f"--{flag}" for flag, value in needed.items() if value is None]
        raise InvalidInput(f"adding GPU {name} also requires {', '.join(missing)}")
    folder = outside_path(profiles) if profiles is not None else user_profiles_directory()
    searched = [folder] if folder.is_dir() else []
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is not a valid GPU name; use lower-case letters, digits, dots, - and _")
    if any(path.stem == name for path in profile_paths(searched)):
        raise InvalidInput(f"GPU {name} already exists; choose another name, or remove its file")
    base = load_profile(like, searched)
    if "bf16" not in base.dense_flops_per_s:
        raise InvalidInput(f"--like {like} has no bf16 rate; choose a GPU that has one")
    times = bf16_tflops * 1e12 / base.dense_flops_per_s["bf16"]
    facts = {f"dense_flops_per_s.{each}": rate * times for each, rate in base.dense_flops_per_s.items()}
    given = {
        "memory_datasheet_bytes": memory_gb * 1e9,
        "hbm_bytes_per_s": hbm_tb_s * 1e12,
        "dense_flops_per_s.bf16": bf16_tflops * 1e12,
        "dense_flops_per_s.fp8": None if fp8_tflops is None else fp8_tflops * 1e12,
        "scale_up.bytes_per_s": None if scale_up_gb_s is None else scale_up_gb_s * 1e9,
        "tdp_watts": tdp_watts,
    }
    told = {fact: value for fact, value in given.items() if value is not None}
    if wrong := [fact for fact, value in told.items() if not 0 < value < 1e18]:
        raise InvalidInput(f"{wrong[0]} is {told[wrong[0]]:g}, must be above 0 and below 1e18")
    today = datetime.now(tz=UTC).date().isoformat()
    by_hand = Provenance(source="given to `capacity gpus add` without a source", date=today, basis="assumed")
    source = f"assumed: equal or proportional to {base.name}"
    analogy = Provenance(source=source, date=today, basis="assumed")
    origins = {fact: by_hand if fact in told else analogy for fact in {**base.provenance, **told}}
    profile = _replace_facts(base, name, {**facts, **told}, origins)
    path = write_profile(profile, folder, flag="--profiles")
    assumed = tuple(sorted(fact for fact in origins if fact not in told))
    return AddedGpu(name=name, path=path, like=base.name, given=tuple(told), assumed=assumed)


def _get_fact(profile: HardwareProfile, name: str) -> float:
    group, _, member = name.partition(".")
    value = getattr(profile, group)
    if not member:
        return float(value)
    return float(value[member] if isinstance(value, dict) else getattr(value, member))


def _replace_facts(
    base: HardwareProfile, name: str, facts: Mapping[str, float], origins: Mapping[str, Provenance]
) -> HardwareProfile:
    """Return the profile with the values `facts`, scaled memory and power values, and transferred kernel constants."""
    whole = type(base).model_fields
    update: dict[str, object] = {"dense_flops_per_s": dict(base.dense_flops_per_s)}
    for fact, value in facts.items():
        group, _, member = fact.partition(".")
        if group == "dense_flops_per_s":
            update[group] = {**update[group], member: value}  # type: ignore[dict-item]
        elif member:
            update[group] = getattr(base, group).model_copy(update={member: value})
        else:
            update[group] = int(value) if "int" in str(whole[group].annotation).lower() else value
    for scaled, by in (
        ("memory_driver_bytes", "memory_datasheet_bytes"),
        ("memory_engine_bytes", "memory_datasheet_bytes"),
        ("system_watts_per_gpu", "tdp_watts"),
    ):
        if by in facts:
            value = getattr(base, scaled) * facts[by] / getattr(base, by)
            update[scaled] = int(value) if scaled.endswith("_bytes") else value
    own = base.step_time
    root = base.name.partition("@")[0]
    if own is not None and not own.families and own.transferred_from is not None:
        root = own.transferred_from
    error_factor = (
        UNMEASURED_CHIP_ERROR_FACTOR if own is None else max(own.error_factor, UNMEASURED_CHIP_ERROR_FACTOR)
    )
    return base.model_copy(
        update={
            **update,
            "name": name,
            "aliases": (),
            "provenance": dict(origins),
            "step_time": StepCoefficients(gpu=name, transferred_from=root, error_factor=error_factor),
            "adjustment": None,
        }
    )
