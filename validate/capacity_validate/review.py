"""Evidence judged again, on any machine: measurement files in, predictions before and after calibration out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from capacity.base.record import AnswerRecord
from capacity_validate.calibrating import (
    MovedConstant,
    base_profile,
    combined,
    model_of,
    moved_constants,
    unseen_of,
)
from capacity_validate.cases import MeasuredCase, read_measurements
from capacity_validate.constant_fits import FamilyFit, calibrated_profile, evidence_by_target, fit_families
from capacity_validate.plausibility import bound_remarks, odd_shapes, roof_fraction, timing_remarks
from capacity_validate.predictions import FAMILY, Predictor
from capacity_validate.report_data import CaseRow, ClassErrors, Role, class_errors
from capacity_validate.residuals import step_evidence, whole_steps
from capacity_validate.splitting import split


@dataclass(frozen=True, slots=True, kw_only=True)
class Review(AnswerRecord):
    """What measurement files say of a profile. `cases` that are held out were not seen by the fit."""

    SCHEMA: ClassVar[str] = "capacity/review/v1"

    device: str
    profile: str
    files: tuple[str, ...]
    roofs: Mapping[str, float]
    cases: tuple[CaseRow, ...]
    classes: tuple[ClassErrors, ...]
    constants: tuple[MovedConstant, ...]
    refused: Mapping[str, str]
    remarks: tuple[
        str, ...
    ] = ()  # what the times themselves say: held-down clocks, kernels unlike their family


def review(
    measurements: Sequence[str | Path], *, gpu: str | None = None, profiles: Sequence[str] = ()
) -> Review:
    """Predict every measured case by the profile as it is, and by one fitted to the other half of the cases.

    Writes nothing and needs no device. `gpu` overrides the profile that the files name. Raises InvalidInput,
    MalformedFile, and OutsideValidity for files that contradict each other.
    """
    files = [read_measurements(path) for path in measurements]
    profile = base_profile(files, gpu=gpu, directories=tuple(profiles))
    cases = combined(files)
    model = model_of(files)
    on_gpu = files[0].environment.get("kind") != "cpu"
    fits, refused = fit_families(cases, profile, source="review", on_gpu=on_gpu)
    calibrated = calibrated_profile(profile, fits, family=FAMILY)
    evidence = None if model is None else step_evidence(cases, model, calibrated, on_gpu=on_gpu)
    unseen = unseen_of(files)
    before = Predictor(profile, on_gpu=on_gpu, model=model, unseen=unseen)
    after = before
    if fits:
        host = None if evidence is None else evidence.host
        after = Predictor(calibrated, on_gpu=on_gpu, model=model, host=host, unseen=unseen)
    judged = [m for m in cases if model is not None or not m.case.operator.startswith("model ")]
    rows = case_rows(judged, before, after, roles_of(cases, fits, on_gpu=on_gpu))
    return Review(
        device=str(files[0].environment.get("device")),
        profile=profile.name,
        files=tuple(file.path for file in files),
        roofs={"hbm_bytes_per_s": profile.hbm_bytes_per_s, **profile.dense_flops_per_s},
        cases=rows,
        classes=class_errors(rows),
        constants=moved_constants(fits),
        refused={entry.family: entry.reason for entry in refused},
        remarks=(
            *timing_remarks(cases),
            *odd_shapes(cases, fits, profile, on_gpu=on_gpu),
            *bound_remarks(fits),
        ),
    )


def case_rows(
    cases: Sequence[MeasuredCase], before: Predictor, after: Predictor, roles: Mapping[str, Role]
) -> tuple[CaseRow, ...]:
    """Every timed case, predicted by both; by `after` only where it belongs to a half."""
    return tuple(
        CaseRow(
            id=m.case.id,
            family=m.case.family,
            role=roles.get(m.case.id, "shown"),
            measured_s=m.seconds,
            spread=m.timing.spread if m.timing else 0.0,
            repetitions=m.timing.repetitions if m.timing else 0,
            before_s=before.seconds(m.case),
            after_s=after.seconds(m.case) if m.case.id in roles else None,
            flops=m.flops,
            bytes=m.bytes,
            reference_error=m.reference_error,
            extra_bytes=m.extra_bytes,
            how=m.timing.how if m.timing else "",
            roof_fraction=roof_fraction(m, before.profile),
            standard_error=m.timing.standard_error if m.timing else 0.0,
        )
        for m in cases
        if m.status == "ok"
    )


def roles_of(cases: Sequence[MeasuredCase], fits: Sequence[FamilyFit], *, on_gpu: bool) -> dict[str, Role]:
    """Which half each case belongs to, as the fits took them; cases of no half are left out."""
    targets = {fit.target for fit in fits}
    evidence = evidence_by_target(cases, on_gpu=on_gpu)
    groups: dict[Any, list[MeasuredCase]] = {t: rows for t, rows in evidence.items() if t in targets}
    groups["steps"] = whole_steps(list(cases))
    roles: dict[str, Role] = {m.case.id: "held out" for m in cases if m.case.operator.startswith("unseen ")}
    for members in groups.values():
        fitted, held_out = split(members)
        roles |= {m.case.id: "fitted" for m in fitted}
        roles |= {m.case.id: "held out" for m in held_out}
    return roles
