"""The view of `sweep`: the number of points by outcome, and a table of points with varied options and metrics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from capacity.base.quantity import Quantity
from capacity.planning.sweeps.sweep import SweepResult
from capacity.report.display import phrase
from capacity.report.views import units
from capacity.report.views.view import Block, Column, Table, View

MAX_ROWS = 40
MAX_FIGURES = 5
FIGURES = (  # name in the answer, heading, unit; most requested first
    ("ttft_s.value", "TTFT, ms", units.MS_1),
    ("mean_ttft_ms.value", "TTFT, ms", units.TENTHS),
    ("tpot_s.value", "TPOT, ms", units.MS_1),
    ("mean_tpot_ms.value", "TPOT, ms", units.TENTHS),
    ("requests_per_s.value", "requests/s", units.TIMES),
    ("request_throughput", "requests/s", units.TIMES),
    ("output_tokens_per_s.value", "tokens/s", units.COUNT),
    ("output_throughput", "tokens/s", units.COUNT),
    ("usd_per_million_output_tokens.value", "$/1M out", units.USD_3),
    ("kv_capacity_tokens", "KV tokens", units.COUNT),
)
OPTION = "option."
Row = Mapping[str, object]


def varied_options(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the names of the options that differ between the points, in order."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith(OPTION))
    return tuple(name for name in names if len({str(row.get(name)) for row in rows}) > 1)


def swept_view(swept: SweepResult) -> View:
    """Return the view of `sweep`: the number of points by outcome, then the points."""
    counts = {
        "done": swept.done,
        "do not fit": swept.does_not_fit,
        "failed": swept.failed,
        "already done": swept.skipped,
    }
    outcomes = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return View(f"{swept.points:,} points: {outcomes}", _blocks(swept.rows))


def _blocks(rows: Sequence[Row]) -> Iterator[Block]:
    shown = rows[:MAX_ROWS]
    found = [each for each in FIGURES if any(each[0] in row for row in shown)][:MAX_FIGURES]
    columns = [
        *(Column(name.removeprefix(OPTION), partial(_option_text, name)) for name in varied_options(shown)),
        *(Column(heading, partial(_figure, name), replace(unit, bare=True)) for name, heading, unit in found),
        Column(
            "",
            lambda row: None if row["status"] == "done" else row["status"],
            units.Unit(left=True, none=""),
            optional=True,
        ),
    ]
    yield Table("", shown, columns)
    yield phrase(
        "showing the first {0} of {1:,}; --export FILE.csv writes all",
        MAX_ROWS,
        len(rows),
        len(rows) > MAX_ROWS,
    )


def _option_text(name: str, row: Row) -> str:
    return str(row.get(name, ""))


def _figure(name: str, row: Row) -> Quantity | None:
    """Return a metric of a row, with an interval if the row has one; None if the row lacks the metric."""
    value, low, high = (_number(row.get(name.replace(".value", end))) for end in (".value", ".low", ".high"))
    return None if value is None else Quantity(value=value, low=low, high=high)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
