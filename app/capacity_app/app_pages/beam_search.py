"""Beam search: what each more beam of a request costs, in steps and in KV, by how an engine carries beams along."""

from __future__ import annotations

from functools import partial

import streamlit as st

import capacity
from capacity.answers.records import Quantity
from capacity.report.display import rate_and_interval, seconds_and_interval, time_and_interval
from capacity.report.figures import beams as figures
from capacity.techniques.beam_search import BeamSearch
from capacity_app import parts, sides
from capacity_app.boundary import plain
from capacity_app.questions import answered, asker
from capacity_app.router import current_inputs
from capacity_app.widgets import draw, show_field, widget_row

WIDTHS = (1, 2, 4, 8, 16, 32)
inputs = current_inputs()
units = inputs.units


def kpi(label: str, shown: tuple[str, str], number: Quantity, beside: str = "") -> parts.Kpi:
    """A figure with its interval."""
    return parts.Kpi(
        label=label, value=shown[0], below="; ".join(filter(None, (shown[1], beside))), number=number
    )


def figures_of_merit(answer: BeamSearch) -> list[parts.Kpi]:
    """The widest search as this engine does it, beside its narrowest."""
    own = sorted((row for row in answer.rows if row.way == answer.engine_way), key=lambda row: row.beam_width)
    first, last = own[0], own[-1]
    one = f"with {first.beam_width}"
    return [
        parts.Kpi(
            label="Beams",
            value=f"{last.beam_width}",
            below=figures.WAYS[answer.engine_way],
            number=Quantity(value=last.beam_width),
        ),
        kpi(
            "TPOT",
            time_and_interval(last.tpot_s, units),
            last.tpot_s,
            f"{time_and_interval(first.tpot_s, units)[0]} {one}",
        ),
        parts.Kpi(
            label="Times greedy",
            value=f"{last.times_greedy:.2f}",
            below="one beam in the engine's own decode",
            number=Quantity(value=last.times_greedy),
        ),
        kpi(
            "E2E latency",
            seconds_and_interval(last.e2e_s),
            last.e2e_s,
            f"{seconds_and_interval(first.e2e_s)[0]} {one}",
        ),
        kpi("Requests/s", rate_and_interval(last.requests_per_s), last.requests_per_s),
        parts.Kpi(
            label="KV of a request",
            value=f"{last.kv_tokens:,} tokens",
            below=f"{first.kv_tokens:,} {one}",
            number=Quantity(value=last.kv_tokens),
        ),
        parts.Kpi(
            label="Requests held",
            value=f"{last.most_requests:,}",
            below=f"{first.most_requests:,} {one}" + ("" if last.fits else "; too few for this batch"),
            number=Quantity(value=last.most_requests),
        ),
    ]


of = partial(show_field, capacity.beam_search)
with widget_row():
    asked = draw(
        of("batch_size", "beam_batch", "Requests at a time", most=4096),
        of("beam_widths", "beam_widths", "Beams of a request", choices=WIDTHS, default=None),
    )
options = {**inputs.pool, **inputs.lengths, **asked, "beam_widths": tuple(sorted(asked["beam_widths"]))}
found = answered("beam_search", inputs, options, doing="Widening")
answer = found.value
if answer is not None:
    side = sides.side_of("beam_search", found.arguments)
    sides.figures(side, answer, ask=asker("beam_search", inputs), row=figures_of_merit)
    parts.chart(figures.beam_chart(answer, units))
    st.caption(plain(f"* as {answer.engine} does. Whiskers: 90 % intervals."))
    parts.table(
        "beam_search", figures.beam_rows(answer, units), alt="Every number of beams in every way, in numbers."
    )
    parts.notes(answer.warnings)
