"""A cascade as pictures, beside its large model alone: $ of a request against the escalation rate, the month's bill by
place, and how long users wait."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.answers.records import Quantity
from capacity.planning.cascades.cascade_answer import CascadeAnswer
from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout
from capacity.report.figures.loads import faint, whiskers, with_interval
from capacity.report.subject import subject_of

THOUSAND = 1e3
MONTH_S = 730 * 3600
LATENCIES = (
    ("mean TTFT", "mean_ttft_s"),
    ("p95 TTFT", "p95_ttft_s"),
    ("mean E2E", "mean_e2e_s"),
    ("p95 E2E", "p95_e2e_s"),
)  # of a `Whole`


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


def cascade_bill_chart(answer: CascadeAnswer) -> Chart:
    """The month's bill of the cascade by place, beside that of the large model alone; whiskers: 90 % intervals of the
    whole, whose number of engines is as sure as their speed."""
    import plotly.graph_objects as go

    both = {"cascade": answer.cascade.usd_per_month, "large model alone": answer.alone.usd_per_month}
    figure = go.Figure()
    for index, tier in enumerate(answer.tiers):
        figure.add_bar(
            y=["cascade"],
            x=[tier.usd_per_month.value],
            orientation="h",
            name=f"{tier.tier}: {tier.model}",
            hovertemplate="%{fullData.name}: $%{x:,.0f}<extra></extra>",
            **bar_style(index),
        )
    figure.add_bar(
        y=["large model alone"],
        x=[answer.alone.usd_per_month.value],
        orientation="h",
        name=f"alone: {answer.model}",
        hovertemplate="%{fullData.name}: $%{x:,.0f}<extra></extra>",
        **bar_style(len(answer.tiers)),
    )
    figure.add_scatter(
        y=list(both),
        x=[whole.value for whole in both.values()],
        mode="markers",
        name="all, 90 % interval",
        marker={"color": NEUTRAL, "symbol": "line-ns-open", "size": 12},
        error_x=whiskers(list(both.values())),
        text=[with_interval(whole) for whole in both.values()],
        hovertemplate="%{y}: $%{text}<extra></extra>",
    )
    layout(figure, x="$ a month, whole engines", y="", height=280, barmode="stack")
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(rangemode="tozero")
    return Chart(
        name="cascade_bill",
        title="What a month costs, and where",
        alt=(
            f"${answer.cascade.usd_per_month.value:,.0f} a month with the cascade, "
            f"${answer.alone.usd_per_month.value:,.0f} with {answer.model} alone."
        ),
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(
            [
                {"place": f"{tier.tier}: {tier.model}", **_money_row(tier.usd_per_month)}
                for tier in answer.tiers
            ]
            + [{"place": name, **_money_row(whole)} for name, whole in both.items()]
        ),
    )


def _money_row(usd: Quantity) -> dict[str, float | None]:
    return {"$ a month": usd.value, "low": usd.low, "high": usd.high}


def cascade_latency_chart(answer: CascadeAnswer, units: Units = STANDARD) -> Chart:
    """TTFT and E2E latency, mean and p95, of the cascade, simulated as one deployment too where that was asked for,
    beside the large model alone, with 90 % intervals. Of an API whose latency nobody said there is none: a chart
    without rows."""
    import plotly.graph_objects as go

    scale = units.of_seconds(1)
    sides = {
        "cascade": answer.cascade,
        "simulated together": answer.together,
        "large model alone": answer.alone,
    }
    known = {
        side: {name: found for name, field in LATENCIES if (found := getattr(whole, field)) is not None}
        for side, whole in sides.items()
        if whole is not None
    }
    figure = go.Figure()
    for index, (side, times) in enumerate(known.items()):
        values: list[Quantity] = list(times.values())
        figure.add_bar(
            y=list(times),
            x=[scale * value.value for value in values],
            orientation="h",
            name=side,
            error_x=whiskers(values, scale),
            text=[with_interval(value, scale) for value in values],
            textposition="none",
            hovertemplate=f"{side}: %{{text}} {units.time}<extra>%{{y}}</extra>",
            **bar_style(index),
        )
    layout(figure, x=f"latency, {units.time}", y="", height=150 + 90 * len(known), barmode="group")
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(rangemode="tozero")
    words = "; ".join(
        f"{side} " + ", ".join(f"{name} {units.time_text(each.value, each)}" for name, each in times.items())
        for side, times in known.items()
        if times
    )
    return Chart(
        name="cascade_latency",
        title="How long users wait, against the large model alone",
        alt=words or "No latency is known.",
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(
            {
                "of": side,
                "latency": name,
                units.time: scale * found.value,
                "low": _scaled(found.low, scale),
                "high": _scaled(found.high, scale),
            }
            for side, times in known.items()
            for name, found in times.items()
        ),
    )


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def tier_rows(answer: CascadeAnswer, units: Units = STANDARD) -> list[dict[str, object]]:
    """Every place that requests reach, as a table shows it."""
    return [
        {
            "where": f"{tier.tier}: {tier.model}",
            "on": tier.place,
            "of all, %": 100 * tier.share,
            "engines": tier.engines,
            "GPUs": tier.billed_gpus,
            "busy, %": None if tier.utilization is None else round(100 * tier.utilization),
            "$ per 1k that reach it": None
            if tier.usd_per_request is None
            else float(f"{THOUSAND * tier.usd_per_request.value:.4g}"),
            "$ a month": round(tier.usd_per_month.value),
            "mean TTFT": None
            if tier.mean_ttft_s is None
            else units.time_text(tier.mean_ttft_s.value, tier.mean_ttft_s),
            "mean E2E": None
            if tier.mean_e2e_s is None
            else units.time_text(tier.mean_e2e_s.value, tier.mean_e2e_s),
        }
        for tier in answer.tiers
    ]
