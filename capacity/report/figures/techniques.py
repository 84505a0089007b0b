"""The changes that help a deployment as a picture: what each does to latency and cost."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from capacity.answers.records import Quantity
from capacity.report.display import rounded
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, layout

if TYPE_CHECKING:
    from capacity.planning.variations.advice import Advice, AdviceList

MOST_CHANGES = 12
NAME_WIDTH = 22  # letters of a line beside the bars, for a phone
LEAST_CHANGE = 0.01  # of anything: less is no bar
FARTHEST = 100.0  # percent; bars that go on are cut there, and their numbers stand beside them
CHANGES = (
    ("p95 TTFT", "ttft_p95_change"),
    ("p95 TPOT", "tpot_p95_change"),
    ("p95 E2E", "e2e_p95_change"),
    ("$ a request at full load", "cost_change"),
)
DRAWN = (CHANGES[0], CHANGES[1], CHANGES[3])


def advice_rows(answer: AdviceList) -> list[dict[str, object]]:
    """The changes that help, with their effects; seconds and $ are differences."""
    return [_digits(_advice_row(line)) for line in answer.advice if line.effects is not None]


def _advice_row(line: Advice) -> dict[str, object]:
    assert line.effects is not None
    effects = line.effects
    return {
        "needs": line.needs,
        "change": line.change,
        "flags": line.flags,
        **{f"{name}, %": _percent(getattr(effects, field)) for name, field in CHANGES},
        "p95 TTFT, ms": None if effects.ttft_p95_s is None else 1e3 * effects.ttft_p95_s,
        "p95 TPOT, ms": None if effects.tpot_p95_s is None else 1e3 * effects.tpot_p95_s,
        "$/h": effects.usd_per_hour,
        "requests that fail": line.failed,
        "quality": line.quality,
        "remark": line.note,
    }


def advice_chart(answer: AdviceList) -> Chart:
    """The most beneficial changes, by what each does to latency and cost, relative to the deployment as it is."""
    import plotly.graph_objects as go

    best = [line for line in answer.advice if _moves(line)][:MOST_CHANGES]
    figure = go.Figure()
    for index, (name, field) in enumerate(DRAWN):
        values = [_percent(getattr(line.effects, field)) for line in best]
        figure.add_bar(
            y=[line.change for line in best],
            x=values,
            orientation="h",
            name=name,
            hovertemplate=f"{name}: %{{x:+.1f}} %<extra>%{{y}}</extra>",
            **bar_style(index),
        )
    names = [line.change for line in best]
    figure.update_yaxes(
        autorange="reversed", tickvals=names, ticktext=["<br>".join(wrap(name, NAME_WIDTH)) for name in names]
    )
    figure.update_xaxes(range=[-FARTHEST, FARTHEST], nticks=5, zeroline=True, zerolinecolor=NEUTRAL)
    layout(figure, x="change, %: less is better", y="", height=130 + 58 * max(len(best), 1), barmode="group")
    words = "no change helps" if not best else f"the most beneficial is to {best[0].change}"
    return Chart(
        name="advice",
        title="What would help here",
        alt=f"{len(answer.advice)} changes simulated on the same arrivals: {words}.",
        figure=figure,
        rows=tuple(advice_rows(answer)),
    )


def _moves(line: Advice) -> bool:
    """Whether a change does anything that a bar would show."""
    if line.effects is None:
        return False
    return any(abs(getattr(line.effects, field) or 0.0) >= LEAST_CHANGE for _, field in DRAWN)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _digits(row: dict[str, object]) -> dict[str, object]:
    """A row whose numbers say no more than they know: those with an interval by that, others in three digits."""
    return {name: _digits_of(value) for name, value in row.items()}


def _digits_of(value: object) -> object:
    if isinstance(value, Quantity):
        return rounded(value.value, value)
    return rounded(value) if isinstance(value, float) else value
