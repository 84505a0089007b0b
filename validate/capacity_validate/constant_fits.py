"""Fit the step-model constants of each kernel to its measured cases; few cases allow only few constants.

Cases are split into fitted and held-out ones by whole shapes, because cases of a fitted shape would be easy to predict:
a multiplication [m, k] x [k, n] with another m runs the same kernels on the same weights. If only some m were held out,
the error would measure interpolation, not the prediction of a new matrix.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from hashlib import md5
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
from capacity.hardware.coefficients import Coefficients, Fit, RooflineCoefficients, StepCoefficients
from capacity.step import StepShape
from capacity.step.model import StepModel
from capacity.step.operators import p_norm
from capacity.step.setting import HostTime, graph_sizes
from capacity_validate.cases import OPERATORS, Case, MeasuredCase
from capacity_validate.predictions import (
    Target,
    calibration_target,
    case_constants,
    formula,
    is_calibration_case,
    profile_lookup,
    step_shape,
)

MIN_SHAPES = 3  # largest and smallest are fitted, so at least one is between them
MIN_HELD_OUT = 0.2  # minimum fraction of cases in held-out shapes
ENOUGH_HELD_OUT = 0.3  # sufficient fraction of cases, so that no two neighbours by size are held out
MIN_HELD_OUT_CASES = 3  # minimum number of held-out cases
MIN_CASES_FOR_ENDS = 4  # minimum number of cases of a shape to fit both ends


def split_cases(measured: Sequence[MeasuredCase]) -> tuple[list[MeasuredCase], list[MeasuredCase]]:
    """Split each operator's cases into fitted and held-out ones, chosen by size and case id, never by time.

    Every second shape in order of size is held out, up to half of the cases, but never the smallest or largest,
    because a fit should interpolate. With too few shapes, half of the cases are held out, without the
    smallest and largest if there are enough.
    """
    fitted: list[MeasuredCase] = []
    held_out: list[MeasuredCase] = []
    for operator in dict.fromkeys(m.case.operator for m in measured):
        members = [m for m in measured if m.case.operator == operator]
        chosen = _choose_shapes(members) or _choose_cases(members)
        held_out += (m for m in members if m.case.id in chosen)
        fitted += (m for m in members if m.case.id not in chosen)
    return fitted, held_out


def describe_split(measured: Sequence[MeasuredCase]) -> str:
    """Return a description of the cases that `split_cases` holds out."""
    seen, held = ({shape_key(m.case) for m in half} for half in split_cases(measured))
    if held and not held & seen:
        return f"whole shapes: {len(held)} of {len(held | seen)}, every second one by size"
    return f"half of the cases of {len(held | seen)} shape(s), chosen by a hash of the case id"


def shape_key(case: Case) -> Hashable:
    """Return the shape of a case without its load (tokens, batch): a matrix, attention heads, an expert layer."""
    loads = OPERATORS.get(case.operator, {}).get("loads", ())
    return case.operator, tuple(entry for entry in case.sizes if entry[0] not in loads)


def case_work(measured: MeasuredCase) -> float:
    """Return a size to sort cases by: FLOP + bytes, or the product of the case's dimensions if both are unknown."""
    return (measured.flops + measured.bytes) or float(math.prod(size for _, size in measured.case.sizes))


def digest(text: str) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()


def _choose_shapes(members: Sequence[MeasuredCase]) -> set[str]:
    """Return the ids of all cases of the held-out shapes; empty if there are too few shapes."""
    shapes: dict[Any, list[MeasuredCase]] = {}
    for member in members:
        shapes.setdefault(shape_key(member.case), []).append(member)
    if len(shapes) < MIN_SHAPES:
        return set()
    ordered = sorted(shapes, key=lambda key: (math.prod(size for _, size in key[1]), str(key)))
    inner = ordered[1:-1]
    chosen: set[str] = set()
    for turn in (inner[::2], inner[1::2]):
        if len(chosen) >= max(MIN_HELD_OUT_CASES, ENOUGH_HELD_OUT * len(members)):
            break
        for key in turn:
            if len(chosen) + len(shapes[key]) <= len(members) // 2:
                chosen |= {m.case.id for m in shapes[key]}
    chosen = chosen or {m.case.id for m in min((shapes[key] for key in inner), key=len)}
    return chosen if len(chosen) >= MIN_HELD_OUT * len(members) else set()


def _choose_cases(members: Sequence[MeasuredCase]) -> set[str]:
    """Return the ids of half of the cases, without the smallest and largest case if there are enough."""
    ordered = sorted(members, key=lambda m: (case_work(m), m.case.id))
    inner = ordered[1:-1] if len(ordered) >= MIN_CASES_FOR_ENDS else ordered
    by_digest = sorted(inner, key=lambda m: digest(m.case.id))
    return {m.case.id for m in by_digest[: len(members) // 2]}


ROWS_PER_CONSTANT = 3
MIN_CONSTANTS = 2
AT_BOUND = 0.999
CONTRADICTION = 0.5  # a family with a larger median error has inconsistent evidence
_RANGES = {
    "compute_fraction": (0.003, 1.0),
    "bandwidth_fraction": (0.003, 1.0),
    "routed_fraction": (0.003, 1.0),
    "quantize_fraction": (0.003, 1.0),
    "sharpness": (1.0, 16.0),
    "fixed_s": (1e-7, 1e-2),
    "occupancy_s": (1e-8, 1e-2),
    "per_doubling_s": (1e-8, 1e-3),
    "per_k_s": (1e-13, 1e-8),
    "one_shot_fixed_s": (1e-7, 1e-2),
    "one_shot_fraction": (0.003, 1.0),
    "two_shot_fixed_s": (1e-7, 1e-2),
    "two_shot_fraction": (0.003, 1.0),
    "two_shot_gain": (0.7, 2.0),
    "per_rank_s": (1e-9, 1e-5),
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
    before = case_constants(rows[0].case, profile_lookup(profile, target.engine))
    order = [
        n
        for n in OPERATORS[target.operator]["constants"]
        if (profile.architecture != "cpu" or n not in _GPU_ONLY)
        and (n != "quantize_fraction" or (target.engine and before.quantize_fraction))
    ]
    if len(fitted_rows) // ROWS_PER_CONSTANT < MIN_CONSTANTS or not held_out:
        needed = 2 * ROWS_PER_CONSTANT * MIN_CONSTANTS
        reason = f"{len(rows)} cases are too few: {needed} are needed"
        return RejectedFit(family=target.label, rows=len(rows), reason=reason)
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
    collective = {} if isinstance(before, RooflineCoefficients) else {"sharpness": _COLLECTIVE_SHARPNESS}
    ranges = _RANGES | collective
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
    for engines use them only if the profile has no engine's constants; otherwise `card_ratios` corrects those. The
    constants of an engine's own operators are stored in `families.ENGINE@VERSION`, for predictions of this engine.
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
            continue
        kernels = families.setdefault(fit.target.engine or family, {})
        if key:
            kernels.setdefault(operator, {})[key] = after
        else:
            kernels[operator] = after
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
