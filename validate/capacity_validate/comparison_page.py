"""The answer of `capacity compare` in every format: tables, JSON, CSV, charts, and a page to print."""

from collections.abc import Sequence

from capacity.answers.records import Quantity
from capacity.base.latency_metrics import METRICS
from capacity.report.display import text_and_interval
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, layout
from capacity.report.layout import Part, crossed, notes
from capacity.report.sheet import answer_html
from capacity.report.subject import subject_of
from capacity.report.tables import render
from capacity_validate.comparison import Comparison, MetricRow, RunComparison

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
    """`p95 TTFT, ms` of `p95_ttft_ms`."""
    statistic, _, rest = name.partition("_")
    metric = rest.removesuffix("_ms")
    return TITLES.get(name) or (f"{statistic} {METRICS[metric].label}, ms" if metric in METRICS else name)


def error_text(error: float | None) -> str:
    """`+12.3 %`."""
    return "-" if error is None else f"{100 * error:+z.1f} %"


def predicted_texts(row: MetricRow) -> tuple[str, str]:
    """A prediction with the digits that its interval leaves, and the interval; without one four digits and nothing."""
    if row.predicted is None:
        return "-", ""
    if row.low is None or row.high is None:
        return f"{row.predicted:,.4g}", ""
    return text_and_interval(Quantity(value=row.predicted, low=row.low, high=row.high))


def inside_text(row: MetricRow) -> str:
    """Where the measured figure lies: `inside` the interval, `above` or `below` it; empty without one."""
    if row.inside is None or row.low is None:
        return ""
    return "inside" if row.inside else ("below" if row.measured < row.low else "above")


def metric_rows(metrics: Sequence[MetricRow]) -> list[dict[str, object]]:
    """Measured and predicted beside each other; of metrics without any interval no column speaks of one."""
    banded = any(row.inside is not None for row in metrics)
    return [
        {
            "": metric_title(row.name),
            "measured": f"{row.measured:,.4g}",
            "predicted": predicted_texts(row)[0],
            "error": error_text(row.error),
            **({"90 % interval": predicted_texts(row)[1], "measured is": inside_text(row)} if banded else {}),
        }
        for row in metrics
    ]


def comparison_tables(answer: Comparison) -> list[Part]:
    """What it is of, memory as the server printed it, run by run, and the verdict last."""
    known = "printed by the server" if answer.kv_capacity_measured else "estimated"
    parts: list[Part] = [
        f"[bold]{answer.model}[/bold] on {answer.num_gpus} x {answer.gpu}, {answer.engine}; basis: {answer.basis}",
        f"KV cache: {answer.kv_capacity_tokens:,} tokens, {known}",
    ]
    if answer.memory:
        parts.append(_table("Memory, as the server printed it", answer.memory))
    if answer.overheads is not None:
        parts.append(
            f"fitted overheads: {answer.overheads.step_s * 1e3:.3f} ms a step, "
            f"{answer.overheads.request_s * 1e3:.1f} ms a request, from {len(answer.overheads.fitted_to)} of the runs"
        )
    for run in answer.runs:
        parts += ["", *_of_run(run)]
    return [*parts, "", answer.verdict]


def _of_run(run: RunComparison) -> list[Part]:
    return [
        _table(f"{run.path}: {run.tool}, {run.requests:,} requests, {run.workload}", run.metrics),
        *(f"likely cause: {cause}" for cause in run.causes),
        *notes(run.notices),
    ]


def _table(title: str, metrics: Sequence[MetricRow]) -> Part:
    rows = metric_rows(metrics)
    heads = [name for name in rows[0] if name] if rows else []
    return crossed(title, heads, ((str(row[""]), [str(row[head]) for head in heads]) for row in rows))


def metrics_chart(run: RunComparison, number: int = 0, *, subject: str = "") -> Chart:
    """A server's metrics: how far the prediction of each is from what was measured, with its 90 % interval.

    Where a whisker reaches over the zero, the measured figure lies within. `number` tells the charts of several runs
    apart.
    """
    import plotly.graph_objects as go

    errors = [(row, row.error) for row in run.metrics if row.error is not None]
    ends = [_relative_ends(row) for row, _ in errors]
    titles = [metric_title(row.name) for row, _ in errors]
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        y=titles,
        x=[error for _, error in errors],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - error for (_, high), (_, error) in zip(ends, errors, strict=True)],
            "arrayminus": [error - low for (low, _), (_, error) in zip(ends, errors, strict=True)],
            "color": NEUTRAL,
        },
        customdata=[
            f"{error_text(error)}, measured {inside_text(row) or 'without an interval'}"
            for row, error in errors
        ],
        hovertemplate="%{y}: %{customdata}<extra></extra>",
        showlegend=False,
        **bar_style(0),
    )
    low, high = min((0.0, *(end for end, _ in ends))), max((0.0, *(end for _, end in ends)))
    room = (high - low) or 0.01  # for the words, on a phone too
    figure.add_scatter(
        x=[max(end, 0.0) for _, end in ends],  # beside the bar, which may reach beyond its whisker
        y=titles,
        mode="text",
        text=[f" {error_text(error)}{MARKS[row.inside]}" for row, error in errors],
        textposition="middle right",
        textfont={"size": 12},
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
    )
    layout(figure, x="predicted / measured - 1", y="", height=140 + 34 * len(errors))
    across = [low - 0.05 * room, high + 0.45 * room]
    figure.update_xaxes(tickformat="+.0%", zeroline=True, zerolinecolor=NEUTRAL, range=across)
    figure.update_yaxes(autorange="reversed")
    return Chart(
        name=f"server_metrics_{number + 1}",
        title=f"{run.tool}, {run.requests:,} requests: error of each metric",
        alt=_metrics_words(run),
        figure=figure,
        subject=subject,
        rows=tuple(
            {
                "metric": metric_title(row.name),
                "measured": row.measured,
                "predicted": row.predicted,
                "low": row.low,
                "high": row.high,
                "error": row.error,
                "measured is": inside_text(row),
            }
            for row in run.metrics
        ),
    )


MARKS = {True: "", False: ", outside", None: ""}  # by whether what was measured lies within the interval


def _relative_ends(row: MetricRow) -> tuple[float, float]:
    """The ends of a prediction's interval over what was measured, less one; without one its error twice."""
    ends = (row.low, row.high) if row.inside is not None else (row.predicted, row.predicted)
    low, high = ((end or 0.0) / row.measured - 1 for end in ends)
    return low, high


def _metrics_words(run: RunComparison) -> str:
    """The largest error, and how many of the measured figures lie within their intervals."""
    worst = max(
        (row for row in run.metrics if row.error is not None),
        key=lambda row: abs(row.error or 0.0),
        default=None,
    )
    if worst is None:
        return "No metric in common."
    held = sum(bool(row.inside) for row in run.judged)
    within = (
        f" {held} of {len(run.judged)} measured figures lie within the 90 % interval." if run.judged else ""
    )
    return f"Largest: {metric_title(worst.name)}, {error_text(worst.error)}.{within}"


def comparison_charts(answer: Comparison) -> tuple[Chart, ...]:
    """A chart for each run."""
    subject = subject_of(answer)
    return tuple(metrics_chart(run, number, subject=subject) for number, run in enumerate(answer.runs))


def rendered(
    answer: Comparison, format: str, *, command: str | None = None, python: str | None = None
) -> str:
    """As `capacity.report.tables.render` does it of the library's own answers."""
    if format != "html":
        return render(answer, format, tables=comparison_tables)
    parts, charts = comparison_tables(answer), comparison_charts(answer)
    return answer_html(answer, parts, charts=charts, command=command, python=python)
