"""Detection of implausible times: faster than the card allows, equal for all sizes, drifting, or far from the fit.

Check that measurements were taken on the named GPU while it was idle and at its usual clocks.

The header of a measurement file has the card's facts before the run. Each run ends with a summary line: its drift, the
measurements of the reference case, throttling, other processes, and the verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from capacity.base.errors import InvalidInput
from capacity.hardware import HardwareProfile, profile_names
from capacity_validate.cases import UNKNOWN_GPU, MeasuredCase, Measurements
from capacity_validate.constant_fits import FamilyFit, evidence_by_target, shape_key
from capacity_validate.devices import BUSY_FRACTION
from capacity_validate.predictions import formula, peak_flops_per_s
from capacity_validate.profile_match import POWER_CAP_FRACTION, is_card_of_profile

if TYPE_CHECKING:
    from capacity_validate.report_data import ValidationReport
    from capacity_validate.session import Session
    from capacity_validate.stages import StageResults

COMPUTE_SLACK = 1.15  # relative to the datasheet; gaming cards exceed its boost clock
MEMORY_SLACK = 1.10  # part of the rotating inputs may still be in the L2 cache
WRONG_CLOCK = 1.5  # of the datasheet's bandwidth; faster copies show that the clock or the device is wrong
# operators whose inputs do not rotate, so memory bandwidth is no limit
KEPT_IN_CACHE = ("elementwise", "prefill_attention", "mla_prefill")
ENOUGH_IMPLAUSIBLE = 3  # number of cases after which the run ends: the clock or the device is wrong
EQUAL_WITHIN = 0.005  # times of one shape with a smaller relative difference are equal
MIN_SIMILAR_CASES = 3
WORK_RATIO = 8.0  # ratio of work above which times should differ
# minimum share of work in the larger time; below it, launch overhead explains equal times
WORK_SHARE = 0.3
ODD_SPREADS = 4.0  # in robust standard deviations from the other shapes
ODD_FACTOR = 1.4  # minimum factor, slower or faster than the other shapes
MIN_SHAPES = 3
DRIFT = 0.10  # limit for a GPU, from the first pass to the last
DRIFT_CPU = 0.50  # limit for a shared machine


def roof_seconds(measured: MeasuredCase, profile: HardwareProfile) -> float | None:
    """Return the minimum time of a case in s, given the profile's roofs; None if its work or a roof is unknown."""
    case = measured.case
    if not measured.flops and not measured.bytes:
        return None
    if case.operator == "collective":
        return measured.bytes / profile.link_for(case["ranks"]).bytes_per_s
    if case.operator == "transfer":
        return measured.bytes / profile.pcie.bytes_per_s
    compute_s = _compute_seconds(measured, profile)
    memory_s = measured.bytes / profile.hbm_bytes_per_s
    return None if compute_s is None else max(compute_s, memory_s)


def roof_fraction(measured: MeasuredCase, profile: HardwareProfile) -> float | None:
    """Return roofline time / measured time, above 1 if inputs were in a cache; None if either time is unknown."""
    least_s = roof_seconds(measured, profile)
    return None if not least_s or measured.timing is None else least_s / max(measured.seconds, 1e-12)


def reach_remarks(measured: Iterable[MeasuredCase], profile: HardwareProfile) -> tuple[str, ...]:
    """Return a remark with the best copy and matrix multiplication rates, as fractions of the profile's peaks."""
    timed = [m for m in measured if m.status == "ok" and m.timing is not None]
    copies = [m for m in timed if m.case.operator == "bandwidth" and m.case.variant == "copy"]
    products = [m for m in timed if m.case.operator == "gemm" and m.case.kernel != "fp32"]
    shown = []
    for label, unit, chosen in (("copy", "GB/s", copies), ("matrix multiplication", "TFLOP/s", products)):
        best = max(chosen, key=lambda m: roof_fraction(m, profile) or 0.0, default=None)
        fraction = None if best is None else roof_fraction(best, profile)
        if best is not None and fraction is not None:
            rate = (best.bytes / 1e9 if label == "copy" else best.flops / 1e12) / best.seconds
            rounded = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
            shown.append(
                f"best {label} {rounded} {unit} ({fraction:.0%} of {profile.name}'s roof, {best.case.id})"
            )
    return (f"best rates: {'; '.join(shown)}",) if shown else ()


def _compute_seconds(measured: MeasuredCase, profile: HardwareProfile) -> float | None:
    if measured.case.operator in ("bandwidth", "elementwise"):
        return 0.0  # vector units: profiles lack their rate
    peak = peak_flops_per_s(profile, measured.case.kernel)
    return None if peak is None else measured.flops / peak


def explain_impossible_speed(measured: MeasuredCase, profile: HardwareProfile) -> str | None:
    """Return why a measured time is impossible according to the profile's peak rates; None if it is possible."""
    if measured.timing is None or measured.case.operator in ("collective", "transfer"):
        return None
    seconds = measured.seconds
    compute_s = _compute_seconds(measured, profile)
    if compute_s is not None and compute_s > COMPUTE_SLACK * seconds:
        peak = measured.flops / compute_s
        return f"{measured.flops / max(seconds, 1e-12) / 1e12:.0f} TFLOP/s, but {profile.name} has {peak / 1e12:.0f}"
    memory_s = measured.bytes / profile.hbm_bytes_per_s
    if measured.case.operator not in KEPT_IN_CACHE and memory_s > MEMORY_SLACK * seconds:
        return (
            f"{measured.bytes / max(seconds, 1e-12) / 1e9:.0f} GB/s, but {profile.name} has "
            f"{profile.hbm_bytes_per_s / 1e9:.0f}"
        )
    return None


def is_explained_by_cache(measured: MeasuredCase, profile: HardwareProfile) -> bool:
    """Return whether data in the L2 cache can explain an impossible time: only the memory rate of the case is too high.

    Even copies that flush the cache reach 114 % of an RTX 5090's datasheet bandwidth (nvbench, issue 270, read
    2026-11); at more than `WRONG_CLOCK` times the bandwidth, the clock or the device is wrong. Times that the cache
    explains are marked, but do not show that other cases are wrong.
    """
    compute_s = _compute_seconds(measured, profile) or 0.0
    memory_s = measured.bytes / profile.hbm_bytes_per_s
    copies = measured.case.operator == "bandwidth"
    limit = WRONG_CLOCK if copies else math.inf
    return compute_s <= COMPUTE_SLACK * measured.seconds and memory_s <= limit * measured.seconds


def find_equal_times(measured: Iterable[MeasuredCase], profile: HardwareProfile) -> dict[str, str]:
    """Find cases of one shape whose tokens or batch differ, but not their times; return a text for each case id."""
    shapes: dict[object, list[tuple[float, MeasuredCase]]] = {}
    for case in measured:
        work_s = roof_seconds(case, profile)
        if case.status == "ok" and case.timing is not None and work_s is not None:
            shapes.setdefault((case.case.family, shape_key(case.case)), []).append((work_s, case))
    found: dict[str, str] = {}
    for members in shapes.values():
        times = [case.seconds for _, case in members]
        work = [work_s for work_s, _ in members]
        apart = max(work) > WORK_RATIO * min(work) and max(work) > WORK_SHARE * max(times)
        if len(members) >= MIN_SIMILAR_CASES and apart and max(times) < (1 + EQUAL_WITHIN) * min(times):
            text = f"{len(members)} sizes all take {times[0] * 1e6:.4g} us, although their work differs"
            found |= {case.case.id: text for _, case in members}
    return found


def bound_remarks(fits: Sequence[FamilyFit]) -> tuple[str, ...]:
    """Return a remark for each fitted constant that reached 100 % of a peak rate in the profile."""
    return tuple(
        f"{fit.target.label}: {name} reached its limit, 100 % of the profile's peak rate, so that peak is "
        "probably too low"
        for fit in fits
        for name in fit.at_bounds
    )


def outlying_shapes(
    measured: Sequence[MeasuredCase], fits: Sequence[FamilyFit], profile: HardwareProfile
) -> tuple[str, ...]:
    """Return remarks on shapes whose times differ much from those that their kernel's fitted constants predict."""
    evidence = evidence_by_target(measured, profile)
    remarks = []
    for fit in fits:
        ratios: dict[tuple[str, object], list[float]] = {}
        for row in evidence.get(fit.target, ()):
            function = formula(row.case, profile)
            if function is not None:
                key = (row.case.family, shape_key(row.case))
                ratios.setdefault(key, []).append(math.log(row.seconds / function(fit.after)))
        for (family, shape), off in _outliers(ratios).items():
            sizes = ", ".join(f"{name}={size}" for name, size in shape[1])  # type: ignore[index]
            way = f"{math.exp(off):.1f} times as slow" if off > 0 else f"{math.exp(-off):.1f} times as fast"
            text = "as the other shapes, relative to the fit: check this kernel and its timing"
            remarks.append(f"{family} with {sizes} is {way} {text}")
    return tuple(remarks)


def _outliers(ratios: Mapping[tuple[str, object], Sequence[float]]) -> dict[tuple[str, object], float]:
    """Return each outlying shape's deviation: its median ln(measured / predicted) minus the median of all shapes."""
    medians = {key: statistics.median(values) for key, values in ratios.items()}
    if len(medians) < MIN_SHAPES:
        return {}
    centre = statistics.median(medians.values())
    spread = 1.4826 * statistics.median(abs(value - centre) for value in medians.values())
    limit = max(ODD_SPREADS * spread, math.log(ODD_FACTOR))
    return {key: value - centre for key, value in medians.items() if abs(value - centre) > limit}


def time_drift(first: Mapping[str, float], last: Mapping[str, float]) -> float:
    """Return the median relative change of times from the first to the last pass; 0 for fewer than five cases."""
    ratios = [last[name] / first[name] - 1 for name in first if name in last and first[name] > 0]
    return statistics.median(ratios) if len(ratios) >= 5 else 0.0


MIN_REFERENCES = 3
REFERENCE_UNSTEADY = 0.10  # largest deviation of the reference case from its median, relative


class ReferenceReading(NamedTuple):
    """One timing of the reference case, which is timed repeatedly: when it ended (`time.monotonic`), and the median."""

    at_s: float
    seconds: float
    clock_hz: float | None = None
    power_watts: float | None = None


def reference_drift(readings: Sequence[ReferenceReading]) -> float | None:
    """Return the reference case's relative change of time, from first to last third; None for too few readings."""
    if len(readings) < MIN_REFERENCES:
        return None
    third = max(1, len(readings) // 3)
    first, last = (
        statistics.median(r.seconds for r in part) for part in (readings[:third], readings[-third:])
    )
    return last / first - 1


def reference_deviation(readings: Sequence[ReferenceReading]) -> float:
    """Return how much slower the slowest measurement of the reference case was than its median, relative."""
    times = [reading.seconds for reading in readings]
    return max(times) / statistics.median(times) - 1 if times else 0.0


NAMED = 5  # maximum number of cases in a remark


def timing_remarks(measured: Sequence[MeasuredCase]) -> tuple[str, ...]:
    """Return one remark for each effect that limits the validity of the times."""
    timed = [m for m in measured if m.status == "ok" and m.timing is not None]
    remarks = [_burst_remark(m) for m in timed if m.burst_s]
    if held := [m for m in timed if m.timing is not None and m.timing.held_down]:
        if partly := [m for m in held if not m.slowed]:
            remarks.append(
                f"clocks were throttled in some samples of {len(partly)} cases; these samples are excluded"
            )
        if throughout := [m for m in held if m.slowed]:
            remarks.append(
                f"clocks were throttled in all samples of {_list_names(throughout)}, so no fit uses their times"
            )
    if gaps := [m for m in timed if m.has_launch_gaps]:
        remarks.append(
            f"no CUDA graph could be captured for {_list_names(gaps)}; their times include launch gaps, so no fit "
            "uses them"
        )
    return tuple(remarks)


def _burst_remark(measured: MeasuredCase) -> str:
    burst_s = measured.burst_s or 0.0
    conditions = measured.conditions or {}
    clock, power = conditions.get("clock_hz"), conditions.get("power_watts")
    at = ", ".join(
        text
        for text in (
            f"{clock / 1e9:.2f} GHz" if clock else "",
            f"{power:.0f} W" if power else "",
            *conditions.get("reasons", ()),
        )
        if text
    )
    rates = f"{measured.flops / burst_s / 1e12:.0f} TFLOP/s in a burst, {measured.flops / measured.seconds / 1e12:.0f}"
    slower = measured.seconds / burst_s - 1
    return f"{measured.case.id}: {rates} sustained ({slower:+.1%} time{': ' + at if at else ''})"


def _list_names(cases: Iterable[MeasuredCase]) -> str:
    names = [m.case.id for m in cases]
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest


BUSY_REJECTED = 0.5  # utilisation by other processes before the run
THROTTLED_REJECTED = 0.5  # fraction of readings with clocks reduced by heat or a power brake
THROTTLED = 0.02


def run_summary(report: ValidationReport, session: Session, results: StageResults) -> dict[str, Any]:
    """Return the summary of a run for its measurement file. Times in s, clocks in Hz, power in W."""
    facts, outcome = session.facts, results.outcome
    references = () if outcome is None else outcome.references
    begun_s = references[0].at_s if references else 0.0
    return {
        "date": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "seconds": report.seconds,
        "exit_code": report.exit_code,
        "verdict": report.verdict,
        "interrupted": report.interrupted,
        "order_seed": session.seed,
        "drift": 0.0 if outcome is None else outcome.drift,
        "references": [reading._replace(at_s=round(reading.at_s - begun_s, 3)) for reading in references],
        "throttled_fraction": results.throttled_fraction,
        "memory_shared": session.on_gpu and facts.is_shared,
        "other_processes": facts.other_processes,
        "utilization_fraction": facts.utilization_fraction,
        "throttle_reasons": facts.throttle_reasons,
    }


def require_valid(files: Sequence[Measurements], profile: HardwareProfile) -> tuple[str, ...]:
    """Return notes on doubts about the measurements that are to calibrate `profile`; none for a CPU.

    Raises InvalidInput if measurements come from another GPU, or if the card was busy, throttled or drifting.
    """
    doubts: dict[str, None] = {}
    for file in files:
        if file.environment.get("kind") == "cpu":
            continue
        for reason in _rejections(file, profile):
            raise InvalidInput(f"{file.path} cannot calibrate {profile.name}: {reason}")
        doubts |= dict.fromkeys(_doubts(file, profile))
    return tuple(doubts)


def _rejections(file: Measurements, profile: HardwareProfile) -> Iterator[str]:
    device, facts = file.environment.get("device"), _facts(file)
    if not _is_same_card(file, profile):
        yield f"it was measured on {device}; leave --gpu out, or name the profile of that GPU"
    again = "measure again on an idle GPU, with another --out"
    for where in (facts, *file.runs):
        busy = where.get("utilization_fraction") or 0.0
        if busy > BUSY_REJECTED:
            yield f"other processes kept the GPU {busy:.0%} busy (limit {BUSY_REJECTED:.0%}); {again}"
    for run in file.runs:
        drift, throttled = run.get("drift") or 0.0, run.get("throttled_fraction") or 0.0
        if abs(drift) > DRIFT:
            yield f"the time of the same work changed by {drift:+.0%} during the run (limit {DRIFT:.0%}); {again}"
        if throttled > THROTTLED_REJECTED:
            yield (
                f"heat or a power brake reduced the clocks in {throttled:.0%} of the readings (limit "
                f"{THROTTLED_REJECTED:.0%}); measure again when it is cool, with another --out"
            )


def _doubts(file: Measurements, profile: HardwareProfile) -> Iterator[str]:
    facts = _facts(file)
    if not file.runs:
        yield "the file has no summary of a completed run, so drift and other load are unknown"
    for where in (facts, *file.runs):
        busy = where.get("utilization_fraction") or 0.0
        if busy > BUSY_FRACTION:
            yield f"other processes kept the GPU {busy:.0%} busy before the run"
        if reasons := where.get("throttle_reasons"):
            yield f"the clocks were reduced before the run by: {', '.join(reasons)}"
    limit = facts.get("power_limit_watts")
    if limit and limit < POWER_CAP_FRACTION * profile.tdp_watts:
        yield f"the power limit was {limit:.0f} W; that of profile {profile.name} is {profile.tdp_watts:.0f} W"
    for run in file.runs:
        if run.get("memory_shared"):
            yield "other processes used memory of the GPU"
        if (throttled := run.get("throttled_fraction") or 0.0) > THROTTLED:
            yield f"heat or a power brake reduced the clocks in {throttled:.0%} of the readings"
        deviation = reference_deviation([ReferenceReading(*reading) for reading in run.get("references", ())])
        if deviation > REFERENCE_UNSTEADY:
            yield f"the repeatedly timed reference case was up to {deviation:.0%} slower than its median during the run"
        if run.get("interrupted"):
            yield "a run was interrupted"


def _is_same_card(file: Measurements, profile: HardwareProfile) -> bool:
    base, facts = profile.name.partition("@")[0], _facts(file)
    if base == file.profile.partition("@")[0] or file.environment.get("device") == UNKNOWN_GPU:
        return True
    card, own = facts.get("compute_capability"), profile.compute_capability
    if profile.vendor != "nvidia" or (card is not None and own is not None and card != own):
        return False
    if file.profile_toml is not None or base not in profile_names():
        return True  # no bundled profile matches the card, or the user's own profile was named
    return is_card_of_profile(str(file.environment.get("device")), profile)


def _facts(file: Measurements) -> Mapping[str, Any]:
    facts = file.environment.get("facts")
    return facts if isinstance(facts, Mapping) else {}
