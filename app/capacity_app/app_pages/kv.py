"""KV cache: bytes of a request by context and kind of attention, what the GPU holds, and what keeping less buys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

import capacity
from capacity.answers.records import Quantity
from capacity.report.figures import kv as figures
from capacity.report.techniques.cells import tokens
from capacity.techniques.kv import KvAnswer
from capacity.techniques.long_context import CONTEXTS
from capacity_app import parts, sides, state
from capacity_app.boundary import plain
from capacity_app.jobs import Task
from capacity_app.pages import KV_POOL
from capacity_app.router import current_inputs
from capacity_app.widgets import draw, show_field, widget_row

inputs = current_inputs()
units = inputs.units
named = {tokens(context): context for context in CONTEXTS}


def exact(label: str, value: str, below: str, number: float | None) -> parts.Kpi:
    """A figure that is counted."""
    return parts.Kpi(
        label=label, value=value, below=below, number=None if number is None else Quantity(value=number)
    )


def figures_of_merit(answer: KvAnswer) -> list[parts.Kpi]:
    """The KPI row, of the one model and GPU."""
    row, gpu = answer.rows[0], answer.gpus[0]
    size, held = row.request_bytes[context], row.gpu_context_tokens[gpu]
    long = answer.long_contexts[0] if answer.long_contexts else None
    half = None if long is None else long.decode_crossover_tokens
    cached = "" if row.kv_cache_dtype == "auto" else f", {row.kv_cache_dtype}"
    kpis = [
        exact(
            "KiB a token",
            f"{row.bytes_per_token / 1024:,.1f}",
            f"{row.attention}{cached}",
            row.bytes_per_token,
        ),
        exact(f"A request of {tokens(context)}", units.memory_text(size), "KV cache", size),
        exact("The GPU holds", f"{held:,} tokens", "of one request, at most the model's own limit", held),
        exact(
            "Half attention from",
            "-" if half is None else f"{half:,.0f} tokens",
            f"of a decode step of {batch}",
            half,
        ),
    ]
    whole = figures.evictions_at(answer, context)[0]
    if whole.step_s is not None:
        kpis.append(exact("A step", units.time_text(whole.step_s), f"of {batch} such requests", whole.step_s))
    tried = [each for each in figures.evictions_at(answer, context) if each.tokens_per_s is not None]
    if len(tried) > 1:
        best = max(tried, key=lambda each: each.tokens_per_s or 0.0)
        kpis.append(
            exact(
                "Keeping less",
                f"{best.tokens_per_s:,.0f} tokens/s",
                f"{best.method}, not lossless; {tried[0].tokens_per_s:,.0f} with {tried[0].title}",
                best.tokens_per_s,
            )
        )
    return kpis


def keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """The library's: of the pool what this question takes."""
    taken = {name: options[name] for name in (*KV_POOL, *asked) if name in options}
    return {"gpus": (taken.pop("gpu"),), **taken}


def ask(side: sides.Side) -> Task:
    """The KV of a side."""
    model = sides.model_of(side, inputs)
    return Task(function="capacity:kv", arguments={"models": model, **keywords(side.options)})


def show(answer: KvAnswer) -> None:
    """Bytes by context and by kind of attention; what keeping less buys, and what was published of its quality."""
    parts.chart(figures.context_chart(answer, units))
    st.subheader("KiB a token, if attention were of another kind")
    parts.table("kinds", figures.kind_rows(answer), alt="KiB a token by kind of attention.")
    if answer.evictions:
        parts.chart(figures.eviction_chart(answer, context))
        st.caption(
            "Ratios of two computations by the same step model, so that most of its error is in both: they have no "
            "interval. Bytes and tokens are counted."
        )
        rows = figures.eviction_rows(answer, context, units)
        parts.table("evictions", rows, alt="Every method in numbers.")
        st.subheader("Not lossless: what was published")
        parts.table("published", figures.published_rows(answer), alt="Published quality of each method.")
    for row in answer.long_contexts:
        if row.reason:
            st.caption(plain(f"{row.model} on {row.gpu}: {row.reason}"))


with widget_row():
    context = named[state.segments("Tokens of a request", "kv_context", tuple(named), "32K")]
    of = partial(show_field, capacity.kv)
    asked = draw(
        of("batch_size", "kv_batch", "Requests in a step", most=4096, default=None),
        of("budget_tokens", "kv_budget", "Tokens kept", most=1_000_000, step=256, default=None),
    )
batch, budget = asked["batch_size"], asked["budget_tokens"]
asked["eviction"] = "all"
pool = {name: inputs.pool[name] for name in KV_POOL if name in inputs.pool}
current = sides.Side(page="kv", model=inputs.model_name, options={**pool, **asked}, cost={})
python = keywords(current.options)
answer = parts.background("kv", ask(current), doing="Counting").value
typed = {**pool, "batch_size": batch, "eviction": "all", "kv_budget": budget}
parts.copies("kv", inputs.model_name, python, answer, typed=typed)
if answer is not None:
    sides.figures(current, answer, ask=ask, row=figures_of_merit)
    show(answer)
