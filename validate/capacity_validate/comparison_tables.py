"""The answer of `capacity compare` as tables: a run's metrics beside their predictions, and what was made of them."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.answers.records import Quantity
from capacity.report.display import text_and_interval
from capacity.report.layout import Part, crossed, notes
from capacity_validate.comparison import Comparison, MetricRow, RunComparison

WORDS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
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
    return TITLES.get(name) or (f"{statistic} {WORDS[metric]}, ms" if metric in WORDS else name)


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
