"""What `diff` and `advise` answer, as tables: one deployment against another, and its changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from capacity.answers.records import Quantity
from capacity.report.display import text_and_interval
from capacity.report.layout import Part, listed, notes

if TYPE_CHECKING:
    from capacity.planning.variations.diff import Diff, Difference
    from capacity.simulator.replications import PairedMetric
    from capacity.workload.windows import Window

STATISTICS = ("request", "output", "mean", "p50", "p95", "p99")  # of replicated metrics, those that are shown


def compared_text(busiest: Window | None) -> str:
    """A further line on the part of longer traffic that is compared."""
    if busiest is None:
        return ""
    return f"\nCompared on the busiest {busiest.lasts}: {busiest.text}, {busiest.requests:,} requests"


# diff


def diff_tables(diff: Diff) -> list[Part]:
    """What differs in the settings, in the latencies, in the bill."""
    changes = ", ".join(f"{name} {after} in place of {before}" for name, before, after in diff.settings)
    parts: list[Part] = [
        f"A: [bold]{diff.first}[/bold]\nB: [bold]{diff.second}[/bold]",
        (f"B has {changes}" if changes else "A and B are the same deployment")
        + compared_text(diff.busiest_window),
        _difference_table(diff),
    ]
    if diff.replicated:
        parts.append(_replicated_table(diff))
    if diff.cost_change is not None:
        before, after = diff.first_outcome.usd_per_hour, diff.second_outcome.usd_per_hour
        parts.append(f"bill: ${before:,.2f} to ${after:,.2f} an hour ({diff.cost_change:+z.1%})")
    return [*parts, *notes(diff.warnings)]


def _difference_table(diff: Diff) -> Part:
    def moved(name: str) -> Callable[[Difference], str]:
        return lambda each: (
            f"{each.first_percentiles_s[name] * 1e3:,.1f} to {each.second_percentiles_s[name] * 1e3:,.1f} ms"
        )

    return listed(
        f"B less A, over {diff.requests:,} requests, {diff.workload} (95 % interval of the mean)",
        diff.differences,
        ("", "left", lambda each: each.metric.upper()),
        ("mean", "right", lambda each: f"{difference_and_interval(each)[0]} ms{_doubt(each)}"),
        ("interval", "right", lambda each: difference_and_interval(each)[1]),
        ("B sooner for", "right", lambda each: f"{each.faster_fraction:.0%}"),
        ("p50", "right", moved("p50")),
        ("p95", "right", moved("p95")),
        ("p99", "right", moved("p99")),
    )


def difference_and_interval(each: Difference) -> tuple[str, str]:
    """The mean over requests and its interval, in ms."""
    mean = Quantity(value=each.mean_s, low=each.low_s, high=each.high_s)
    return text_and_interval(mean, 1e3, sign="+")


def _replicated_table(diff: Diff) -> Part:
    """Metric by metric over several draws of the traffic, the same for both."""

    def shown_difference(each: PairedMetric) -> tuple[str, str]:
        found = each.difference
        return text_and_interval(Quantity(value=found.value, low=found.low, high=found.high), sign="+")

    def own_draws(each: PairedMetric) -> str:
        return "-" if each.independent_half is None else f"± {each.independent_half:,.2f}"

    return listed(
        "B less A over draws of the traffic, the same for both (95 % interval)",
        [each for each in diff.replicated if each.metric.split("_")[0] in STATISTICS],
        ("", "left", lambda each: each.metric),
        ("A", "right", lambda each: f"{each.first:,.2f}"),
        ("B", "right", lambda each: f"{each.second:,.2f}"),
        ("difference", "right", lambda each: f"{shown_difference(each)[0]}{_doubt(each)}"),
        ("interval", "right", lambda each: shown_difference(each)[1] or "-"),
        ("with draws of their own", "right", own_draws),
    )


def _doubt(each: Difference | PairedMetric) -> str:
    return "" if each.significant else " (not told apart)"
