"""KV as pictures: bytes of a request over its context, and what keeping less of it buys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout, log_axis, symbol
from capacity.report.techniques.cells import tokens

if TYPE_CHECKING:
    from capacity.techniques.kv import KvAnswer, KvAnswerRow
    from capacity.techniques.kv_eviction import EvictionRow

KINDS = (
    ("as it is", "actual_bytes_per_token"),
    ("MHA", "mha_bytes_per_token"),
    ("MQA", "mqa_bytes_per_token"),
    ("MLA (512 + 64)", "mla_bytes_per_token"),
)


def context_chart(answer: KvAnswer, units: Units = STANDARD) -> Chart:
    """Bytes of one request over its tokens, a line for each model. They are counted, so that there is no interval."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, row in enumerate(answer.rows):
        figure.add_scatter(
            x=list(answer.contexts),
            y=[units.of_bytes(row.request_bytes[context]) for context in answer.contexts],
            mode="lines+markers",
            name=row.model,
            line={"color": colour(index), "width": 2.5},
            marker={"symbol": symbol(index), "size": 10},
            hovertemplate=f"{row.model}, %{{x:,}} tokens: %{{y:,.3r}} {units.memory}<extra></extra>",
        )
    layout(figure, x="tokens of a request", y=f"KV cache, {units.memory}", height=360)
    figure.update_xaxes(
        type="log", tickvals=list(answer.contexts), ticktext=[tokens(context) for context in answer.contexts]
    )
    sizes = [units.of_bytes(size) for row in answer.rows for size in row.request_bytes.values()]
    figure.update_yaxes(**log_axis(sizes))
    words = "; ".join(
        f"{row.model} {units.memory_text(row.request_bytes[answer.contexts[-1]])} at {tokens(answer.contexts[-1])}"
        for row in answer.rows
    )
    return Chart(
        name="kv_contexts",
        title="KV cache of one request",
        alt=f"{words}.",
        figure=figure,
        subject=_subject(answer),
        rows=tuple(_context_row(row, answer, units) for row in answer.rows),
    )


def _context_row(row: KvAnswerRow, answer: KvAnswer, units: Units) -> dict[str, object]:
    return {
        "model": row.model,
        "attention": row.attention,
        "KiB a token": row.bytes_per_token / 1024,
        **{
            f"{units.memory} at {tokens(context)}": float(f"{units.of_bytes(row.request_bytes[context]):.4g}")
            for context in answer.contexts
        },
        **{f"{gpu} holds, tokens": held for gpu, held in row.gpu_context_tokens.items()},
    }


def kind_rows(answer: KvAnswer) -> list[dict[str, object]]:
    """KiB of a token if attention were of another kind."""
    return [
        {"model": row.model}
        | {name: float(f"{getattr(row.kinds, field) / 1024:.4g}") for name, field in KINDS}
        for row in answer.rows
    ]


def evictions_at(answer: KvAnswer, context: int) -> list[EvictionRow]:
    """The whole KV and every method, at one context."""
    return [row for row in answer.evictions if row.context_tokens == context]


def eviction_chart(answer: KvAnswer, context: int) -> Chart:
    """Requests held and tokens per second of each method, as multiples of the whole KV's, at one context.

    Both sides of a ratio are of one step model, so that most of its error is in both: no interval is drawn.
    """
    import plotly.graph_objects as go

    rows = evictions_at(answer, context)
    whole = rows[0]
    figure = go.Figure()
    series: tuple[tuple[str, Callable[[EvictionRow], float | None]], ...] = (
        ("a step as fast", lambda row: row.speedup),
        ("requests held", lambda row: _ratio(row.held, whole.held)),
        ("tokens/s", lambda row: _ratio(row.tokens_per_s, whole.tokens_per_s)),
    )
    known = [0.5, 1.0]
    for index, (name, of) in enumerate(series):
        values = [of(row) for row in rows[1:]]
        known += [value for value in values if value]
        figure.add_bar(
            y=[row.method for row in rows[1:]],
            x=[None if value is None else value - 1 for value in values],
            base=[1.0] * len(values),
            orientation="h",
            name=name,
            text=["-" if value is None else f"{value:.3g}x" for value in values],
            textposition="none",
            hovertemplate=f"{name}: %{{text}}<extra>%{{y}}</extra>",
            **bar_style(index),
        )
    layout(figure, x="times the whole KV's", y="", height=150 + 54 * max(len(rows) - 1, 1), barmode="group")
    figure.update_xaxes(**log_axis(known))
    figure.update_yaxes(autorange="reversed")
    figure.add_vline(x=1.0, line={"color": NEUTRAL, "width": 1})
    best = max(rows[1:], key=lambda row: row.tokens_per_s or 0.0, default=None)
    words = "no method was asked for"
    if best is not None and best.tokens_per_s is not None:
        words = (
            f"the most tokens/s has {best.method}, {best.tokens_per_s:,.0f} with {best.held:,} requests held"
        )
    elif best is not None:
        words = "one prompt of this length does not fit on the GPU"
    return Chart(
        name="kv_eviction",
        title=f"What keeping less buys, at {tokens(context)} tokens",
        alt=f"{len(rows) - 1} methods: {words}.",
        figure=figure,
        subject=_subject(answer),
        rows=tuple(eviction_rows(answer, context)),
    )


def _ratio(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def eviction_rows(answer: KvAnswer, context: int, units: Units = STANDARD) -> list[dict[str, object]]:
    """Every method at one context, in numbers."""

    def time(seconds: float | None) -> float | None:
        return None if seconds is None else float(f"{units.of_seconds(seconds):.3g}")

    return [
        {
            "method": row.method,
            "kept, tokens": row.kept_tokens,
            f"KV, {units.memory}": float(f"{units.of_bytes(row.kv_bytes):.4g}"),
            "share, %": float(f"{100 * row.kept_share:.3g}"),
            f"step of {row.batch_size}, {units.time}": time(row.step_s),
            "times as fast": None if row.speedup is None else float(f"{row.speedup:.3g}"),
            "requests held": row.held,
            "tokens/s": None if row.tokens_per_s is None else float(f"{row.tokens_per_s:.3g}"),
            f"prefill, {units.time}": time(row.prefill_s),
            f"scoring, {units.time}": time(row.score_s),
        }
        for row in evictions_at(answer, context)
    ]


def published_rows(answer: KvAnswer) -> list[dict[str, object]]:
    """What was published of each method's quality and speed, and which engines have it."""
    return [
        {
            "method": method.method,
            "what it is": method.title,
            "engines": ", ".join(method.engines) or "none",
            "published": "; ".join(
                f"{each.what} ({each.model}; {each.source}, {each.date})" for each in method.published
            ),
            "remark": method.note or None,
        }
        for method in answer.eviction_methods
    ]


def _subject(answer: KvAnswer) -> str:
    return ", ".join((*(row.model for row in answer.rows), *answer.gpus))
