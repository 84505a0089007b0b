"""What timings themselves say: samples that heat or a brake spoiled, bursts that serving never sees, odd kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from capacity_validate.cases import MeasuredCase

NAMED = 5  # cases in a remark, at most


def timing_remarks(measured: Sequence[MeasuredCase]) -> tuple[str, ...]:
    """One line for each thing that a reader of the times should know."""
    timed = [m for m in measured if m.status == "ok" and m.timing is not None]
    remarks = [_burst_remark(m) for m in timed if m.burst_s]
    if held := [m for m in timed if m.timing is not None and m.timing.held_down]:
        if partly := [m for m in held if not m.slowed]:
            remarks.append(f"clocks were held down in samples of {len(partly)} cases, which were left out")
        if throughout := [m for m in held if m.slowed]:
            remarks.append(
                f"clocks were held down throughout {_names(throughout)}: their times are the slow card's, "
                "no fit takes them"
            )
    if gaps := [m for m in timed if m.has_launch_gaps]:
        remarks.append(
            f"no CUDA graph could be made of {_names(gaps)}: launch gaps are in their times, no fit takes them"
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


def _names(cases: Iterable[MeasuredCase]) -> str:
    names = [m.case.id for m in cases]
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest
