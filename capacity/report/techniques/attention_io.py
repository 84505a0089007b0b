"""Naive against tiled attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.layout import GIB
from capacity.report.techniques.cells import Cell, Columns, Part, headline, notes, number, table, tokens

if TYPE_CHECKING:
    from capacity.techniques.attention_io import AttentionIo, AttentionTrafficTable


def attention_io_parts(answer: AttentionTrafficTable) -> list[Part]:
    columns: Columns[AttentionIo] = [
        ("tokens", lambda row: tokens(row.tokens)),
        ("naive GB", number("naive_bytes", 1e-9, 1)),
        ("tiled GB", number("tiled_bytes", 1e-9, 1)),
        ("ratio", number("traffic_ratio", 1, 1)),
        ("naive scores GiB", number("naive_extra_bytes", 1 / GIB)),
        ("naive ms", number("naive_seconds", 1e3)),
        ("tiled ms", number("tiled_seconds", 1e3)),
        ("kernel ms", number("kernel_seconds", 1e3)),
    ]
    title = f"Prefill attention of one prompt, all layers; {answer.on_chip_bytes // 1024} KiB on chip"
    return [
        headline(answer),
        table(title, answer.rows, columns),
        *([_kernels(answer)] if answer.rows else []),
        *notes(answer.warnings),
    ]


def _kernels(answer: AttentionTrafficTable) -> Part:
    """Prefill, and the decode of one request, by each kernel: "-" where nobody published its speed on this GPU."""
    columns: Columns[AttentionIo] = [
        ("tokens", lambda row: tokens(row.tokens)),
        ("fitted", number("kernel_seconds", 1e3)),
    ]
    for place, kernel in enumerate(answer.rows[0].kernels):
        columns.append((kernel.kernel.replace("flash_attention_", "flash "), _of_kernel(place, "prefill_s")))
        columns.append(("decode", _of_kernel(place, "decode_s")))
    return table(
        "The same by other kernels, ms: a prompt, and the decode of one request at as many tokens",
        answer.rows,
        columns,
    )


def _of_kernel(place: int, name: str) -> Cell[AttentionIo]:
    return lambda row: number(name, 1e3)(row.kernels[place])
