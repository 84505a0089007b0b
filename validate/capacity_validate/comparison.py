"""The result of `capacity compare`: measured and predicted metrics of each run, a verdict, and its page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

from capacity.answers.records import Quantity
from capacity.base.latency_metrics import METRICS
from capacity.base.record import AnswerRecord, WrittenRecord, to_plain_values
from capacity.report.display import basis_text, count_noun, text_and_interval
from capacity.report.figures.chart import four_digits
from capacity.report.tables_html import NOTE
from capacity.report.views import units
from capacity.report.views.units import Unit
from capacity.report.views.view import Bars, Block, Column, Table, View

MAIN_METRICS = {  # metrics by their common names
    "mean_ttft_ms": "TTFT",
    "mean_tpot_ms": "TPOT",
    "output_throughput": "throughput",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow(WrittenRecord):
    """One statistic, measured and predicted; its name implies its unit (`p95_ttft_ms`).

    `low` to `high` is the 90 % prediction interval; None without an interval, as for memory. `predicted` is None if
    the simulator has no such metric.
    """

    LAST: ClassVar[tuple[str, ...]] = ("error", "inside")

    name: str
    measured: float
    predicted: float | None
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float | None:
        return None if self.predicted is None or not self.measured else self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Return whether the measured value is within the interval; None without an interval."""
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Additional time of a server per step and per request, estimated from the runs in `fitted_to`."""

    step_s: float
    request_s: float
    fitted_to: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Measured and predicted metrics of one run, how its workload was rebuilt, and likely causes of errors."""

    path: str
    tool: str
    requests: int
    workload: str  # how the workload was rebuilt
    metrics: tuple[MetricRow, ...]
    causes: tuple[str, ...]
    notices: tuple[str, ...]

    def error(self, name: str) -> float | None:
        return next((row.error for row in self.metrics if row.name == name), None)

    @property
    def rows_with_interval(self) -> tuple[MetricRow, ...]:
        return tuple(row for row in self.metrics if row.inside is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(AnswerRecord):
    """The result of `capacity compare`: the deployment, its memory, and the comparison of each run."""

    SCHEMA: ClassVar[str] = "capacity/comparison/v1"

    model: str
    gpu: str
    num_gpus: int
    engine: str
    basis: str
    kv_capacity_tokens: int
    kv_capacity_measured: bool  # from a server log, not estimated
    runs: tuple[RunComparison, ...]
    overheads: Overheads | None
    server_log: tuple[tuple[str, str], ...]
    memory: tuple[MetricRow, ...]

    def to_rows(self) -> list[dict[str, Any]]:
        return [{"path": run.path, **to_plain_values(row)} for run in self.runs for row in run.metrics]

    @property
    def verdict(self) -> str:
        """Return the median errors and the coverage of the intervals in one or two sentences."""
        parts = []
        for name, label in MAIN_METRICS.items():
            errors = sorted(abs(e) for run in self.runs if (e := run.error(name)) is not None)
            if errors:
                parts.append(f"{label} {errors[len(errors) // 2]:.0%}")
        if not parts:
            return "The files contain no metric that the simulator predicts."
        said = (
            f"Over {count_noun(len(self.runs), 'run')}, the median prediction errors are {', '.join(parts)}."
        )
        return said + coverage_text([row for run in self.runs for row in run.rows_with_interval])


def coverage_text(judged: Sequence[MetricRow]) -> str:
    """Return a sentence on how many measured values lie within their intervals; empty without intervals."""
    held = sum(bool(row.inside) for row in judged)
    return f" {held} of {len(judged)} measured values lie within the 90 % interval." if judged else ""


ERROR = Unit(1, 100, " %", sign="+")
TITLES = {
    "request_throughput": "requests/s",
    "output_throughput": "output tokens/s",
    "duration_s": "duration, s",
    "weights_gib": "weights, GiB",
    "kv_cache_gib": "KV cache, GiB",
    "graphs_gib": "CUDA graphs, GiB",
    "kv_tokens": "KV cache, tokens",
    "kv_blocks": "KV cache, blocks",
}


def metric_title(name: str) -> str:
    """Return the display title of a metric with its unit: `p95 TTFT, ms` for `p95_ttft_ms`."""
    statistic, _, rest = name.partition("_")
    metric = rest.removesuffix("_ms")
    return TITLES.get(name) or (f"{statistic} {METRICS[metric].label}, ms" if metric in METRICS else name)


def error_text(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+z,.1f} %"


def predicted_texts(row: MetricRow) -> tuple[str, str]:
    """Return the texts of a prediction and its interval, rounded to suit the interval; to 4 digits if there is none."""
    if row.predicted is None:
        return "-", ""
    if row.low is None or row.high is None:
        return four_digits(row.predicted), ""
    return text_and_interval(Quantity(value=row.predicted, low=row.low, high=row.high))


def inside_text(row: MetricRow) -> str:
    """Return whether the measured value is `inside`, `above` or `below` the interval; empty if there is no interval."""
    if row.inside is None or row.low is None:
        return ""
    return "inside" if row.inside else ("below" if row.measured < row.low else "above")


def metric_rows(metrics: Sequence[MetricRow]) -> list[dict[str, object]]:
    """Return measured and predicted values as rows; omit the interval columns if no metric has an interval."""
    banded = any(row.inside is not None for row in metrics)
    return [
        {
            "": metric_title(row.name),
            "measured": four_digits(row.measured),
            "predicted": predicted_texts(row)[0],
            "error": error_text(row.error),
            **({"90 % interval": predicted_texts(row)[1], "measured is": inside_text(row)} if banded else {}),
        }
        for row in metrics
    ]


def comparison_view(answer: Comparison) -> View:
    """Return the view of a comparison: the deployment, the memory that the server logged, each run, and the verdict
    last."""
    basis = basis_text(answer.basis, answer.gpu)
    title = (
        f"[bold]{answer.model}[/bold] on {answer.num_gpus} x {answer.gpu}, {answer.engine}; basis: {basis}"
    )
    blocks: list[Block] = list(server_blocks(answer))
    for number, run in enumerate(answer.runs):
        blocks += [" ", *run_blocks(run, number)]  # a blank line; empty texts are dropped
        blocks += [f"likely cause: {cause}" for cause in run.causes]
        blocks += [f"{NOTE}{notice}" for notice in run.notices]
    return View(title, [*blocks, f"\n{answer.verdict}"])


def server_blocks(answer: Comparison) -> Iterator[Block]:
    """Yield the KV cache size, a table of logged and estimated memory, and the fitted overheads if any."""
    known = "from the server log" if answer.kv_capacity_measured else "estimated"
    yield f"KV cache: {answer.kv_capacity_tokens:,} tokens, {known}"
    yield _table("Memory in the server log", answer.memory, "memory")
    if answer.overheads is not None:
        yield (
            f"fitted overheads: {answer.overheads.step_s * 1e3:.3f} ms per step, "
            f"{answer.overheads.request_s * 1e3:.1f} ms per request, from {len(answer.overheads.fitted_to)} of "
            "the runs"
        )


def run_blocks(run: RunComparison, number: int) -> Iterator[Block]:
    """Yield the chart and the table of a run's metrics; `number` is the run's index and makes their names unique."""
    title = f"{run.path}: {run.tool}, {run.requests:,} requests, {run.workload}"
    yield _metrics_chart(run, number)
    yield _table(title, run.metrics, f"metrics_{number + 1}")


def _table(title: str, metrics: Sequence[MetricRow], name: str) -> Table:
    rows = metric_rows(metrics)
    columns = [Column(head, itemgetter(head), units.TEXT) for head in (rows[0] if rows else ())]
    return Table(title, rows, columns, name=name, wrap=True)


def _metrics_chart(run: RunComparison, number: int) -> Bars:
    """Return a chart of each prediction's relative error, with its 90 % interval."""
    errors: dict[str, Quantity] = {}
    for row in run.metrics:
        if row.error is not None:
            # without an interval, both ends are the prediction itself
            ends = (row.low, row.high) if row.inside is not None else (row.predicted, row.predicted)
            low, high = ((end or 0.0) / row.measured - 1 for end in ends)
            label = f"{metric_title(row.name)}: {error_text(row.error)}{MARKS[row.inside]}"
            errors[label] = Quantity(value=row.error, low=low, high=high)
    reach = 110 * max(
        (abs(end) for each in errors.values() for end in (each.low or 0, each.high or 0)), default=0.1
    )
    return Bars(
        name=f"server_metrics_{number + 1}",
        title=f"{run.tool}, {run.requests:,} requests: error of each metric",
        alt=_metrics_words(run),
        data={"error": errors},
        unit=ERROR,
        axis="predicted / measured - 1, %",
        note="The measured value lies within the 90 % interval if the whisker crosses zero.",
        ends=(-reach, reach),
        rows=[
            {"metric": metric_title(row.name)}
            | {name: getattr(row, name) for name in ("measured", "predicted", "low", "high", "error")}
            | {"measured is": inside_text(row)}
            for row in run.metrics
        ],
    )


MARKS = {True: "", False: ", outside", None: ""}  # by whether the measured value is within the interval


def _metrics_words(run: RunComparison) -> str:
    """Return the chart's alternative text: the largest error, and how many values are within their intervals."""
    worst = max(
        (row for row in run.metrics if row.error is not None),
        key=lambda row: abs(row.error or 0.0),
        default=None,
    )
    if worst is None:
        return "No metric was both measured and predicted."
    return f"Largest: {metric_title(worst.name)}, {error_text(worst.error)}." + coverage_text(
        run.rows_with_interval
    )
