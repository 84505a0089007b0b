"""Money as pictures: price per token at the served and at full load, replicas by the hour, the curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, layout, listed
from capacity.report.subject import subject_of
from capacity.simulator.verdict import UNSETTLED

if TYPE_CHECKING:
    from capacity.planning.bills.billing import Bill

SPREAD = "; whiskers: at the cheapest and the dearest offer"
SMALLEST_TEXT = 11  # px; bars too narrow for it have none
PRICES = (
    ("input", "usd_per_million_input_tokens"),
    ("output", "usd_per_million_output_tokens"),
    ("blended", "usd_per_million_tokens"),
)


Offers = (
    tuple[float, float] | None
)  # $ per GPU-hour: the cheapest and the dearest that a price is the median of


def _whiskers(values: Sequence[float], bill: Bill, offers: Offers) -> Mapping[str, object] | None:
    """From the cheapest to the dearest offer, around what is paid at the price."""
    if offers is None:
        return None
    low, high = (offer / bill.usd_per_gpu_hour for offer in offers)
    return {
        "type": "data",
        "symmetric": False,
        "array": [value * (high - 1) for value in values],
        "arrayminus": [value * (1 - low) for value in values],
        "color": NEUTRAL,
    }


def price_chart(bill: Bill, *, offers: Offers = None) -> Chart:
    """$ per million tokens, at the load that is served (idle time included) and at full load; whiskers: at the
    cheapest and the dearest offer."""
    import plotly.graph_objects as go

    served = None if bill.verdict in UNSETTLED else bill.served
    loads = [(name, load) for name, load in (("as served", served), ("at full load", bill.full)) if load]
    figure = go.Figure()
    for index, (name, load) in enumerate(loads):
        values = [getattr(load, field) for _, field in PRICES]
        figure.add_bar(
            name=name,
            x=[kind for kind, _ in PRICES],
            y=values,
            error_y=_whiskers(values, bill, offers),
            text=[f"${value:,.3f}" for value in values],
            textposition="outside" if offers is None else "inside",
            insidetextanchor="start",
            textangle=0,
            **bar_style(index),
            hovertemplate=f"{name}, %{{x}}: $%{{y:,.4f}} per 1M tokens<extra></extra>",
        )
    layout(figure, x="", y="$ per 1M tokens", height=380, barmode="group")
    figure.update_layout(uniformtext={"minsize": SMALLEST_TEXT, "mode": "hide"})
    phrases = [
        f"{name} ${load.usd_per_million_output_tokens:,.3f} per 1M output tokens" for name, load in loads
    ]
    return Chart(
        name="price_per_token",
        title="$ per million tokens" + SPREAD * (offers is not None),
        alt=f"{listed(phrases)}.",
        figure=figure,
        subject=subject_of(bill),
        rows=tuple(
            {"load": name, **{f"$ per 1M {kind}": getattr(load, field) for kind, field in PRICES}}
            for name, load in loads
        ),
    )


def month_chart(bill: Bill, *, offers: Offers = None) -> Chart:
    """The monthly bill beside what the same requests cost at each API; whiskers: at the cheapest and dearest offer."""
    import plotly.graph_objects as go

    compared = [comparison for comparison in (bill.break_even, *bill.apis) if comparison is not None]
    own, own_usd = _own_month(bill)
    bars = [(own, own_usd)]
    bars += [(_short(comparison.api), comparison.api_usd_per_month) for comparison in compared]
    figure = go.Figure()
    for index, (name, usd) in enumerate(bars):
        figure.add_bar(
            x=[usd],
            y=[name],
            orientation="h",
            error_x=_whiskers([usd], bill, offers if index == 0 else None),
            text=[f"${usd:,.0f}" if offers is None or index else ""],  # else behind the whisker
            textposition="outside",
            showlegend=False,
            **bar_style(0 if index == 0 else 1),
            hovertemplate=f"{name}: $%{{x:,.2f}} a month<extra></extra>",
        )
    dearest = 0.0 if offers is None else own_usd * offers[1] / bill.usd_per_gpu_hour
    if offers is not None:  # behind the whisker, which would strike it through
        ends = " to ".join(f"${own_usd * offer / bill.usd_per_gpu_hour:,.0f}" for offer in offers)
        figure.add_scatter(
            x=[max(dearest, own_usd)],
            y=[bars[0][0]],
            mode="text",
            text=[f"${own_usd:,.0f}<br>{ends}"],
            textposition="middle right",
            textfont={"size": 12},
            cliponaxis=False,
            showlegend=False,
            hoverinfo="skip",
        )
    layout(figure, x="$ a month (730 h)", y="", height=140 + 46 * len(bars))
    figure.update_xaxes(range=[0, (1.3 if offers is None else 1.8) * max(dearest, *(usd for _, usd in bars))])
    figure.update_yaxes(autorange="reversed")
    return Chart(
        name="month",
        title="A month of this load" + SPREAD * (offers is not None),
        alt=listed([f"{name} ${usd:,.0f} a month" for name, usd in bars]) + ".",
        figure=figure,
        subject=subject_of(bill),
        rows=tuple({"bill": name, "$ a month": usd} for name, usd in bars),
    )


def _own_month(bill: Bill) -> tuple[str, float]:
    """Return what serves the load and its $ a month: more replicas than billed where these are overloaded."""
    needed = None if bill.needed is None else bill.needed.needed or bill.needed.stable
    if bill.verdict == "overloaded" and needed is not None and needed.usd_per_month is not None:
        return f"{needed.replicas:,} replicas", needed.usd_per_month
    return "this deployment", bill.usd_per_month


def _short(api: str) -> str:
    """`DeepInfra llama-3.1-8b` of a price with its date and source; its own is `API`."""
    return "the API" if api.startswith("given with") else api.partition(",")[0]
