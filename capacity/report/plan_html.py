"""A curve as one HTML file that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.base.html import list_html, table_html
from capacity.report.curve import day_text, highest_texts
from capacity.report.figures.of_answer import charts_of
from capacity.report.sheet import Sheet, question_of
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.planning.load.curve import Curve


def curve_html(curve: Curve, command: str | None = None) -> str:
    """Latency against load, replicas by the hour, and what is marked in them, in one file."""
    return Sheet(
        question=question_of("curve"),
        subject=subject_of(curve),
        answer=list_html(_curve_facts(curve)),
        charts=charts_of(curve),
        more=(("Replicas by the hour", _day_table(curve)),),
        assumptions=curve.warnings,
        asked=[("To ask again", command)] if command else [],
    ).html()


def _curve_facts(curve: Curve) -> tuple[str, ...]:
    """The knee, the highest rate with what it leaves open, and the users that this is."""
    knee = curve.knee_per_s
    facts = [f"knee (throughput over latency is greatest): {knee:,.3g} requests/s"] if knee else []
    if highest := curve.highest:
        rate, band, confident = highest_texts(highest)
        facts.append(
            f"highest rate within the SLO: {rate} requests/s as predicted "
            f"({band} over the 90 % band of the step model's error), "
            f"{confident} with {highest.confidence:.0%} confidence"
        )
        if highest.sampling_low is not None and highest.sampling_high is not None:
            facts.append(
                f"another draw of the traffic: {highest.sampling_low:,.3g} to {highest.sampling_high:,.3g} requests/s "
                f"(90 % interval over {highest.replications} draws)"
            )
    if curve.users is not None:
        facts.append(f"users: {curve.users:,.0f} of {curve.requests_per_user_hour:g} requests an hour each")
    return tuple(facts)


def _day_table(curve: Curve) -> str:
    """Replicas by the hour, autoscaled against fixed."""
    day = curve.day
    if day is None:
        return ""
    rows = [(hour.hour, f"{hour.request_rate_per_s:,.2f}", hour.replicas) for hour in day.hours]
    table = table_html(("hour", "requests/s", "replicas"), rows, scope="")
    return f"<p>{day_text(day)}</p>{table}"
