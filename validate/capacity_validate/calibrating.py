"""`capacity calibrate`: fit a GPU profile variant to measurement files, and report why some constants were not
fitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput, OutsideValidity
from capacity.base.flags import with_flags
from capacity.base.record import AnswerRecord
from capacity.hardware import (
    HardwareProfile,
    load_profile,
    parse_profile,
    require_new_profile,
    use_text,
    user_profiles_directory,
    write_profile,
)
from capacity.hardware.coefficients import Residuals
from capacity.model import ModelSpec
from capacity.report.display import count_noun
from capacity_validate.calibrating_runs import RunCalibration, calibrate_runs, variant_name
from capacity_validate.card_ratios import CardRatio, apply_sustained_clock, card_ratios, kernel_adjustment
from capacity_validate.cases import MeasuredCase, Measurements
from capacity_validate.constant_fits import FamilyFit, RejectedFit, calibrated_profile, fit_families
from capacity_validate.evidence import read_evidence
from capacity_validate.kernel_files import read_kernel_file
from capacity_validate.plausibility import require_valid
from capacity_validate.predictions import FAMILY, Predictor
from capacity_validate.profile_match import find_profile_name
from capacity_validate.residuals import StepEvidence, fit_residuals, step_evidence
from capacity_validate.small_models import find_model

AGREEMENT = 0.30  # maximum relative difference of two files on one case


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedConstant:
    """One constant of the step model, before and after the fit."""

    family: str
    name: str
    before: float
    after: float

    @property
    def factor(self) -> float | None:
        return self.after / self.before if self.before else None


def changed_constants(fits: Iterable[FamilyFit]) -> tuple[ChangedConstant, ...]:
    return tuple(
        ChangedConstant(family=fit.target.label, name=name, before=before, after=after)
        for fit in fits
        for name, (before, after) in fit.moved.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(AnswerRecord):
    """The result of calibration on kernel measurements: the profile, its path, its errors on held-out cases, and
    the files used."""

    SCHEMA: ClassVar[str] = "capacity/calibration/v1"

    profile: str
    base: str
    path: str
    files: tuple[str, ...]
    cases: int
    moved: tuple[ChangedConstant, ...]
    errors: dict[str, tuple[float, float]]  # held-out median by family, before and after
    refused: dict[str, str]
    # by regime: 90 % range of measured / predicted - 1, in the harness's loop
    bands: dict[str, tuple[float, float]]
    ratios: tuple[str, ...]  # factors on the times of engines, one sentence per kernel
    notices: tuple[str, ...] = ()  # doubts about the measurements

    def lines(self) -> list[str]:
        shown = [
            f"{self.profile}: fitted to {self.cases} cases from {count_noun(len(self.files), 'file')}, based on "
            f"{self.base}"
        ]
        for family, (before, after) in self.errors.items():
            shown.append(f"{family}: error on held-out cases {before:.1%} -> {after:.1%} (median)")
            shown += [
                f"    {m.name:<20}{m.before:>12.4g} -> {m.after:<12.4g}"
                for m in self.moved
                if m.family == family
            ]
        shown += self.ratios
        shown += [
            f"steps of the harness's own loop, {regime}: measured / predicted - 1 is {low:+.1%} to {high:+.1%} (90 %)"
            for regime, (low, high) in self.bands.items()
        ]
        shown += [f"{family}: not changed: {reason}" for family, reason in self.refused.items()]
        shown += [f"note: {notice}" for notice in self.notices]
        shown.append(use_text(self.profile, self.path))
        return shown


@validate_arguments
@with_flags
def calibrate(
    results: Sequence[str | Path],
    *,
    name: str = "mine",
    model: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    profiles: str | Path | Sequence[str] | None = None,
    download: bool = False,
    **options: Any,
) -> Calibration | RunCalibration:
    """Write a profile variant `GPU@name` calibrated on files, whose kind is detected from their content.

    Measurement files of `capacity validate` calibrate kernel constants. Benchmark results, engine logs and scrapes of
    /metrics (files, or http addresses) calibrate a whole deployment. `options` describe the deployment as in `compare`
    (`gpu`, `tensor_parallel_size`, ..., and `input_len`, ... if a file lacks them). `out` is a folder; the default is
    the first folder of CAPACITY_PROFILES, or else the platform's configuration directory. An existing variant is
    replaced only with `overwrite`, or if it is itself the `gpu`.

    Raises OutsideValidity if measurements are too few or inconsistent; InvalidInput for files of different devices or
    kinds, for a variant that exists, and if a required setting is missing; MalformedFile.
    """
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise InvalidInput(
            f"--name is {name!r}: use only letters, digits, - and _, because it becomes a file name"
        )
    evidence = read_evidence(results)
    folders = (profiles,) if isinstance(profiles, str | Path) else tuple(profiles or ())
    written: dict[str, Any] = {"name": name, "out": out, "overwrite": overwrite}
    if not evidence.measurements:
        folder = next(iter(folders), None)
        return calibrate_runs(evidence, model=model, profiles=folder, download=download, **written, **options)
    if len(evidence.measurements) < len(evidence.sources):
        raise InvalidInput(
            "kernel measurements and results of runs cannot be calibrated together: calibrate from "
            f"{evidence.measurements[0]} first, then from the runs with --gpu GPU@{name}"
        )
    unused = [option for option in options if option != "gpu"]
    if unused:
        raise InvalidInput(f"{unused[0]!r} has no effect on kernel measurements: leave it out")
    return calibrate_kernels(
        evidence.measurements, gpu=options.get("gpu"), profiles=tuple(map(str, folders)), **written
    )


def calibrate_kernels(
    measurements: Sequence[str],
    *,
    name: str,
    gpu: str | None,
    out: str | Path | None,
    profiles: tuple[str, ...],
    overwrite: bool = False,
) -> Calibration:
    """Fit a profile to measurement files of one device, and write it as `PROFILE@name.toml`.

    `gpu` overrides the profile named in the files. Raises OutsideValidity if no kernel has enough cases for a fit,
    or if the files contradict each other; InvalidInput for files of different devices, of another GPU, or of a
    busy, throttled or drifting one; MalformedFile.
    """
    files = [read_kernel_file(path) for path in measurements]
    profile = base_profile(files, gpu=gpu, directories=profiles)
    doubts = require_valid(files, profile)
    cases = combine_cases(files)
    variant = variant_name(profile, name)
    folder = Path(out) if out is not None else user_profiles_directory()
    if not overwrite and profile.name != variant:
        require_new_profile(variant, folder)
    source = f"capacity calibrate, {len(cases)} cases measured on {files[0].environment.get('device')}"
    source = "; doubtful: ".join([source, *doubts])
    calibrated = fit_profile(
        cases,
        profile,
        name=variant,
        source=source,
        model=find_named_model(files, "model"),
        unseen=find_named_model(files, "unseen"),
    )
    fits = calibrated.fits
    if not fits:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in calibrated.refused.items())
        raise OutsideValidity(
            f"nothing can be calibrated from {len(cases)} cases: "
            f"{reasons or 'the step model has no constants for any of these cases'}. Run a larger campaign of "
            "`capacity validate`."
        )
    path = write_profile(calibrated.profile, folder)
    return Calibration(
        profile=variant,
        base=profile.name,
        path=str(path),
        files=tuple(str(m.path) for m in files),
        cases=len(cases),
        moved=changed_constants(fits),
        errors={fit.target.label: (fit.error_before.median, fit.error_after.median) for fit in fits},
        refused=calibrated.refused,
        bands={regime: (band.low, band.high) for regime, band in calibrated.residuals.items()},
        ratios=tuple(ratio.line for ratio in calibrated.ratios),
        notices=(*doubts, *(notice for file in files for notice in file.notices)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfFit:
    """Constants and host time fitted to half of the cases; `before` and `after` predict with old and fitted
    constants."""

    fits: list[FamilyFit]
    refused: list[RejectedFit]
    evidence: StepEvidence | None
    before: Predictor
    after: Predictor


def fit_half(
    cases: Sequence[MeasuredCase],
    profile: HardwareProfile,
    *,
    source: str,
    model: ModelSpec | None,
    unseen: ModelSpec | None,
) -> HalfFit:
    """Fit `profile` to half of the cases, including steps of `model` but none of the second model, `unseen`."""
    fits, refused = fit_families(cases, profile, source=source)
    half = calibrated_profile(profile, fits, family=FAMILY)
    evidence = None
    if model is not None:
        evidence = step_evidence(cases, model, half, unseen=_held_out_model(unseen, fits))
    host = None if evidence is None else evidence.host
    return HalfFit(
        fits=fits,
        refused=refused,
        evidence=evidence,
        before=Predictor(profile, model=model, unseen=unseen),
        after=Predictor(half, model=model, host=host, unseen=unseen),
    )


def _held_out_model(unseen: ModelSpec | None, fits: Sequence[FamilyFit]) -> ModelSpec | None:
    """Return `unseen`, the model to hold out; None if it is a mixture of experts but no expert kernel was fitted."""
    fitted = unseen is None or not unseen.is_moe or any(fit.target.operator == "moe" for fit in fits)
    return unseen if fitted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedProfile:
    """A profile with constants fitted to all cases, and error bands from `half`, a fit to half of the cases."""

    half: HalfFit
    profile: HardwareProfile
    fits: tuple[FamilyFit, ...]
    residuals: dict[str, Residuals]
    refused: dict[str, str]
    ratios: tuple[CardRatio, ...]


def fit_profile(
    cases: Sequence[MeasuredCase],
    profile: HardwareProfile,
    *,
    name: str,
    source: str,
    model: ModelSpec | None,
    unseen: ModelSpec | None = None,
) -> FittedProfile:
    """Return `profile` calibrated on the cases and renamed to `name`.

    `model`: the model whose steps are fitted; `unseen`: a second model, whose steps are all held out.
    """
    half = fit_half(cases, profile, source=source, model=model, unseen=unseen)
    fits, refused = fit_families(cases, profile, source=source, final=True)
    residuals, missing = fit_residuals(
        half.evidence, model, source=source, unseen=_held_out_model(unseen, half.fits)
    )
    lasting = apply_sustained_clock(fits, cases, profile)
    calibrated = calibrated_profile(profile, lasting, family=FAMILY, name=name)
    ratios = card_ratios(cases, calibrated)
    return FittedProfile(
        half=half,
        profile=calibrated.with_adjustment(kernel_adjustment(ratios, profile, source=source)),
        fits=tuple(fits),
        residuals=residuals,
        refused={entry.family: entry.reason for entry in refused} | missing,
        ratios=ratios,
    )


def find_named_model(files: Sequence[Measurements], field: str) -> ModelSpec | None:
    """Return the model that the files name in `field` (`model` or `unseen`); None if missing or if they differ."""
    names = {getattr(file, field) for file in files}
    name = names.pop() if len(names) == 1 else None
    return None if name is None else find_model(name)


def base_profile(
    files: Sequence[Measurements], *, gpu: str | None, directories: tuple[str, ...]
) -> HardwareProfile:
    """Return the profile `gpu`, or else the profile that all files were measured with. A CPU profile is stored inside
    its file."""
    devices = {m.environment.get("device") for m in files}
    if len(devices) > 1:
        raise InvalidInput(
            f"measurements of different devices cannot be combined: {', '.join(map(str, sorted(map(str, devices))))}"
        )
    if gpu is not None:
        named = load_profile(gpu, directories)
        if files[0].environment.get("kind") == "cpu" and named.architecture != "cpu":
            raise InvalidInput(
                f"{files[0].path} was measured on a CPU and cannot calibrate {named.name}, which is a GPU"
            )
        return named
    embedded = next((m for m in files if m.profile_toml is not None), None)
    if embedded is not None:
        return parse_profile(str(embedded.profile_toml), origin=embedded.path)
    names = {m.profile for m in files}
    if len(names) > 1:
        raise InvalidInput(
            f"the files name different profiles ({', '.join(sorted(names))}); choose one with --gpu"
        )
    name = names.pop() or find_profile_name(str(files[0].environment.get("device")), directories)
    if name is None:
        raise InvalidInput(f"{files[0].path} does not name a GPU that has a profile: add --gpu NAME")
    return load_profile(name, directories)


def combine_cases(files: Sequence[Measurements]) -> list[MeasuredCase]:
    """Return the cases of all files. If a case was measured several times, keep the measurement with the median time.

    Raises OutsideValidity if the times of most shared cases differ by more than `AGREEMENT` (relative).
    """
    runs: dict[str, list[MeasuredCase]] = {}
    for file in files:
        for case in file.timed:
            runs.setdefault(case.case.id, []).append(case)
    shared = [sorted(members, key=lambda m: m.seconds) for members in runs.values() if len(members) > 1]
    apart = [members for members in shared if members[-1].seconds > (1 + AGREEMENT) * members[0].seconds]
    if len(apart) > 0.5 * len(shared) > 0:
        worst = max(apart, key=lambda members: members[-1].seconds / members[0].seconds)
        raise OutsideValidity(
            f"the files contradict each other: {len(apart)} of {len(shared)} shared cases differ by more than "
            f"{AGREEMENT:.0%} (worst: {worst[0].case.id}, {worst[-1].seconds / worst[0].seconds:.1f} times); "
            "calibrate from one of them, or measure again on an idle device"
        )
    return [sorted(members, key=lambda m: m.seconds)[len(members) // 2] for members in runs.values()]
