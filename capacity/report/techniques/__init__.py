"""The techniques' answers as tables for people; JSON and CSV are the records themselves.

A technique's own table stands in the module of the technique's name; one without is drawn by the names of its fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capacity.base.record import AnswerRecord
from capacity.report.figures.batching import batching_chart
from capacity.report.figures.chart import Chart
from capacity.report.tables import render
from capacity.report.techniques.attention_io import attention_io_parts
from capacity.report.techniques.batching import batching_parts
from capacity.report.techniques.beam_search import beam_search_parts
from capacity.report.techniques.cache_curve import cache_curve_parts
from capacity.report.techniques.cells import Part, record_parts
from capacity.report.techniques.engine_table import engines_parts
from capacity.report.techniques.kv import kv_parts
from capacity.report.techniques.quantize import quantizations_parts, quantize_parts
from capacity.report.techniques.scaling import scale_parts
from capacity.report.techniques.speculate import speculate_parts, speculators_parts, textbook_parts

TABLES: dict[str, Callable[[Any], list[Part]]] = {
    "quantize": quantize_parts,
    "quantizations": quantizations_parts,
    "speculate": speculate_parts,
    "textbook": textbook_parts,
    "speculators": speculators_parts,
    "kv": kv_parts,
    "cache-curve": cache_curve_parts,
    "engines": engines_parts,
    "scale": scale_parts,
    "attention-io": attention_io_parts,
    "batching": batching_parts,
    "beam-search": beam_search_parts,
}  # by the name of the answer's schema
CHARTS: dict[str, Callable[[Any], Chart]] = {"batching": batching_chart}  # by verb


def tables_of(name: str) -> Callable[[Any], list[Part]]:
    """What draws the answers of a technique, by the name of their schema."""
    return TABLES.get(name, record_parts)


def render_answer(answer: AnswerRecord, format: str) -> str:
    """A technique's answer in `format`, as `render`."""
    return render(answer, format)
