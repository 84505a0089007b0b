"""Naive against tiled attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.layout import GIB
from capacity.report.techniques.cells import Columns, Part, headline, notes, number, table, tokens

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
    return [headline(answer), table(title, answer.rows, columns), *notes(answer.warnings)]
