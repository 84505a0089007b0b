"""Every GPU at one load as a table."""

from __future__ import annotations

from capacity.answers.load_point import ORDERS, LoadPoint
from capacity.planning.sizing.gpu_comparison import GpuComparison
from capacity.report.display import rate_and_interval, time_and_interval, usd_text
from capacity.report.layout import Part, grid, notes

LOADS = {
    "batch_size": "{:,.0f} requests together",
    "concurrency": "{:,.0f} requests in flight, closed loop",
    "request_rate": "{:g} requests/s arrive",
}


def gpu_comparison_tables(answer: GpuComparison) -> list[Part]:
    """What serves the load, the best first; then what does not, and why."""
    alone = answer.load_field == "batch_size" and answer.load == 1
    load = "1 request alone" if alone else LOADS[answer.load_field].format(answer.load)
    served = [point for point in answer.rows if point.fits]
    refused = [point for point in answer.rows if not point.fits]
    pools = "with the replicas it needs" if answer.load_field == "request_rate" else "at its smallest pool"
    levels = f"; SLO {' and '.join(answer.slos)}" if answer.slos else ""
    headline = (
        f"[bold]{answer.model}[/bold], {load}, {answer.input_len:,} tokens in, {answer.output_len:,} out{levels}: "
        f"each GPU {pools}, by {ORDERS[answer.order][0]}" + _least_bill(answer)
    )
    table = [_served(served)] if served else []
    whys = [f"[red]{point.gpu}[/red]: {point.reason}" for point in refused]
    prices = [point.price_note for point in served if point.price_note is not None]
    return [headline, *table, *whys, *notes([*prices, *answer.notes])]


def _least_bill(answer: GpuComparison) -> str:
    """Of a request rate, the GPUs that serve it at the least bill, in a line."""
    bills = [
        point
        for point in answer.rows
        if point.usd_per_month is not None and point.verdict == "stable" and point.misses is None
    ]
    if answer.load_field != "request_rate" or not bills:
        return ""
    best = min(bills, key=lambda point: point.usd_per_month or 0.0)
    replicas = "1 replica" if best.replicas == 1 else f"{best.replicas} replicas"
    gpus = f"{best.num_gpus} x {best.gpu}"
    return (
        f"\nneeded: {replicas} of TP{best.tensor_parallel_size}, {gpus}, ${best.usd_per_month:,.0f} a month"
    )


def _served(points: list[LoadPoint]) -> Part:
    table = grid(
        "",
        ("GPUs", "left"),
        ("replicas", "left"),
        ("TTFT", "right"),
        ("TPOT", "right"),
        ("tokens/s", "right"),
        ("$/1k req", "right"),
        ("$/month", "right"),
        ("", "left"),
    )
    table.title = None
    table.columns[0].no_wrap = True
    for point in points:
        rate = point.output_tokens_per_s
        table.add_row(
            f"{point.num_gpus} x {point.gpu}",
            f"{point.replicas} x TP{point.tensor_parallel_size}",
            *("-" if q is None else time_and_interval(q)[0] for q in (point.ttft_s, point.tpot_s)),
            "-" if rate is None else rate_and_interval(rate)[0],
            usd_text(point.usd_per_thousand_requests),
            "-" if point.usd_per_month is None else f"${point.usd_per_month:,.0f}",
            _state(point),
        )
    return table


def _state(point: LoadPoint) -> str:
    """The verdict where it is not stable, and that the service levels are missed."""
    verdict = () if point.verdict in (None, "stable") else (str(point.verdict),)
    return ", ".join((*verdict, *(() if point.misses is None else ("misses SLO",))))
