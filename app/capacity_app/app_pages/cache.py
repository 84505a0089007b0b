"""Prefix caching: what a cache of each size would find in your requests, and what that saves."""

from __future__ import annotations

from functools import partial

import streamlit as st

import capacity
from capacity.report.display import rounded
from capacity.report.figures.techniques import hit_rate_chart
from capacity.techniques.cache_curve import CacheCurve
from capacity.techniques.glossary import define
from capacity_app import parts, uploads
from capacity_app.jobs import Task
from capacity_app.router import current_inputs
from capacity_app.traffic import TRACE_TYPES
from capacity_app.widgets import draw, show_field, switch, widget_row

inputs = current_inputs()


def show(answer: CacheCurve) -> None:
    """The hit rate without a limit, by size, by routing, and what providers would bill."""
    best = answer.rows[-1]
    saved = answer.savings
    kpis = [
        parts.Kpi(
            label="Found without a limit",
            value=f"{best.token_hit_fraction:.1%}",
            below="of prompt tokens",
            help=define("prefix caching").definition,
        ),
        parts.Kpi(
            label="Nothing more beyond",
            value=f"{answer.knee_tokens:,} tokens",
            below=f"blocks of {answer.block_tokens}",
            help="A cache larger than this finds nothing that this one does not.",
        ),
        parts.Kpi(
            label="Requests",
            value=f"{answer.requests:,}",
            below=f"{answer.prompt_tokens:,} prompt tokens",
            help="What was read of the file.",
        ),
    ]
    if saved is not None:
        kpis.append(
            parts.Kpi(
                label="Prefill saved",
                value=f"{saved.saved_fraction:.1%}",
                below=f"by {saved.capacity_tokens:,} tokens of KV cache",
                help="Time that this model on this GPU does not spend on prompts, with all its KV cache for prefixes.",
            )
        )
    parts.kpis(kpis)
    parts.chart(hit_rate_chart(answer))
    if answer.routing:
        st.subheader("By routing")
        rows = [
            {
                "routing": row.routing,
                "tokens found, %": rounded(100 * row.token_hit_fraction),
                "busiest replica's share of prefill, %": rounded(100 * row.largest_share),
            }
            for row in answer.routing
        ]
        parts.table("routing", rows, alt="Hit rates by routing over the replicas.")
    st.subheader("What providers' caches would make of the input bill")
    plans = [
        {
            "plan": row.plan,
            "found in time, %": rounded(100 * row.hit_fraction),
            "bill, % of one without": rounded(100 * row.relative_cost),
            "pays from, % found": None
            if row.break_even_hit_fraction is None
            else rounded(100 * row.break_even_hit_fraction),
        }
        for row in answer.plans
    ]
    parts.table("plans", plans, alt="The input bill under each provider's plan.")
    parts.notes(answer.warnings)


file = st.file_uploader(
    "Your requests",
    type=TRACE_TYPES,
    key="cache_trace",
    help="With hashes of their blocks (Mooncake, Qwen) or as conversations; gzip or not. It stays on this machine.",
)
of = partial(show_field, capacity.cache_curve)
with widget_row():
    options = draw(
        of("replicas", "cache_replicas", "Replicas", least=1, most=64),
        of("as_engine", "cache_engine", "As the engine caches", help="Full blocks only, and answers too."),
    )
    saves = switch(
        "and what it saves here",
        "cache_saves",
        False,
        help="Prefill time that the sidebar's model and GPU would not spend.",
    )
served = {name: inputs.pool[name] for name in ("gpu", "tensor_parallel_size") if name in inputs.pool}
if file is None:
    st.info("Upload a trace.", icon=":material/upload_file:")
else:
    on = {"served_by": (inputs.model, served)} if saves else {}
    task = Task(
        function="capacity:cache_curve", arguments={"trace": str(uploads.kept(file)), **options, **on}
    )
    answer = parts.background("cache_curve", task, doing="Looking for prefixes").value
    python = {**options, **({"served_by": (inputs.model_name, served)} if saves else {})}
    typed = {**options, **({"model": inputs.model_name, **served} if saves else {})}
    parts.copies("cache-curve", file.name, python, answer, typed=typed)
    if answer is not None:
        show(answer)
