"""Cost: the bill, an API beside it, replicas by the hour, and what the bill hangs on."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

import capacity
from capacity.planning.bills.billing import Bill, LoadCost
from capacity.report.cost import miss_text
from capacity.report.display import offers_text
from capacity.report.figures import costs as figures
from capacity.report.replicas import replicas_text
from capacity.report.views.rising_load import curve_view
from capacity.report.views.tornado import tornado_view
from capacity.simulator.verdict import STABLE, UNSETTLED
from capacity_app import parts, sides, state, views
from capacity_app.boundary import boundary, plain
from capacity_app.parts import exact
from capacity_app.questions import answered, asker
from capacity_app.router import current_inputs
from capacity_app.traffic import requests_to_simulate
from capacity_app.widgets import draw, show_field, switch, widget_row

inputs = current_inputs()
units = inputs.units


def usd(value: float | None, digits: int = 3) -> str:
    """Dollars, or a dash where there is no figure."""
    return "-" if value is None else f"${value:,.{digits}f}"


def figures_of_merit(bill: Bill) -> list[parts.Kpi]:
    """The KPI row: what is paid, and what a token and a request cost at the load that is served."""
    load: LoadCost = bill.served or bill.full
    at = "as served" if bill.served else "at full load"
    judged = bill.verdict
    steady = judged not in UNSETTLED
    full = bill.full
    gpus = f"{bill.billed_gpus} GPU{'s' * (bill.billed_gpus > 1)} at {usd(bill.usd_per_gpu_hour, 2)}"
    used = "-" if bill.utilization is None else f"{bill.utilization:.0%}"

    def price(label: str, value: float, full_usd: float, digits: int = 3) -> parts.Kpi:
        if not steady:
            return exact(label, "-", f"{judged}; full load {usd(full_usd, digits)}")
        return exact(label, usd(value, digits), f"{at}; full load {usd(full_usd, digits)}", value)

    def rent(label: str, value: float, digits: int, below: str) -> parts.Kpi:
        if not steady:
            return exact(
                label,
                usd(value, digits),
                "does not serve this load" if judged == "overloaded" else judged or "",
            )
        return exact(label, usd(value, digits), below, value)

    kwh = f"{load.kwh_per_million_output_tokens:,.3f} kWh per 1M output tokens, {at}"
    return [
        rent("Per hour", bill.usd_per_hour, 2, gpus),
        rent("Per day", bill.usd_per_day, 2, f"{load.requests_per_day:,.0f} requests {at}"),
        rent(
            "Per month",
            bill.usd_per_month,
            0,
            offers_text(bill.usd_per_month, bill.usd_per_gpu_hour, inputs.offers) or "730 h",
        ),
        price("$ per 1M output", load.usd_per_million_output_tokens, full.usd_per_million_output_tokens),
        price("$ per 1M input", load.usd_per_million_input_tokens, full.usd_per_million_input_tokens),
        price("$ per 1k requests", load.usd_per_thousand_requests, full.usd_per_thousand_requests, 4),
        exact("Utilization", used, "of what it could serve", bill.utilization)
        if steady
        else exact("Utilization", "-", judged or ""),
        exact(
            "Provisioned energy",
            f"{load.joules_per_output_token:,.2f} J",
            f"per output token; {kwh}",
            load.joules_per_output_token if steady else None,
        ),
    ]


def verdict_line(bill: Bill) -> None:
    """Whether the deployment serves the load within the SLO, and how many replicas do."""
    if bill.verdict is None:
        return
    missed = "".join(f"; {miss_text(level)}" for level in bill.levels if not level.met)
    shown = "saturated" if missed and bill.verdict in STABLE else bill.verdict
    parts.verdict(shown, f"{bill.verdict}: {bill.verdict_reason or ''}{missed}")
    if bill.needed is not None and not bill.serves and not sides.pinned():
        st.info(plain(replicas_text(bill.needed)), icon=":material/dns:")


def break_even_lines(bill: Bill) -> None:
    """For each API the load above which own GPUs are cheaper, and whether they could carry it."""
    for even in (bill.break_even, *bill.apis):
        if even is None:
            continue
        own = even.own_usd_per_month == bill.usd_per_month
        here = "here" if own else "with the replicas that serve the load"
        who = "this deployment" if own else "they"
        could = f"{who} can carry that" if even.possible else f"more than {who} can carry"
        st.markdown(
            plain(
                f"Against {even.api}: {usd(even.api_usd_per_month, 0)} a month there, "
                f"{usd(even.own_usd_per_month, 0)} {here}; equal at {even.requests_per_s:,.2f} requests/s, {could}."
            )
        )


def api_options() -> dict[str, Any]:
    """An API to compare with: the dated list's, and a price of one's own."""
    of = partial(show_field, capacity.cost)
    with widget_row():
        listed = switch(
            "Compare with listed APIs",
            "cost_apis",
            True,
            help="By the dated list of API prices; a remark below says where it has none.",
        )
        own = switch("and with an API of", "cost_api", False)
        prices = draw(
            of("api_input_price", "cost_api_in", "$ per 1M input", start=0.2, most=1000.0),
            of("api_output_price", "cost_api_out", "$ per 1M output", start=0.6, most=1000.0),
            of("api_cached_fraction", "cost_cached", "Cached share", step=0.05),
            disabled=not own,
        )
    return {**({"api": "all"} if listed else {}), **prices}


def day_and_curve(options: dict[str, Any]) -> None:
    """Latency against load, and replicas by the hour of a day."""
    st.subheader("How much it carries, and replicas by the hour")
    of = partial(show_field, capacity.curve)
    with widget_row():
        ratio = draw(
            of("peak_to_mean", "cost_peak_to_mean", "Peak over mean", least=1.0, most=2.0, default=None)
        )
        usual = inputs.request_rate * ratio["peak_to_mean"]
        peak = of("peak_rate", "cost_peak", "Peak requests/s", least=0.01, most=1e6, empty=f"{usual:g}")
        each = of(
            "requests_per_user_hour", "cost_each", "Requests a user-hour", start=6.0, least=0.01, most=1e5
        )
        asked = {"peak_rate": usual, **draw(peak), **ratio, **draw(each)}
    load = {
        **{name: value for name, value in options.items() if name != "request_rate"},  # a curve has its own
        **inputs.client,
        "slo": inputs.slo,
        **asked,
    }
    curve = answered("curve", inputs, load, doing="Searching the highest rate", button="Draw the curve").value
    if curve is None:
        return
    if curve.highest is not None:
        users = (
            ""
            if curve.users is None
            else f", {curve.users:,.0f} users of {asked['requests_per_user_hour']:g} requests an hour"
        )
        st.success(
            plain(
                f"Up to {curve.highest.at_confidence:,.2f} requests/s within the SLO at "
                f"{curve.highest.confidence:.0%} confidence{users}."
            ),
            icon=":material/check:",
        )
    views.show(curve_view(curve), curve)


def sensitivity(options: dict[str, Any]) -> None:
    """The tornado."""
    st.subheader("What it hangs on")
    tornado = answered("tornado", inputs, options, doing="Varying inputs", button="Draw the tornado").value
    if tornado is not None:
        views.show(tornado_view(tornado), tornado)


with widget_row():
    counted = draw(
        show_field(capacity.cost, "replicas", "cost_replicas", "Replicas", most=1000),
        requests_to_simulate("cost_requests"),
    )
billed = api_options()
if not inputs.cost:
    listed = (
        "choose a tier"
        if state.chosen("tier", "") == state.NO_PRICE
        else "no such price is listed: another tier"
    )
    st.info(f"No price: {listed} in the sidebar, or your own price.", icon=":material/payments:")
else:
    options = {
        **inputs.pool,
        **inputs.lengths,
        **inputs.spread,
        "request_rate": inputs.request_rate,
        **counted,
        **inputs.cost,
    }
    found = answered(
        "cost", inputs, {**options, **billed, "slo": list(inputs.slo)}, doing="Simulating the load"
    )
    bill: Bill | None = found.value
    if bill is not None:
        current = sides.side_of("cost", found.arguments)
        verdict_line(bill)
        sides.figures(current, bill, ask=asker("cost", inputs), row=figures_of_merit, slo=inputs.slo)
        st.caption(plain(f"{bill.tier}: {bill.source}. {bill.rule[0].upper()}{bill.rule[1:]}."))
        left, right = st.columns(2)
        with left:
            parts.chart(figures.price_chart(bill, offers=inputs.offers))
        with right:
            parts.chart(figures.month_chart(bill, offers=inputs.offers))
        break_even_lines(bill)
        parts.notes(bill.warnings)
    with boundary():
        day_and_curve(options)
    with boundary():
        sensitivity(options)
