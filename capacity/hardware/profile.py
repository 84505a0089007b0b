"""Hardware profiles: one TOML file per GPU, in which every value has a source, a date and a basis.

A profile has three memory sizes (datasheet, visible to the driver, visible to the engine), dense rates, and the links
between the GPUs of a tensor-parallel group. Values are plain numbers; `provenance` has the source of each.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from capacity.base.data_files import read_data
from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import parse_toml, read_text
from capacity.base.output_files import write_file
from capacity.base.platforms import Platform
from capacity.base.spec import Spec
from capacity.base.toml_text import toml_key, toml_value
from capacity.hardware.adjustment import Adjustment
from capacity.hardware.coefficients import Basis, StepCoefficients

LinkKind = Literal["nvlink", "nvlink-bridge", "xgmi", "chip-to-chip", "pcie", "c2c", "network"]
Positive = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(gt=0)]

_IDENTITY = "name aliases vendor platform architecture form_factor compute_capability notes"
IDENTITY_FIELDS = tuple(_IDENTITY.split())
FACT_GROUPS = ("dense_flops_per_s", "scale_up", "pcie", "inter_node")
GROUP_LABELS = ("kind",)
UNMEASURED_RESIDUALS = Path(__file__).with_name("residuals_elsewhere.toml")
"""Errors of step times on GPUs without measurements: the default `[step_time.residuals]` of profiles without kernel
constants."""


class Provenance(Spec):
    """Source of a value. The basis `assumed` means that the value is neither published nor measured for this GPU."""

    source: Annotated[str, Field(min_length=1)]
    date: Annotated[str, Field(min_length=4)]
    basis: Basis


class Link(Spec):
    """A link between `domain_gpus` GPUs: payload rate per direction, and latency per message in seconds."""

    kind: LinkKind
    bytes_per_s: Positive
    latency_s: Positive
    domain_gpus: PositiveInt


class HardwareProfile(Spec):
    """One accelerator as sold, and its node. Rates are dense, link rates are per direction, and units are SI.

    `platform` is the programming platform, which determines the engines that run on the accelerator; default: ROCm for
    AMD, CUDA for other vendors. `power_cap_watts`: a limit below the TDP that the user sets; None in profile files.
    `provenance` has the source of every number by its dotted name, for example "dense_flops_per_s.bf16".
    """

    name: Annotated[str, Field(min_length=1)]
    aliases: tuple[str, ...] = ()
    vendor: Literal["nvidia", "amd", "intel", "google", "aws", "apple", "other"]
    platform: Platform = "cuda"
    architecture: str
    form_factor: str
    compute_capability: str | None = None
    notes: str | None = None
    memory_datasheet_bytes: PositiveInt
    memory_driver_bytes: PositiveInt
    memory_engine_bytes: PositiveInt
    hbm_bytes_per_s: Positive
    l2_bytes: PositiveInt
    sm_count: PositiveInt
    tdp_watts: Positive
    system_watts_per_gpu: Positive
    gpus_per_node: PositiveInt
    dense_flops_per_s: dict[str, Positive]
    scale_up: Link
    pcie: Link
    inter_node: Link
    provenance: dict[str, Provenance]
    step_time: StepCoefficients | None = None
    adjustment: Adjustment | None = None
    power_cap_watts: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _set_default_platform(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("platform") is None and fields.get("vendor") == "amd":
            return {**fields, "platform": "rocm"}
        return fields

    @property
    def compute_type_16_bit(self) -> str:
        """Return the type in which 16-bit models compute: BF16, else FP16 (Volta, Turing), else FP32."""
        return next(name for name in ("bf16", "fp16", "fp32") if name in self.dense_flops_per_s)

    @property
    def capability(self) -> float:
        """Return NVIDIA's compute capability as a number; infinite if unknown, 0 for other vendors."""
        if self.platform != "cuda":
            return 0.0
        said = re.fullmatch(r"\d+\.\d+", self.compute_capability or "")
        return math.inf if said is None else float(said.group())

    @property
    def is_hypothetical(self) -> bool:
        """Return whether this is a hypothetical GPU with changed datasheet values (`capacity/hardware/what_if.py`)."""
        return "+" in self.name

    @property
    def is_guess(self) -> bool:
        """Return whether the memory bandwidth has no source, so that the GPU may be several times slower or faster."""
        return self.provenance["hbm_bytes_per_s"].basis == "assumed"

    def with_adjustment(self, adjustment: Adjustment | None) -> "HardwareProfile":
        return self.model_copy(update={"adjustment": adjustment})

    def is_at_least_as_fast(self, other: "HardwareProfile") -> bool:
        """Return whether the architecture is the same and no datasheet speed or power limit is below the other's."""
        return (
            self.architecture == other.architecture
            and self.hbm_bytes_per_s >= other.hbm_bytes_per_s
            and self.scale_up.bytes_per_s >= other.scale_up.bytes_per_s
            and self.tdp_watts >= other.tdp_watts
            and all(
                self.dense_flops_per_s.get(number, 0) >= rate
                for number, rate in other.dense_flops_per_s.items()
            )
        )

    def link_for(self, ranks: int) -> Link:
        """Return the slowest link that a group of `ranks` GPUs uses: scale-up domain, PCIe or between nodes."""
        if ranks <= self.scale_up.domain_gpus:
            return self.scale_up
        if ranks <= self.gpus_per_node:
            return self.pcie
        return self.inter_node


def read_profile(path: Path) -> HardwareProfile:
    """Read a profile file. Raises MalformedFile for an unknown field or a value without a source."""
    try:
        stat = path.stat()
    except OSError as error:
        raise MalformedFile(path, error.strerror or "cannot be read") from None
    return _read_profile(path, stat.st_mtime_ns, stat.st_size)


def parse_profile(text: str, *, origin: object = "profile") -> HardwareProfile:
    """Return the profile that a TOML text describes; error messages name the text `origin`."""
    return _parse_document(parse_toml(text, origin), origin)


def require_new_profile(name: str, folder: Path) -> None:
    """Raise InvalidInput if `folder` already has a profile of this name."""
    path = folder / f"{name}.toml"
    if path.exists():
        raise InvalidInput(f"{path} exists: add --overwrite to replace it, or give another --name")


def write_profile(profile: HardwareProfile, folder: Path, *, flag: str = "--out") -> Path:
    """Write the profile as TOML to `folder`, which is created if missing. Raises InvalidInput, which names the option
    `flag`."""
    path, advice = folder / f"{profile.name}.toml", f"; name another folder with {flag}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}{advice}") from None
    write_file(path, dump_profile(profile), advice)
    return path


def dump_profile(profile: HardwareProfile) -> str:
    """Return the profile as TOML; `parse_profile` restores an equal profile."""
    keys = _source_keys(profile)
    identity = {field: getattr(profile, field) for field in IDENTITY_FIELDS}
    sections = ["\n".join(_toml_lines(identity))]
    if keys:
        sections.append("\n".join(["[sources]", *_toml_lines({key: text for text, key in keys.items()})]))
    others = {*IDENTITY_FIELDS, *FACT_GROUPS, "provenance", "step_time", "adjustment", "power_cap_watts"}
    facts = [
        f"{field} = {_fact_toml(profile, field, getattr(profile, field), keys)}"
        for field in HardwareProfile.model_fields
        if field not in others
    ]
    sections.append("[facts]\n" + "\n".join(facts))
    for group in FACT_GROUPS:
        value = getattr(profile, group)
        members: Mapping[str, Any] = value if isinstance(value, dict) else value.model_dump()
        lines = [f"[facts.{group}]"]
        for member, number in members.items():
            label = member in GROUP_LABELS
            text = toml_value(number) if label else _fact_toml(profile, f"{group}.{member}", number, keys)
            lines.append(f"{toml_key(member)} = {text}")
        sections.append("\n".join(lines))
    if profile.step_time is not None:
        document = profile.step_time.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        sections.extend(_table_sections("step_time", document))
    if profile.adjustment is not None:
        document = profile.adjustment.model_dump(mode="json", exclude_defaults=True)
        sections.extend(_table_sections("adjustment", document))
    return "\n\n".join(sections) + "\n"


def _source_keys(profile: HardwareProfile) -> dict[str, str]:
    """Return a mapping from each source text that several values share to a short key."""
    uses = Counter(origin.source for origin in profile.provenance.values())
    keys: dict[str, str] = {}
    for origin in profile.provenance.values():
        if uses[origin.source] > 1 and origin.source not in keys:
            taken = sum(key.split("-")[0] == origin.basis for key in keys.values())
            keys[origin.source] = origin.basis if not taken else f"{origin.basis}-{taken + 1}"
    return keys


@lru_cache(maxsize=64)
def _read_profile(path: Path, modified_ns: int, size_bytes: int) -> HardwareProfile:
    del modified_ns, size_bytes  # cache key: a changed file is read again
    profile = parse_profile(read_text(path, "a hardware profile"), origin=path)
    if profile.name != path.stem:
        raise MalformedFile(
            path, f"contains profile {profile.name!r}; rename the file to {profile.name}.toml", where="name"
        )
    return profile


def _fill_residuals(document: MutableMapping[str, Any]) -> None:
    """Add default `residuals` to a profile document that has neither kernel constants nor `residuals`."""
    step_time = document.get("step_time")
    if isinstance(step_time, dict) and not {"families", "residuals"} & set(step_time):
        document["step_time"] = {**step_time, "residuals": read_data(UNMEASURED_RESIDUALS)}


def _parse_document(document: Mapping[str, Any], origin: object) -> HardwareProfile:
    facts = document.get("facts")
    if not isinstance(facts, dict):
        raise MalformedFile(origin, "has no [facts] table")
    sources = document.get("sources", {})
    if not isinstance(sources, dict):
        raise MalformedFile(origin, "must be a table of strings", where="sources")
    values: dict[str, object] = {}
    provenance: dict[str, dict[str, object]] = {}
    wrong: list[str] = []

    def split(dotted: str, entry: object) -> object:
        found = _split_fact(entry, sources)
        if found is None:
            wrong.append(dotted)
            return None
        provenance[dotted] = found[1]
        return found[0]

    for field, entry in facts.items():
        if field not in FACT_GROUPS:
            values[field] = split(field, entry)
            continue
        if not isinstance(entry, dict):
            raise MalformedFile(origin, "must be a table", where=f"facts.{field}")
        values[field] = {
            member: fact if member in GROUP_LABELS else split(f"{field}.{member}", fact)
            for member, fact in entry.items()
        }
    rest = {key: value for key, value in document.items() if key not in ("facts", "sources")}
    _fill_residuals(rest)
    clash = sorted(set(rest) & {*values, "provenance"})
    if clash:
        raise MalformedFile(origin, "must be under [facts], with its source", where=clash[0])
    try:
        profile = HardwareProfile.model_validate({**rest, **values, "provenance": provenance})
    except ValidationError as error:
        raise MalformedFile(origin, _validation_message(error, wrong)) from None
    assert not wrong  # no fact accepts None
    return profile


def _validation_message(error: ValidationError, without_source: Sequence[str]) -> str:
    """Return all errors of a profile in one line; values are named as in the file, with the table `facts.`."""
    by_kind: dict[str, list[str]] = {}
    if without_source:
        by_kind["must be exactly {value, source, date, basis}"] = [*without_source]
    for each in error.errors():
        name = ".".join(str(part) for part in each["loc"])
        if name not in without_source:
            by_kind.setdefault("is missing" if each["type"] == "missing" else each["msg"], []).append(name)
    above = (*IDENTITY_FIELDS, "step_time", "adjustment")
    said = "; ".join(
        f"{', '.join(n if n.split('.')[0] in above else f'facts.{n}' for n in names)}: {what}"
        for what, names in by_kind.items()
    )
    return f"{said} (`capacity schema gpu-profile` prints the format, `capacity gpus add` writes a profile)"


def _split_fact(entry: object, sources: Mapping[str, Any]) -> tuple[object, dict[str, object]] | None:
    """Return the value and the provenance of one entry of [facts] in a profile file; None if a part of it is missing.

    The entry's source may be a key of the table [sources]. That table has, for the key, either the source text, or
    `{source, date, basis}` for all facts that use the key.
    """
    known = entry.get("source") if isinstance(entry, dict) else None
    shared = sources.get(known) if isinstance(known, str) else None
    if isinstance(entry, dict) and isinstance(shared, dict) and "value" not in shared:
        entry = {**shared, **entry, "source": shared.get("source")}
        shared = None
    if not isinstance(entry, dict) or set(entry) != {"value", "source", "date", "basis"}:
        return None
    source = entry["source"] if shared is None else shared
    return entry["value"], {"source": source, "date": entry["date"], "basis": entry["basis"]}


def _fact_toml(profile: HardwareProfile, dotted: str, value: object, keys: Mapping[str, str]) -> str:
    origin = profile.provenance[dotted]
    source = keys.get(origin.source, origin.source)
    return toml_value({"value": value, "source": source, "date": origin.date, "basis": origin.basis})


def _toml_lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items() if value is not None]


def _table_sections(name: str, table: Mapping[str, Any]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    nested = {key: value for key, value in table.items() if isinstance(value, dict)}
    sections = []
    if plain or not nested:
        sections.append("\n".join([f"[{name}]", *_toml_lines(plain)]))
    for key, value in nested.items():
        sections.extend(_table_sections(f"{name}.{toml_key(key)}", value))
    return sections
