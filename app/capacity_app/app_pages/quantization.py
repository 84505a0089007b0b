"""Quantization: every format for this model and GPU, by memory, latency, cost and published quality."""

from __future__ import annotations

from typing import Any

import streamlit as st

import capacity
from capacity.answers.records import Quantity
from capacity.report.display import as_sure, usd_text
from capacity.report.figures.techniques import quantization_chart, quantization_rows
from capacity.techniques.glossary import define
from capacity.techniques.quantize import QuantizedOption, Quantizing
from capacity_app import parts, state
from capacity_app.boundary import plain
from capacity_app.questions import answered
from capacity_app.router import current_inputs
from capacity_app.widgets import draw, show_field, switch

inputs = current_inputs()
units = inputs.units


def of_one(row: QuantizedOption) -> None:
    """The figures of merit of one method."""

    def known(seconds: float, name: str) -> Quantity:
        low, high = row.intervals_s.get(name, (None, None))
        return Quantity(value=seconds, low=low, high=high)

    def time(seconds: float | None, name: str) -> str:
        return "-" if seconds is None else units.time_text(seconds, known(seconds, name))

    def within(name: str, of: str) -> str:
        seconds = getattr(row, name)
        interval = "" if seconds is None else units.time_interval(known(seconds, name))
        return "; ".join(filter(None, (interval, of)))

    usd = row.usd_per_million_tokens
    in_batch = None if row.tpot_large_s is None else known(row.tpot_large_s, "tpot_large_s")
    parts.kpis(
        [
            parts.Kpi(
                label="Weights",
                value=units.memory_text(row.weights_bytes),
                below="" if row.bits_per_weight is None else f"{row.bits_per_weight:.3g} bits each",
                help=define("quantization").definition,
            ),
            parts.Kpi(
                label="TPOT alone",
                value=time(row.tpot_small_s, "tpot_small_s"),
                below=within("tpot_small_s", "a batch of 1"),
                help=define("tpot").definition,
            ),
            parts.Kpi(
                label="TPOT in a batch",
                value=time(row.tpot_large_s, "tpot_large_s"),
                below=within("tpot_large_s", f"of {row.large_batch}"),
                help="The same where many requests share each step.",
            ),
            parts.Kpi(label="TTFT", value=time(row.ttft_s, "ttft_s"), below=within("ttft_s", "")),
            parts.Kpi(
                label="Most requests",
                value=f"{row.max_batch:,}",
                below="at once",
                help="How many requests of these lengths run together, by memory or the engine's limit.",
            ),
            parts.Kpi(
                label="$ per 1M tokens",
                value="-" if usd is None else usd_text(as_sure(usd, in_batch)),
                below="in and out, as many as fit",
                help="Input and output together, with as many requests at once as there is memory for.",
            ),
        ]
    )
    if row.reason:
        st.warning(plain(row.reason), icon=":material/block:")


def show(answer: Quantizing) -> None:
    """One method in figures, all of them in a picture and a table."""
    methods = {row.method: row for row in answer.rows}
    chosen = state.choice("Look at", "quant_method", tuple(methods), next(iter(methods)))
    of_one(methods[chosen])
    every = switch("Also what this engine does not load", "quant_every", False)
    parts.chart(quantization_chart(answer, every=every))
    parts.table("quantization", quantization_rows(answer), alt="Every way to quantize, in numbers.")
    parts.notes(answer.warnings)


options: dict[str, Any] = {
    **{name: value for name, value in inputs.pool.items() if name != "quantization"},
    **inputs.lengths,
    **draw(
        show_field(
            capacity.quantize, "large_batch", "quant_batch", "Batch of the second TPOT", least=1, most=4096
        )
    ),
    **inputs.cost,
}
answer = answered("quantize", inputs, options, doing="Trying formats").value
if answer is not None:
    show(answer)
