"""Beam search by width and by how beams are carried along."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.display import text_and_interval
from capacity.report.techniques.cells import Cell, Columns, Part, headline, notes, number, table

if TYPE_CHECKING:
    from capacity.techniques.beam_search import BeamRow, BeamSearch


def beam_search_parts(answer: BeamSearch) -> list[Part]:
    columns: Columns[BeamRow] = [
        ("beams", lambda row: f"{row.beam_width} {row.way}{' *' if row.way == answer.engine_way else ''}"),
        ("TPOT, ms", _spanned("tpot_s", 1e3)),
        ("times greedy", number("times_greedy", 1, 2)),
        ("E2E, s", lambda row: text_and_interval(row.e2e_s)[0]),
        ("requests/s", _spanned("requests_per_s", 1.0)),
        ("KV tokens", number("kv_tokens", 1, 0)),
        ("requests held", lambda row: f"{row.most_requests:,}{'' if row.fits else ' (too few)'}"),
    ]
    at_once = "1 request" if answer.batch_size == 1 else f"{answer.batch_size} requests"
    title = (
        f"{at_once} at a time, {answer.input_len:,} tokens in, {answer.output_len:,} out; "
        f"* as {answer.engine} does"
    )
    return [headline(answer), table(title, answer.rows, columns), *notes(answer.warnings)]


def _spanned(name: str, unit: float) -> Cell[BeamRow]:
    def cell(row: BeamRow) -> str:
        value, interval = text_and_interval(getattr(row, name), unit)
        return f"{value}\n[dim]{interval}[/dim]" if interval else value

    return cell
