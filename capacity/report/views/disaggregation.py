"""View of simulations that split the same replicas into prefill and decode replicas in different ratios."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from capacity.answers.records import Simulation
from capacity.base.mappings import select
from capacity.base.quantity import Quantity
from capacity.report.display import join_words
from capacity.report.views import units
from capacity.report.views.run_latencies import predicted_facts
from capacity.report.views.units import Unit
from capacity.report.views.view import Column, Fact, Panels, Table, View

FIGURES = {  # headings of the table, and fields of the summary
    "p95 TTFT, ms": "p95_ttft_ms",
    "p95 TPOT, ms": "p95_tpot_ms",
    "p95 E2E, ms": "p95_e2el_ms",
    "requests/s": "request_throughput",
    "output tokens/s": "output_throughput",
}
Split = tuple[str, Mapping[str, Any], Simulation]


def splits_view(runs: Mapping[str, Simulation]) -> View:
    """Return all splits of the replicas: a chart of p95 TTFT and p95 TPOT, and a table of all metrics."""
    splits = [(name, run.to_dict(), run) for name, run in runs.items()]
    paths = {heading: _figure_path(field) for heading, field in FIGURES.items()}
    panels = units.read_series(splits, "0", select(paths, ("p95 TTFT, ms", "p95 TPOT, ms")))
    tpots = panels["p95 TPOT, ms"]
    best = min(runs, key=lambda name: math.inf if (tpot := tpots[name]) is None else tpot.value)
    chart = Panels(
        name="disaggregation",
        title="p95 latency by number of prefill replicas",
        alt=f"{join_words(list(runs))}: {best} has the lowest p95 TPOT.",
        data=panels,
        labels="replicas",
    )
    columns = [
        Column("replicas", "0"),
        Column("verdict", "2.verdict.verdict"),
        *(Column(heading, path, Unit(2)) for heading, path in paths.items()),
    ]
    return View("", [chart, Table("All splits of the replicas", splits, columns)])


def split_facts(run: Simulation) -> list[Fact]:
    """Return the latencies and rates of a split."""
    values = run.to_dict()
    completed = f"{values['completed']:,} completed, {values['failed']:,} failed"
    return [
        *predicted_facts(run.predicted_ms, ("p95 TTFT", "p95 TPOT", "p95 E2E")),
        Fact("Requests/s", values["request_throughput"], units.TIMES, completed, first="Requests/s"),
        Fact("Output tokens/s", values["output_throughput"], first="Output tokens/s"),
    ]


def _figure_path(field: str) -> Callable[[Split], Quantity | None]:
    """Return a function that takes a split and returns its metric `field`, with a predicted interval if available."""

    def find(split: Split) -> Quantity | None:
        _, values, run = split
        known = run.predicted_ms.get(field)
        return None if values[field] is None else known or Quantity(value=values[field])

    return find
