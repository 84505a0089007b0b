"""Layouts along one axis of parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.techniques.cells import (
    Columns,
    Part,
    headline,
    notes,
    number,
    percent,
    table,
    text,
)

if TYPE_CHECKING:
    from capacity.techniques.scaling import Layout, Scaling


def scale_parts(answer: Scaling) -> list[Part]:
    columns: Columns[Layout] = [
        ("GPUs", text("num_gpus")),
        ("max batch", lambda row: f"{row.max_batch:,}"),
        ("TTFT ms", number("ttft_s", 1e3, 1)),
        ("TPOT ms", number("tpot_s", 1e3)),
        ("speed-up", number("speedup")),
        ("tokens/s/GPU", number("output_tokens_per_s_per_gpu", 1, 0)),
        ("efficient", percent("efficiency", 0)),
        ("links", percent("communication_share", 0)),
        *_axis_columns(answer.axis),
        ("$/1M tokens", number("usd_per_million_tokens", 1, 3)),
    ]
    rows = answer.rows
    title = f"{answer.axis} parallelism, {answer.concurrency} requests in flight"
    parts: list[Part] = [headline(answer), table(title, rows, columns)]
    parts += [f"{row.num_gpus} GPUs: {row.reason}" for row in rows if row.reason]
    if answer.tpot_limit_s is not None:
        gpus = answer.cheapest_num_gpus
        verdict = "no layout" if gpus is None else f"{gpus} GPUs"
        parts.append(f"cheapest with a TPOT of {answer.tpot_limit_s * 1e3:g} ms: {verdict}")
    if answer.context_parallel:
        ranks: Columns[object] = [
            ("ranks", text("ranks")),
            ("prefill ms", number("seconds", 1e3, 1)),
            ("ring not hidden ms", number("exposed_communication_s", 1e3, 2)),
            ("efficiency", percent("efficiency", 0)),
        ]
        title = f"Context parallelism: one prompt of {answer.input_len:,} tokens over several such groups"
        parts.append(table(title, answer.context_parallel, ranks))
    return [*parts, *notes(answer.warnings)]


def _axis_columns(axis: str) -> Columns[Layout]:
    """What is particular to an axis of parallelism."""
    if axis == "tensor":
        return [("MB/token sent", number("all_reduce_bytes_per_token", 1e-6))]
    if axis == "pipeline":
        return [
            ("prefill bubble", percent("bubble_fraction", 0)),
            ("decode idle", percent("idle_fraction", 0)),
        ]
    return [
        ("busiest GPU x", number("expert_imbalance")),
        ("experts read", number("experts_read", 1, 0)),
    ]
