"""Evaluate existing measurement files, on any machine: predictions before and after calibration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

from capacity.base.html import table_html
from capacity.base.record import AnswerRecord, make_from
from capacity.hardware import HardwareProfile
from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import Chart, listed
from capacity.report.figures.drawing import draw_chart
from capacity.report.figures.parity import Compared, parity_figure
from capacity.report.sheet import Sheet
from capacity.report.tables_html import parts_html
from capacity.report.views import units
from capacity.report.views.layout import draw_table
from capacity.report.views.view import Bars, Column, Table
from capacity_validate.calibrating import (
    ChangedConstant,
    base_profile,
    changed_constants,
    combine_cases,
    find_named_model,
    fit_half,
)
from capacity_validate.cases import MeasuredCase, read_measurements
from capacity_validate.constant_fits import FamilyFit, evidence_by_target, split_cases
from capacity_validate.plausibility import bound_remarks, outlying_shapes, roof_fraction, timing_remarks
from capacity_validate.predictions import Predictor
from capacity_validate.report_data import CaseRow, ClassErrors, Role, class_errors
from capacity_validate.residuals import full_depth_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Review(AnswerRecord):
    """The evaluation of measurement files with a profile. The fit did not use cases with the role "held out"."""

    SCHEMA: ClassVar[str] = "capacity/review/v1"

    device: str
    profile: str
    files: tuple[str, ...]
    roofs: Mapping[str, float]
    cases: tuple[CaseRow, ...]
    classes: tuple[ClassErrors, ...]
    constants: tuple[ChangedConstant, ...]
    refused: Mapping[str, str]
    # from the times alone: reduced clocks, kernels unlike their family
    remarks: tuple[str, ...] = ()


def review(
    measurements: Sequence[str | Path], *, gpu: str | None = None, profiles: Sequence[str] = ()
) -> Review:
    """Predict every measured case with the profile, and with the profile fitted to the other half of the cases.

    Writes nothing and needs no device. `gpu` overrides the profile that the files name. Raises InvalidInput,
    MalformedFile, and OutsideValidity for files that contradict each other.
    """
    files = [read_measurements(path) for path in measurements]
    profile = base_profile(files, gpu=gpu, directories=tuple(profiles))
    cases = combine_cases(files)
    model = find_named_model(files, "model")
    unseen = find_named_model(files, "unseen")
    half = fit_half(cases, profile, source="review", model=model, unseen=unseen)
    fits = half.fits
    after = half.after if fits else half.before
    rows = case_rows(cases, half.before, after, case_roles(cases, fits, profile))
    return Review(
        device=str(files[0].environment.get("device")),
        profile=profile.name,
        files=tuple(file.path for file in files),
        roofs={"hbm_bytes_per_s": profile.hbm_bytes_per_s, **profile.dense_flops_per_s},
        cases=rows,
        classes=class_errors(rows),
        constants=changed_constants(fits),
        refused={entry.family: entry.reason for entry in half.refused},
        remarks=(
            *timing_remarks(cases),
            *outlying_shapes(cases, fits, profile),
            *bound_remarks(fits),
        ),
    )


def case_rows(
    cases: Sequence[MeasuredCase], before: Predictor, after: Predictor, roles: Mapping[str, Role]
) -> tuple[CaseRow, ...]:
    """Return a row per timed case with both predictions; `after` predicts only the cases in `roles`."""
    return tuple(
        make_from(
            CaseRow,
            m.timing,
            id=m.case.id,
            family=m.case.family,
            role=roles.get(m.case.id, "shown"),
            measured_s=m.seconds,
            before_s=before.seconds(m.case),
            after_s=after.seconds(m.case) if m.case.id in roles else None,
            flops=m.flops,
            bytes=m.bytes,
            reference_error=m.reference_error,
            extra_bytes=m.extra_bytes,
            roof_fraction=roof_fraction(m, before.profile),
        )
        for m in cases
        if m.status == "ok" and (before.model is not None or not m.case.operator.startswith("model "))
    )


def case_roles(
    cases: Sequence[MeasuredCase], fits: Sequence[FamilyFit], profile: HardwareProfile
) -> dict[str, Role]:
    """Return each case's role in the fits, "fitted" or "held out", by case id; omit cases that no fit uses."""
    targets = {fit.target for fit in fits}
    evidence = evidence_by_target(cases, profile)
    groups: dict[Any, list[MeasuredCase]] = {t: rows for t, rows in evidence.items() if t in targets}
    groups["steps"] = full_depth_steps(list(cases))
    roles: dict[str, Role] = {m.case.id: "held out" for m in cases if m.case.operator.startswith("unseen ")}
    for members in groups.values():
        fitted, held_out = split_cases(members)
        roles |= {m.case.id: "fitted" for m in fitted}
        roles |= {m.case.id: "held out" for m in held_out}
    return roles


SIDES = (("uncalibrated profile", "before_s"), ("calibrated on the other half", "after_s"))


def parity_chart(cases: Sequence[CaseRow], device: str, shown_in: Units = STANDARD) -> Chart:
    """Return a chart of predicted against measured times: for held-out cases if there are any, otherwise for all."""
    held_out = [row for row in cases if row.role == "held out"]
    rows = held_out or list(cases)
    groups = {
        name: [Compared(row.id, row.measured_s, getattr(row, field)) for row in rows if getattr(row, field)]
        for name, field in SIDES
    }
    figure = parity_figure({name: points for name, points in groups.items() if points}, shown_in)
    what = "held-out cases" if held_out else "cases (none held out)"
    return Chart(
        name="parity",
        title=f"{device}: predicted against measured",
        alt=f"{len(rows):,} {what} of {len(cases):,}; exact predictions lie on the line.",
        figure=figure,
        rows=tuple(
            {
                "case": row.id,
                "role": row.role,
                "measured, s": row.measured_s,
                "before, s": row.before_s,
                "after, s": row.after_s,
                "error before": row.error_before,
                "error after": row.error_after,
            }
            for row in cases
        ),
    )


def errors_chart(review: Review) -> Chart:
    """Return a chart of the median error of each kind of case (`family`), before and after calibration."""
    judged = [c for c in review.classes if c.after_median is not None]
    said = [f"{c.family} from {c.before_median:.0%} to {c.after_median:.0%}" for c in judged]
    chart = draw_chart(
        Bars(
            name="errors_by_class",
            title="Error before and after calibration, on held-out cases",
            alt=f"{listed(said)}." if said else "There are too few cases to calibrate.",
            data={
                "before": {c.family: c.before_median for c in review.classes},
                "after": {c.family: c.after_median for c in review.classes},
            },
            unit=units.PERCENT,
            axis="median error, %",
            rows=[
                {
                    "class": c.family,
                    "cases": c.cases,
                    "held out": c.held_out,
                    "median before": c.before_median,
                    "p90 before": c.before_p90,
                    "median after": c.after_median,
                    "p90 after": c.after_p90,
                }
                for c in review.classes
            ],
        )
    )
    chart.figure.update_traces(textposition="outside")  # the shortest bars have no room for text
    return chart


QUESTION = "How accurate are predictions for this device?"
SHARE = units.Unit(1, 100, "%", none="")
CLASSES = [
    Column("class", "family"),
    Column("cases", "cases"),
    Column("held out", "held_out"),
    Column("median error before", "before_median", SHARE),
    Column("p90 before", "before_p90", SHARE),
    Column("median error after", "after_median", SHARE),
    Column("p90 after", "after_p90", SHARE),
]


def review_html(review: Review, *, python: str | None = None, made: date | None = None) -> str:
    """Return the review as one self-contained HTML file that shows `python`, the code that repeats the review."""
    moved = [(row.family, row.name, f"{row.before:.4g}", f"{row.after:.4g}") for row in review.constants]
    constants = table_html(("family", "constant", "profile", "calibrated"), moved) if moved else ""
    return Sheet(
        question=QUESTION,
        subject=f"{review.device}, profile {review.profile}",
        answer=parts_html([draw_table(Table("", review.classes, CLASSES))]),
        charts=[
            chart for chart in (parity_chart(review.cases, review.device), errors_chart(review)) if chart.rows
        ],
        more=(("The profile before and after calibration", constants),),
        assumptions=[
            "The errors in a row are those of its held-out cases, or of all its cases if none is held out.",
            *(f"{family}: not changed: {reason}" for family, reason in review.refused.items()),
            *review.remarks,
        ],
        sources=[f"measurements: {Path(file).name}" for file in review.files],
        asked=[("In Python", python)] if python else [],
    ).html(made)
