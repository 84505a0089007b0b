"""Fit the step-model constants of each kernel to its measured cases; few cases allow only few constants."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from types import SimpleNamespace
from typing import Any

import numpy as np

from capacity.hardware import HardwareProfile
from capacity.hardware.calibration import (
    ErrorSummary,
    Measurement,
    Parameter,
    fit_constants,
    summarise_errors,
)
from capacity.hardware.coefficients import Coefficients, CollectiveCoefficients, Fit, StepCoefficients
from capacity.step import StepShape
from capacity.step.model import StepModel
from capacity.step.operators import p_norm
from capacity.step.setting import HostTime, graph_sizes
from capacity_validate.cases import OPERATORS, MeasuredCase
from capacity_validate.predictions import (
    Target,
    calibration_target,
    case_constants,
    formula,
    is_calibration_case,
    profile_lookup,
    step_shape,
)
from capacity_validate.splitting import describe_split, split_cases

ROWS_PER_CONSTANT = 3
MIN_CONSTANTS = 2
AT_BOUND = 0.999
CONTRADICTION = 0.5  # a family with a larger median error has inconsistent evidence
_RANGES = {
    "compute_fraction": (0.003, 1.0),
    "bandwidth_fraction": (0.003, 1.0),
    "routed_fraction": (0.003, 1.0),
    "sharpness": (1.0, 16.0),
    "fixed_s": (1e-7, 1e-2),
    "occupancy_s": (1e-8, 1e-2),
    "per_doubling_s": (1e-8, 1e-3),
    "per_k_s": (1e-13, 1e-8),
}
_GPU_ONLY = ("per_doubling_s", "per_k_s")  # per doubling of context slices, and per K step of a block
_COLLECTIVE_SHARPNESS = (0.3, 16.0)  # range of a collective's sharpness, which may be below 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFit:
    """The constants of one kernel (`target`), and their errors on held-out cases, each before and after the fit."""

    target: Target
    before: Coefficients
    after: Coefficients
    fitted: tuple[str, ...]  # the constants that the evidence supports
    rows: int
    error_before: ErrorSummary  # held out
    error_after: ErrorSummary  # held out

    @property
    def moved(self) -> dict[str, tuple[float, float]]:
        return {name: (getattr(self.before, name), getattr(self.after, name)) for name in self.fitted}

    @property
    def at_bounds(self) -> tuple[str, ...]:
        """Return the names of fitted fractions of peak rates that reached 1. The peak is too low then, or times are
        wrong."""
        return tuple(n for n in self.fitted if n.endswith("_fraction") and getattr(self.after, n) >= AT_BOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedFit:
    """A kernel whose constants were not fitted, with its number of cases and the reason."""

    family: str
    rows: int
    reason: str


def fit_families(
    measured: Sequence[MeasuredCase],
    profile: HardwareProfile,
    *,
    source: str,
    final: bool = False,
) -> tuple[list[FamilyFit], list[RejectedFit]]:
    """Fit each kernel's constants to half of its cases; the errors are those on the other half.

    With `final`, the returned constants are fitted to all cases instead, for use in a profile.
    """
    fits: list[FamilyFit] = []
    refused: list[RejectedFit] = []
    for target, rows in evidence_by_target(measured, profile).items():
        usable = [row for row in rows if formula(row.case, profile) is not None]
        if not usable:
            reason = f"profile {profile.name} has no peak FLOP/s for this number format"
            refused.append(RejectedFit(family=target.label, rows=len(rows), reason=reason))
            continue
        outcome = _fit_family(target, usable, profile, source=source, final=final)
        (fits if isinstance(outcome, FamilyFit) else refused).append(outcome)  # type: ignore[arg-type]
    return fits, refused


def evidence_by_target(
    measured: Iterable[MeasuredCase], profile: HardwareProfile
) -> dict[Target, list[MeasuredCase]]:
    """Group the timed cases by the constants that they calibrate. Omit kernel variants that engines do not run.

    If short cases of a kernel were timed in CUDA graphs, exclude those timed without one, because their times include
    launch gaps. Also exclude cases whose clocks were reduced in nearly all samples.
    """
    groups: dict[Target, list[MeasuredCase]] = {}
    for case in measured:
        target = calibration_target(case.case)
        usable = case.status == "ok" and not case.slowed
        if target is not None and usable and is_calibration_case(case.case, profile):
            groups.setdefault(target, []).append(case)
    for target, rows in groups.items():
        if any(row.timing is not None and row.timing.how == "graph" for row in rows):
            groups[target] = [row for row in rows if not row.has_launch_gaps]
    return groups


def _fit_family(
    target: Target,
    rows: Sequence[MeasuredCase],
    profile: HardwareProfile,
    *,
    source: str,
    final: bool,
) -> FamilyFit | RejectedFit:
    fitted_rows, held_out = split_cases(rows)
    order = [
        n
        for n in OPERATORS[target.operator]["constants"]
        if profile.architecture != "cpu" or n not in _GPU_ONLY
    ]
    if len(fitted_rows) // ROWS_PER_CONSTANT < MIN_CONSTANTS or not held_out:
        needed = 2 * ROWS_PER_CONSTANT * MIN_CONSTANTS
        reason = f"{len(rows)} cases are too few: {needed} are needed"
        return RejectedFit(family=target.label, rows=len(rows), reason=reason)
    before = case_constants(rows[0].case, profile_lookup(profile))
    names = order[: len(fitted_rows) // ROWS_PER_CONSTANT]
    half = _solve(before, names, fitted_rows, profile)
    error = _errors(half, held_out, profile)
    if error.median > CONTRADICTION:
        reason = (
            "inconsistent cases: with constants fitted to one half, the median error on the other half is "
            f"{error.median:.0%}"
        )
        return RejectedFit(family=target.label, rows=len(rows), reason=reason)
    names = order[: len(rows) // ROWS_PER_CONSTANT] if final else names
    constants = _solve(before, names, rows, profile) if final else half
    fit = Fit(
        basis="fitted",
        source=source,
        date=date.today().isoformat(),
        rows=len(rows) if final else len(fitted_rows),
        held_out_by=describe_split(rows),
        median_error=round(error.median, 4),
        p90_error=round(error.p90, 4),
    )
    return FamilyFit(
        target=target,
        before=before,
        after=type(before).model_validate({**constants, "fit": fit}),
        fitted=tuple(names),
        rows=len(rows),
        error_before=_errors(before.model_dump(exclude={"fit"}), held_out, profile),
        error_after=error,
    )


def _solve(
    before: Any, names: Sequence[str], rows: Sequence[MeasuredCase], profile: HardwareProfile
) -> dict[str, Any]:
    """Return all constants of a kernel: `names` fitted, others as in `before` (but `sharpness` limited to 4)."""
    start: dict[str, Any] = before.model_dump(exclude={"fit"})
    if "sharpness" in start and "sharpness" not in names:
        start["sharpness"] = min(start["sharpness"], 4.0)
    ranges = _RANGES | (
        {"sharpness": _COLLECTIVE_SHARPNESS} if isinstance(before, CollectiveCoefficients) else {}
    )
    parameters = [
        Parameter(name=name, start=min(max(start.get(name) or low, low), high), low=low, high=high)
        for name in names
        for low, high in [ranges[name]]
    ]
    measurements = [
        Measurement(row=formula(row.case, profile), seconds=row.seconds, group=row.case.id) for row in rows
    ]

    def predict(constants: Mapping[str, float], function: Any) -> float:
        return max(1e-12, float(function(SimpleNamespace(**{**start, **constants}))))

    solved = fit_constants(predict, measurements, parameters)
    return start | {name: float(f"{min(value, _RANGES[name][1]):.4g}") for name, value in solved.items()}


def _errors(
    constants: Mapping[str, Any], rows: Sequence[MeasuredCase], profile: HardwareProfile
) -> ErrorSummary:
    space = SimpleNamespace(**constants)
    functions = ((formula(row.case, profile), row.seconds) for row in rows)
    pairs = [(function(space), seconds) for function, seconds in functions if function is not None]
    return summarise_errors(pairs, groups=len(pairs))


def calibrated_profile(
    profile: HardwareProfile, fits: Sequence[FamilyFit], *, family: str, name: str | None = None
) -> HardwareProfile:
    """Return the profile with the fitted constants; everything else, including provenance, is unchanged.

    The constants describe the harness's kernels and are stored in the profile's table `families.FAMILY`. Predictions
    for engines use them only if the profile has no engine's constants; otherwise `card_ratios` corrects those.
    """
    raw = profile.step_time
    tables: dict[str, Any] = (
        StepCoefficients.model_validate(raw).model_dump(mode="json", exclude_none=True)
        if raw is not None
        else {}
    )
    tables["gpu"] = name or profile.name
    families = tables.setdefault("families", {})
    for fit in fits:
        after = fit.after.model_dump(mode="json", exclude_none=True)
        operator, key = fit.target.operator, fit.target.key
        if operator == "nccl":
            tables.setdefault("nccl", {})[key] = after
        elif operator == "elementwise":
            families.setdefault(family, {})["elementwise"] = after
        else:
            families.setdefault(family, {}).setdefault(operator, {})[key] = after
    return profile.model_copy(
        update={"step_time": StepCoefficients.model_validate(tables), "name": name or profile.name}
    )


def fit_host_time(
    measured: Sequence[MeasuredCase],
    steps: StepModel,
    *,
    window_tokens: int | None = None,
    graphs: bool = False,
) -> HostTime:
    """Fit the time that the harness's loop adds to a step: a constant and a part per sequence, both at least 0.

    With `graphs` (as on a GPU), decode steps replay graphs and prefills launch kernel by kernel. The launch time of
    prefills is then fitted too; it adds nothing to steps with a longer GPU time. Minimises squared relative errors of
    the measured time minus the sum of the operators' times. `steps` must not include a host time.
    """
    rows = [(step_shape(case.case, window_tokens), case.seconds) for case in measured]
    if not rows:
        return HostTime()
    on_device = [(steps.step_seconds(shape), shape, seconds) for shape, seconds in rows]
    prefills = [seconds for shape, seconds in rows if shape.prefill_tokens]
    eager_s = _eager_s(on_device, max(prefills)) if graphs and prefills else 0.0
    _, step_s, per_sequence_s = _host_constants(on_device, eager_s)
    host = HostTime(step_s=step_s, per_sequence_s=per_sequence_s, overlapped=False)
    if not graphs:
        return host
    sizes = graph_sizes(max(1, *(shape.decode_sequences for shape, _ in rows)))
    return replace(host, eager_s=eager_s, graph_sizes=sizes, graphs_for_prefill=False)


def _eager_s(rows: Sequence[tuple[float, StepShape, float]], most_s: float) -> float:
    """Return the prefill launch time (s) with the smallest error: a grid search, refined around the best point."""
    from scipy.optimize import minimize_scalar

    grid = [0.0, *np.geomspace(1e-5, most_s, 40)]
    errors = [_host_constants(rows, eager_s)[0] for eager_s in grid]
    best = int(np.argmin(errors))
    bounds = (grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)])
    found = minimize_scalar(
        lambda eager_s: _host_constants(rows, eager_s)[0], bounds=bounds, method="bounded"
    )
    return float(found.x) if found.fun < errors[best] else float(grid[best])


def _host_constants(
    rows: Sequence[tuple[float, StepShape, float]], eager_s: float
) -> tuple[float, float, float]:
    """Fit the host time for a given prefill launch time; return error norm, s per step, and s per sequence."""
    from scipy.optimize import nnls

    sharpness = HostTime().overlap_sharpness
    matrix, target = [], []
    for gpu_s, shape, seconds in rows:
        launched = p_norm(gpu_s, eager_s, sharpness) if eager_s and shape.prefill_tokens else gpu_s
        sequences = shape.prefill_sequences + shape.decode_sequences
        matrix.append([1.0 / seconds, sequences / seconds])
        target.append((seconds - launched) / seconds)
    (step_s, per_sequence_s), error = nnls(np.array(matrix), np.array(target))
    return float(error), float(step_s), float(per_sequence_s)
