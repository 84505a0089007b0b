"""Cost page: bill, comparison with API prices, replicas for each hour of the day, and sensitivity analysis."""

from typing import Any

import streamlit as st

from capacity.base.mappings import omit
from capacity.planning.bills.billing import Bill
from capacity.report.display import phrase
from capacity.report.replicas import replicas_text
from capacity.report.views.cost import bill_facts, bill_view, reason_text
from capacity.report.views.rising_load import curve_view
from capacity.report.views.tornado import tornado_view
from capacity.simulator.verdict import STABLE
from capacity_app import parts, sides, state, views
from capacity_app.error_display import escape_markdown, show_errors
from capacity_app.questions import ask_in_background, show_figures
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, page_field, page_switch, widget_row

inputs = current_inputs()


def draw_day_and_curve(options: dict[str, Any]) -> None:
    """Draw latency against load, and the number of replicas for each hour of the day."""
    st.subheader("Maximum load, and replicas by hour")
    with widget_row():
        ratio = draw_fields("cost_peak_to_mean")
        usual = inputs.request_rate * ratio["peak_to_mean"]
        peak = draw_fields(page_field("cost_peak", empty=f"{usual:g}"))
        asked = {"peak_rate": usual, **peak, **ratio, **draw_fields("cost_each")}
    load = {
        **omit(options, "request_rate"),  # a curve covers many rates
        **inputs.client,
        "slo": inputs.slo,
        **asked,
    }
    curve = ask_in_background(
        "curve", inputs, load, doing="Searching for the highest rate", button="Draw the curve"
    ).ready_value
    if curve.highest is not None:
        text = (
            f"Up to {curve.highest.at_confidence:,.2f} requests/s within the SLO at "
            f"{curve.highest.confidence:.0%} confidence"
        )
        each = asked.get("requests_per_user_hour")
        text += phrase(", {:,.0f} users with {:g} requests per hour each", curve.users, each)
        st.success(escape_markdown(f"{text}."), icon=":material/check:")
    views.draw_view(curve_view(curve), curve)


with widget_row():
    counted, growth = draw_fields("cost_replicas", "cost_requests"), draw_fields("cost_growth")
    if growth:
        growth |= draw_fields("cost_months")
with widget_row():
    listed = page_switch("cost_apis")
    own = page_switch("cost_api")
    prices = draw_fields("cost_api_in", "cost_api_out", "cost_cached", disabled=not own)
if not inputs.cost:
    tier = "a tier" if state.page_choice("tier", "") == state.NO_PRICE else "another tier"
    st.info(f"No price: choose {tier} or your own price in the sidebar.", icon=":material/payments:")
else:
    options = {
        **inputs.pool,
        **inputs.lengths,
        **inputs.spread,
        "request_rate": inputs.request_rate,
        **counted,
        **inputs.cost,
    }
    billed = {"api": "all", **prices} if listed else prices
    asked = {**options, **growth, **billed, "slo": list(inputs.slo)}
    found = ask_in_background("cost", inputs, asked, doing="Simulating the load")
    bill: Bill | None = found.value
    if bill is not None:
        missed = bill.verdict in STABLE and not bill.serves
        parts.draw_verdict("saturated" if missed else bill.verdict, f"{bill.verdict}: {reason_text(bill)}")
        if bill.needed is not None and not (bill.serves or sides.pinned_sides()):
            st.info(escape_markdown(replicas_text(bill.needed)), icon=":material/dns:")
        show_figures("cost", inputs, found, bill_facts, inputs.offers, slo=inputs.slo)
        views.draw_view(bill_view(bill, inputs.offers), bill)
    with show_errors():
        draw_day_and_curve(options)
    with show_errors():
        st.subheader("Sensitivity analysis")
        tornado = ask_in_background(
            "tornado", inputs, options, doing="Varying inputs", button="Draw the tornado"
        ).ready_value
        views.draw_view(tornado_view(tornado), tornado)
