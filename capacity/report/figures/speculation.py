"""Speculative decoding as pictures: where it pays, by batch, by acceptance and by the way of drafting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout, listed, symbol
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.techniques.speculate import Speculating, SpeculationRow

LINES = (
    ("as asked", "speedup"),
    ("best draft length", "best_speedup"),
    ("textbook, verification free", "textbook_speedup"),
)


def speedup_chart(answer: Speculating) -> Chart:
    """Speed-up over the batch size: as asked, at the best draft length, and what the textbook says."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, field) in enumerate(LINES):
        figure.add_scatter(
            name=name,
            x=[row.batch_size for row in answer.rows],
            y=[getattr(row, field) for row in answer.rows],
            mode="lines+markers",
            line={
                "color": colour(index),
                "width": 2.5,
                "dash": "dot" if index == len(LINES) - 1 else "solid",
            },
            marker={"symbol": symbol(index), "size": 9},
            customdata=[row.best_draft_tokens for row in answer.rows],
            hovertemplate=f"{name}: %{{y:.2f}} times at batch %{{x}} (best k %{{customdata}})<extra></extra>",
        )
    _pays_above_one(figure)
    layout(figure, x="batch size", y="times as fast", height=400)
    figure.update_xaxes(type="log", tickvals=[row.batch_size for row in answer.rows])
    stops = (
        "It pays at every batch shown."
        if answer.break_even_batch is None
        else f"It stops paying at batch {answer.break_even_batch:,}."
    )
    first = answer.rows[0]
    return Chart(
        name="speedup_by_batch",
        title=f"{answer.method}, {answer.draft_tokens} drafted: speed-up by batch size",
        alt=f"{first.speedup:.2f} times at batch {first.batch_size}. {stops}",
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(_row(row) for row in answer.rows),
    )


def acceptance_chart(grid: Mapping[int, Sequence[tuple[float, SpeculationRow]]]) -> Chart:
    """Speed-up over acceptance, a line for each draft length k. `grid`: by k, (acceptance, row of one batch)."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (k, points) in enumerate(grid.items()):
        figure.add_scatter(
            name=f"k = {k}",
            x=[acceptance for acceptance, _ in points],
            y=[row.speedup for _, row in points],
            mode="lines+markers",
            line={"color": colour(index), "width": 2.5},
            marker={"symbol": symbol(index), "size": 8},
            hovertemplate=f"k = {k}: %{{y:.2f}} times at acceptance %{{x:.0%}}<extra></extra>",
        )
    _pays_above_one(figure)
    layout(figure, x="acceptance of each drafted token", y="times as fast", height=400)
    figure.update_xaxes(tickformat=".0%")
    phrases = []
    for k, points in grid.items():
        pays = next((acceptance for acceptance, row in points if row.speedup > 1), None)
        phrases.append(f"k = {k} " + ("never pays here" if pays is None else f"pays from {pays:.0%}"))
    return Chart(
        name="speedup_by_acceptance",
        title="Speed-up by acceptance and draft length",
        alt=listed(phrases) + ".",
        figure=figure,
        rows=tuple(
            {"k": k, "acceptance": acceptance, **_row(row)}
            for k, points in grid.items()
            for acceptance, row in points
        ),
    )


def methods_chart(answers: Mapping[str, Speculating]) -> Chart:
    """Each way to draft at one batch, by the acceptance published for it; its draft's share of a plain step beside."""
    import plotly.graph_objects as go

    rows = [(name, answer.rows[0]) for name, answer in answers.items()]
    rows.sort(key=lambda pair: pair[1].speedup)
    figure = go.Figure()
    figure.add_bar(
        name="times as fast",
        orientation="h",
        y=[name for name, _ in rows],
        x=[row.speedup for _, row in rows],
        text=[f"{row.speedup:.2f}, draft {row.draft_s / row.plain_step_s:.0%} of a step" for _, row in rows],
        textposition="outside",
        showlegend=False,
        **bar_style(0),
    )
    figure.add_vline(x=1.0, line={"color": NEUTRAL, "dash": "dash", "width": 2})
    layout(figure, x="times as fast", y="", height=140 + 44 * len(rows))
    figure.update_xaxes(range=[0, 1.6 * max((row.speedup for _, row in rows), default=1.0)])
    best = f"{rows[-1][0]} is fastest, {rows[-1][1].speedup:.2f} times" if rows else "no way fits"
    return Chart(
        name="ways_to_draft",
        title="Ways to draft, by the acceptance published for each",
        alt=f"{best}.",
        figure=figure,
        rows=tuple(
            {
                "method": name,
                "k": row.draft_tokens,
                "draft share of a step": row.draft_s / row.plain_step_s,
                "acceptance from": answers[name].acceptance_source.text,
                **_row(row),
            }
            for name, row in reversed(rows)
        ),
    )


def _pays_above_one(figure: Any) -> None:
    figure.add_hline(
        y=1.0,
        line={"color": NEUTRAL, "dash": "dash", "width": 2},
        annotation={"text": "pays above"},
        annotation_position="bottom left",
    )


def _row(row: SpeculationRow) -> dict[str, float]:
    return {
        "batch": row.batch_size,
        "tokens a round": row.tokens_per_round,
        "times as fast": row.speedup,
        "best k": row.best_draft_tokens,
        "at best k": row.best_speedup,
        "textbook": row.textbook_speedup,
        "verify / plain step": row.verify_cost,
    }
