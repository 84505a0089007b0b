"""Check that measurements were taken on the named GPU while it was idle and at its usual clocks.

The header of a measurement file has the card's facts before the run. Each run ends with a summary line: its drift, the
measurements of the reference case, throttling, other processes, and the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from capacity.base.errors import InvalidInput
from capacity.hardware import HardwareProfile, profile_names
from capacity_validate.cases import UNKNOWN_GPU, Measurements
from capacity_validate.devices import BUSY_FRACTION
from capacity_validate.plausibility import DRIFT, REFERENCE_UNSTEADY, ReferenceReading, reference_deviation
from capacity_validate.profile_match import POWER_CAP_FRACTION, is_card_of_profile

if TYPE_CHECKING:
    from capacity_validate.report_data import ValidationReport
    from capacity_validate.session import Session
    from capacity_validate.stages import StageResults

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
