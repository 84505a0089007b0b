"""A cascade as a picture: $ of a request against the escalation rate, beside the large model alone."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.answers.records import Quantity
from capacity.planning.cascade_answer import CascadeAnswer
from capacity.report.figures.chart import NEUTRAL, Chart, colour, layout
from capacity.report.figures.loads import faint, with_interval
from capacity.report.subject import subject_of

THOUSAND = 1e3
MONTH_S = 730 * 3600


def cascade_chart(answer: CascadeAnswer) -> Chart:
    """$ per 1k requests where engines are many, with its band, and in whole engines here, over the escalation rate.

    Without a small model there is none to draw: a chart without rows.
    """
    import plotly.graph_objects as go

    rates = [100 * row.escalation_rate for row in answer.rates]
    many = [row.usd_per_request_at_scale.scaled(THOUSAND) for row in answer.rates]
    here = [row.usd_per_month.scaled(THOUSAND / MONTH_S / answer.requests_per_s) for row in answer.rates]
    alone = answer.alone.usd_per_request_at_scale.scaled(THOUSAND)
    figure = go.Figure()
    _band(figure, rates, many)
    _line(figure, rates, many, "cascade, engines many", colour(0))
    _line(figure, rates, here, "cascade, whole engines here", colour(1), dash="dot")
    _line(figure, rates, [alone] * len(rates), "alone, engines many", NEUTRAL, dash="dash")
    alone_here = answer.alone.usd_per_request.scaled(THOUSAND)
    _line(figure, rates, [alone_here] * len(rates), "alone, whole engines here", colour(1), dash="dash")
    layout(figure, x="escalated, %", y="$ per 1k requests", height=340)
    figure.update_yaxes(rangemode="tozero")
    even = answer.break_even.escalation_rate_at_scale
    pays = "at no rate" if even is None else f"up to {even.value:.0%} escalated"
    return Chart(
        name="cascade_over_escalation",
        title="$ of a request against the escalation rate",
        alt=f"{answer.small} before {answer.model}: it pays {pays}, where engines are many.",
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(
            {
                "escalated, %": rate,
                "$ per 1k, engines many": dear.value,
                "low": dear.low,
                "high": dear.high,
                "$ per 1k here": whole.value,
            }
            for rate, dear, whole in zip(rates, many, here, strict=True)
        ),
    )


def _band(figure: object, rates: Sequence[float], values: Sequence[Quantity]) -> None:
    low, high = ([each.low or each.value for each in values], [each.high or each.value for each in values])
    figure.add_scatter(  # type: ignore[attr-defined]
        x=[*rates, *reversed(rates)],
        y=[*low, *reversed(high)],
        fill="toself",
        mode="lines",
        fillcolor=faint(colour(0)),
        line={"width": 0},
        hoverinfo="skip",
        name="90 % interval",
    )


def _line(
    figure: object,
    rates: Sequence[float],
    values: Sequence[Quantity],
    name: str,
    shade: str,
    dash: str = "solid",
) -> None:
    figure.add_scatter(  # type: ignore[attr-defined]
        x=rates,
        y=[each.value for each in values],
        mode="lines+markers" if dash == "solid" else "lines",
        name=name,
        line={"color": shade, "width": 2.5, "dash": dash},
        text=[with_interval(each) for each in values],
        hovertemplate=f"{name}: $%{{text}} at %{{x:.0f}} %<extra></extra>",
    )
