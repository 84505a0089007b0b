"""The result of a validation run: measurements, predictions before and after calibration, and a verdict."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from capacity.base.record import AnswerRecord, WrittenRecord
from capacity_validate.cases import ON_HOST, Finding, MeasuredCase, Status
from capacity_validate.comparison import Comparison
from capacity_validate.constant_fits import RejectedFit
from capacity_validate.speculative_decoding import SpeculativeRun

MIN_HELD_OUT = 3  # minimum number of steps for a verdict
_FAILURES: dict[Status, str] = {
    "wrong": "kernels gave wrong results",
    "implausible": "cases have impossible times",
    "failed": "kernels failed",
}
Role = Literal["fitted", "held out", "shown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow(WrittenRecord):
    """One timed case: its measurement, its prediction before and after calibration, and its role in the fit."""

    LAST: ClassVar[tuple[str, ...]] = ("error_before", "error_after", "flops_per_s", "bytes_per_s")

    id: str
    family: str
    role: Role
    measured_s: float
    spread: float
    repetitions: int
    before_s: float | None
    after_s: float | None
    flops: float
    bytes: float
    reference_error: float | None
    extra_bytes: float | None
    how: str = ""  # timed by: thread time, wall time, events, graph
    roof_fraction: float | None = None  # roof time over measured time
    standard_error: float = 0.0  # of the median, relative

    @property
    def is_step(self) -> bool:
        return self.family.startswith(("model ", "unseen "))

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.measured_s

    @property
    def bytes_per_s(self) -> float:
        """Return bytes per second; for a collective, the bus bandwidth as nccl-tests define it."""
        return self.bytes / self.measured_s

    @property
    def error_before(self) -> float | None:
        return None if self.before_s is None else self.before_s / self.measured_s - 1

    @property
    def error_after(self) -> float | None:
        return None if self.after_s is None else self.after_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassErrors:
    """Absolute errors of one kind of case (`family`): of its held-out cases if it was fitted, otherwise of all."""

    family: str
    cases: int
    held_out: int
    before_median: float
    before_p90: float
    after_median: float | None
    after_p90: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingComparison(WrittenRecord):
    """One short serving run: measured, and simulated with the calibrated and uncalibrated model. Times in s."""

    LAST: ClassVar[tuple[str, ...]] = ("ttft_error", "tpot_error")

    requests: int
    rate_per_s: float
    steps: int
    equal_steps: int  # steps that the simulator schedules identically
    step_error_median: float
    measured_ttft_s: float
    measured_tpot_s: float
    simulated_ttft_s: float
    simulated_tpot_s: float
    uncalibrated_ttft_s: float
    uncalibrated_tpot_s: float
    busy_fraction: float

    @property
    def ttft_error(self) -> float:
        return self.simulated_ttft_s / self.measured_ttft_s - 1

    @property
    def tpot_error(self) -> float:
        return self.simulated_tpot_s / self.measured_tpot_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstants:
    """The fitted constants of a kernel before and after the fit, and its median errors on held-out cases."""

    family: str
    rows: int
    moved: dict[str, tuple[float, float]]
    held_out_before: float
    held_out_after: float
    held_out_after_p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTimed:
    """A case without a time, and the reason."""

    id: str
    status: Status
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """The decode step time with all layers: extrapolated from two measured layer counts, and predicted."""

    layers: float
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport(AnswerRecord):
    """The result of a validation. `exit_code`: 0 passed, 1 a check or tolerance failed, 3 too little measured."""

    SCHEMA: ClassVar[str] = "capacity/validation/v1"
    LAST: ClassVar[tuple[str, ...]] = ("operator_error", "unseen_errors", "failures", "verdict", "exit_code")

    environment: dict[str, Any]
    campaign: str
    profile: str
    roofs: dict[str, float]
    seconds: float
    cases: tuple[CaseRow, ...]
    not_timed: tuple[NotTimed, ...]
    left_out: tuple[str, ...]
    classes: tuple[ClassErrors, ...]
    constants: tuple[FittedConstants, ...]
    refused: tuple[RejectedFit, ...]
    bands: dict[str, tuple[float, float]]  # of the calibrated profile, by regime: measured / predicted - 1
    host: dict[str, float] | None
    findings: tuple[Finding, ...]
    serving: tuple[ServingComparison, ...]
    speculation: tuple[SpeculativeRun, ...]
    memory: dict[str, float]
    extrapolation: Extrapolation | None
    tolerance_ttft: float
    tolerance_tpot: float
    ttft_error: float | None  # median of held-out prefills, calibrated
    tpot_error: float | None  # median of held-out decode steps, calibrated
    interrupted: bool
    broken: tuple[str, ...]  # failed stages, with the reason
    remarks: tuple[str, ...]
    unseen: str | None = None  # the model whose steps were held out
    engine: Comparison | None = None  # a real engine on the same device, against its simulation

    @property
    def operator_error(self) -> tuple[float, float] | None:
        """Return the median absolute errors of held-out kernel cases, before and after calibration; None without such
        cases."""
        rows = [r for r in self.cases if r.role == "held out" and not r.is_step]
        before = [abs(r.error_before) for r in rows if r.error_before is not None]
        after = [abs(r.error_after) for r in rows if r.error_after is not None]
        return (statistics.median(before), statistics.median(after)) if before and after else None

    @property
    def failures(self) -> tuple[str, ...]:
        """Return a text for each failed check, exceeded tolerance, kind of failed case, and failed stage."""
        failed = [f"{f.name} ({f.value:.3g}, limit {f.limit:.3g})" for f in self.findings if not f.passed]
        for name, error, tolerance in (
            ("TTFT", self.ttft_error, self.tolerance_ttft),
            ("TPOT", self.tpot_error, self.tolerance_tpot),
        ):
            if error is not None and error > tolerance:
                failed.append(f"{name} error {error:.0%} exceeds {tolerance:.0%}")
        for status, text in _FAILURES.items():
            if names := [case.id for case in self.not_timed if case.status == status]:
                failed.append(f"{len(names)} {text}: {', '.join(names[:3])}")
        failed += self.broken
        return tuple(failed)

    @property
    def exit_code(self) -> int:
        if self.failures:
            return 1
        return 0 if self.ttft_error is not None and self.tpot_error is not None else 3

    @property
    def verdict(self) -> str:
        """Return a one-sentence verdict that a non-specialist understands."""
        device = self.environment["device"]
        if self.ttft_error is None or self.tpot_error is None:
            return (
                f"On this {device} too little was measured to evaluate the predictions: {len(self.cases)} cases "
                "were timed. Increase --budget."
            )
        times = f"TTFT within {self.ttft_error:.0%} and TPOT within {self.tpot_error:.0%}"
        other = ""
        if (errors := self.unseen_errors) is not None:
            other = (
                f"; for {self.unseen}, a held-out model, prefills within {errors[0]:.0%} and decode steps within "
                f"{errors[1]:.0%}"
            )
        if self.failures:
            return (
                f"On this {device} the calibrated model predicts {times} of the measurements{other}, but some "
                f"checks failed: {'; '.join(self.failures)}."
            )
        checked = ", and every checked inference technique gave the correct result" if self.findings else ""
        if self.findings and self.environment.get("kind") != "cpu":
            on_host = sum(f.device == ON_HOST for f in self.findings)
            checked += f" ({len(self.findings) - on_host} on this GPU, {on_host} on its host's CPU)"
        return (
            f"On this {device} the calibrated model predicts {times} of the measurements (medians of held-out "
            f"cases){other}{checked}."
        )

    @property
    def unseen_errors(self) -> tuple[float, float] | None:
        """Return the held-out model's median absolute errors (prefill, decode step) after calibration."""
        prefill, decode = (median_error(self.cases, f"unseen {phase}") for phase in ("prefill", "decode"))
        return None if prefill is None or decode is None else (prefill, decode)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values, including the engine comparison in its own schema."""
        engine = None if self.engine is None else self.engine.to_dict()
        return {**AnswerRecord.to_dict(self), "engine": engine}

    def write_json(self, path: Path) -> None:
        path.write_text(
            json.dumps(replace_non_finite(self.to_dict()), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )


def replace_non_finite(value: Any) -> Any:
    """Return the value with null in place of NaN and infinity, which JSON does not allow."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def class_errors(rows: Iterable[CaseRow]) -> tuple[ClassErrors, ...]:
    """Return the errors of each kind of case (`family`) that the step model predicts, in the order of first cases."""
    predicted = [row for row in rows if row.before_s is not None]
    families = dict.fromkeys(row.family for row in predicted)
    return tuple(
        _summarise_class(family, [row for row in predicted if row.family == family]) for family in families
    )


def _summarise_class(family: str, members: Sequence[CaseRow]) -> ClassErrors:
    held_out = [row for row in members if row.role == "held out"]
    scored = held_out or members
    before = sorted(abs(r.error_before) for r in scored if r.error_before is not None)
    after = sorted(abs(r.error_after) for r in held_out if r.error_after is not None)
    return ClassErrors(
        family=family,
        cases=len(members),
        held_out=len(held_out),
        before_median=float(np.quantile(before, 0.5)),
        before_p90=float(np.quantile(before, 0.9)),
        after_median=float(np.quantile(after, 0.5)) if after else None,
        after_p90=float(np.quantile(after, 0.9)) if after else None,
    )


def median_error(rows: Iterable[CaseRow], operator: str) -> float | None:
    """Return an operator's median absolute error on held-out cases after calibration; None for fewer than three."""
    errors = [
        abs(r.error_after)
        for r in rows
        if r.role == "held out" and r.family.startswith(operator) and r.error_after is not None
    ]
    return statistics.median(errors) if len(errors) >= MIN_HELD_OUT else None


def untimed_cases(measured: Iterable[MeasuredCase]) -> tuple[NotTimed, ...]:
    return tuple(NotTimed(id=m.case.id, status=m.status, note=m.note) for m in measured if m.status != "ok")
