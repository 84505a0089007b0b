"""Engines side by side, the formats that they load, and published claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.techniques.cells import Columns, Part, number, percent, table, text, yes

if TYPE_CHECKING:
    from capacity.techniques.engine_table import Claim, EngineRow, Engines


def engines_parts(answer: Engines) -> list[Part]:
    columns: Columns[EngineRow] = [
        ("engine", text("engine")),
        ("policy", lambda row: row.policy + ("" if row.simulated else " *")),
        ("paged", yes("paged")),
        ("chunked", yes("chunked_prefill")),
        ("cache", yes("prefix_caching")),
        ("async", yes("async_scheduling")),
        ("seqs", lambda row: f"{row.max_num_seqs:,}"),
        ("tokens", lambda row: f"{row.max_num_batched_tokens:,}"),
        ("memory", percent("gpu_memory_utilization", 0)),
        ("host ms", number("host_step_s", 1e3)),
        ("sourced", percent("sourced_fraction", 0)),
    ]
    formats: Columns[EngineRow] = [
        ("engine", text("engine")),
        ("drafts simulated", yes("drafts")),
        ("weights", lambda row: ", ".join(row.weight_formats)),
        ("KV cache", lambda row: ", ".join(("16-bit", *row.kv_cache_formats))),
    ]
    parts: list[Part] = [
        table(f"Engines and their defaults on {answer.gpu} (* not simulated)", answer.rows, columns),
        table("Formats that they load: others are refused", answer.rows, formats),
    ]
    if answer.claims:
        claims: Columns[Claim] = [
            ("claim", text("name")),
            ("published", lambda row: f"{row.published:g} {row.unit}"),
            ("ours", number("ours", 1, 1)),
            ("bound", number("bound", 1, 1)),
            ("possible", yes("possible")),
            ("remark", text("note")),
        ]
        parts.append(table("Published single-stream claims on A100", answer.claims, claims))
    return parts
