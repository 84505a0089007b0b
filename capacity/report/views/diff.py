"""The view of `diff`: one deployment against another on the same arrivals."""

from collections.abc import Callable, Iterator

from capacity.base.money import money_text
from capacity.base.quantity import Quantity
from capacity.base.record import make_from
from capacity.planning.variations.diff import Diff, Difference
from capacity.report.display import text_and_interval
from capacity.report.views import units
from capacity.report.views.units import Unit, mark_unless
from capacity.report.views.view import Block, Column, Table, View, busiest_window_text
from capacity.simulator.replications import PairedMetric

STATISTICS = (
    "request",
    "output",
    "mean",
    "p50",
    "p95",
    "p99",
)  # prefixes of the replicated metrics that are shown
SIGNIFICANCE = ("significant", " (not significant)")  # field, and the mark if it is false
HALF_WIDTH = Unit(text="± {:,.2f}".format)


def diff_view(answer: Diff, first: str = "A", second: str = "B") -> View:
    """Return the view of `diff`; `first` and `second` name the deployments."""
    title = f"{first}: [bold]{answer.first}[/bold]\n{second}: [bold]{answer.second}[/bold]"
    return View(title, _blocks(answer, first, second))


def _blocks(answer: Diff, first: str, second: str) -> Iterator[Block]:
    changes = ", ".join(f"{name} from {before} to {after}" for name, before, after in answer.settings)
    said = f"{second} changes {changes}" if changes else f"{first} and {second} are identical"
    yield said + busiest_window_text(answer.busiest_window)
    yield Table(
        f"{second} minus {first}, over {answer.requests:,} requests, {answer.workload} (95 % interval of the mean)",
        answer.differences,
        [
            Column("", lambda each: each.metric.upper()),
            Column("mean", mark_unless(_mean_text, *SIGNIFICANCE), units.TEXT),
            Column("interval", lambda each: mean_and_interval(each)[1], units.TEXT),
            Column(f"{second} faster for", "faster_fraction", units.PERCENT_0),
            *(Column(name, _percentile_change_path(name), units.TEXT) for name in ("p50", "p95", "p99")),
        ],
    )
    yield Table(
        f"{second} minus {first} over resampled traffic, identical for both (95 % interval)",
        [each for each in answer.replicated if each.metric.split("_")[0] in STATISTICS],
        [
            Column("", "metric"),
            Column(first, "first", units.TIMES),
            Column(second, "second", units.TIMES),
            Column("difference", mark_unless(_difference_text, *SIGNIFICANCE), units.TEXT),
            Column("interval", _difference_interval, units.TEXT),
            Column("with independent traffic", "independent_half", HALF_WIDTH),
        ],
    )
    before, after = answer.first_outcome.usd_per_hour, answer.second_outcome.usd_per_hour
    if answer.cost_change is not None and before is not None and after is not None:
        yield f"bill: {money_text(before)} to {money_text(after)} an hour ({answer.cost_change:+z.1%})"


def mean_and_interval(each: Difference) -> tuple[str, str]:
    """Return the mean difference over requests and its interval as texts, in ms."""
    return text_and_interval(Quantity(value=each.mean_s, low=each.low_s, high=each.high_s), 1e3, sign="+")


def _mean_text(each: Difference) -> str:
    return f"{mean_and_interval(each)[0]} ms"


def _difference_text(each: PairedMetric) -> str:
    return text_and_interval(make_from(Quantity, each.difference), sign="+")[0]


def _difference_interval(each: PairedMetric) -> str:
    return text_and_interval(make_from(Quantity, each.difference), sign="+")[1] or "-"


def _percentile_change_path(percentile: str) -> Callable[[Difference], str]:
    return lambda each: (
        f"{each.first_percentiles_s[percentile] * 1e3:,.1f} to "
        f"{each.second_percentiles_s[percentile] * 1e3:,.1f} ms"
    )
