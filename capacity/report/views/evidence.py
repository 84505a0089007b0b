"""Views of published runs with measured and predicted latencies: runs nearest to a load, and all runs by source."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import numpy as np

from capacity.answers.published_runs import relative_error
from capacity.answers.records import Attribution, PublishedRun, Quantity
from capacity.report.display import Units
from capacity.report.figures.chart import Chart
from capacity.report.figures.parity import Compared, parity_figure
from capacity.report.views import units
from capacity.report.views.one_load import CHANGE, explain_headline
from capacity.report.views.units import group_by
from capacity.report.views.view import Column, CustomChart, Table, View

TIME = units.Unit(1, 1e3, follows="time")
LENGTHS = "{0.input_len}/{0.output_len}".format
METRICS = {"TPOT": "tpot", "TTFT": "ttft"}


def evidence_view(answer: Attribution) -> View:
    """Return the view of the published runs nearest to the load, with the prediction for each and its error."""
    sources = dict.fromkeys(f"{run.source} ({run.date}): {run.url}" for run in answer.evidence)
    return View(explain_headline(answer), [nearest_table(answer.evidence), *sources])


def nearest_table(runs: Sequence[PublishedRun]) -> Table:
    """Return a table of published runs with measured and predicted TPOT and TTFT."""
    error = replace(CHANGE, digits=0)
    columns = [
        Column("published run", "label"),
        Column("in/out", LENGTHS),
        Column("load", lambda run: f"{run.concurrency}" if run.concurrency else f"{run.request_rate:g}/s"),
        Column("TPOT {time}", "tpot_measured_s", TIME),
        Column("predicted", "tpot_s.value", TIME),
        Column("error", partial(_error, "tpot"), error),
        Column("TTFT {time}", "ttft_measured_s", replace(TIME, digits=0)),
        Column("predicted", "ttft_s.value", replace(TIME, digits=0)),
        Column("error", partial(_error, "ttft"), error),
    ]
    return Table("Nearest published runs", runs, columns)


def _error(metric: str, run: PublishedRun) -> float | None:
    return relative_error(getattr(run, f"{metric}_measured_s"), getattr(run, f"{metric}_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricErrors:
    """Errors of one latency metric over several published runs; `inside`: share of runs within the 90 % interval."""

    source: str
    runs: int
    median: float
    p90: float
    inside: float


def metric_errors(source: str, runs: Iterable[PublishedRun], metric: str) -> MetricErrors | None:
    """Return the prediction errors of `metric` (`ttft` or `tpot`); None if no run states this metric."""
    pairs = list(_pairs(runs, metric))
    if not pairs:
        return None
    errors = [abs(predicted.value / measured - 1) for _, measured, predicted in pairs]
    inside = [(q.low or 0.0) <= measured <= (q.high or np.inf) for _, measured, q in pairs]
    return MetricErrors(
        source=source,
        runs=len(pairs),
        median=float(np.median(errors)),
        p90=float(np.percentile(errors, 90)),
        inside=float(np.mean(inside)),
    )


def published_view(runs: Sequence[PublishedRun]) -> View:
    """Return the view of all published runs: predicted against measured times, and the errors by source."""
    columns = [
        *(Column("source", "source"), Column("runs", "runs", units.COUNT)),
        *(Column("median error", "median", units.PERCENT), Column("p90", "p90", units.PERCENT)),
        Column("within the 90 % interval", "inside", units.PERCENT_0),
    ]
    blocks: list[CustomChart | Table] = []
    for title, metric in METRICS.items():
        sources = {"all sources": runs, **group_by(runs, "source")}
        rows = (metric_errors(name, own, metric) for name, own in sources.items())
        known = sorted(filter(None, rows), key=attrgetter("runs"), reverse=True)
        blocks += [
            CustomChart(partial(_parity_chart, runs, title)),
            Table(f"{title} by source", known, columns),
        ]
    return View("Published runs", blocks)


def _pairs(runs: Iterable[PublishedRun], metric: str) -> Iterator[tuple[PublishedRun, float, Quantity]]:
    for run in runs:
        measured, predicted = getattr(run, f"{metric}_measured_s"), getattr(run, f"{metric}_s")
        if measured is not None and predicted is not None:
            yield run, measured, predicted


def _parity_chart(runs: Sequence[PublishedRun], title: str, shown_in: Units) -> Chart:
    pairs = list(_pairs(runs, METRICS[title]))
    points = {
        engine: [Compared(run.label, measured, predicted.value) for run, measured, predicted in own]
        for engine, own in group_by(pairs, lambda pair: pair[0].engine.split("@")[0]).items()
    }
    return Chart(
        name=f"published_{METRICS[title]}",
        title=f"{title} of published runs: predicted against measured",
        alt=f"{len(pairs)} runs of {len(points)} engines; exact predictions lie on the line.",
        figure=parity_figure(points, shown_in),
        rows=tuple(
            {
                "run": run.label,
                "in/out": LENGTHS(run),
                "measured, s": measured,
                "predicted, s": predicted.value,
                "low, s": predicted.low,
                "high, s": predicted.high,
                "source": run.source,
                "url": run.url,
            }
            for run, measured, predicted in pairs
        ),
    )
