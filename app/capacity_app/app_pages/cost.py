"""Cost: the bill, an API beside it, replicas by the hour, and what the bill hangs on."""

from __future__ import annotations

from typing import Any

import streamlit as st

from capacity.answers.records import Quantity
from capacity.planning.bills.billing import Bill, LoadCost
from capacity.report.cost import miss_text
from capacity.report.display import offers_text
from capacity.report.figures import costs as figures
from capacity.report.replicas import replicas_text
from capacity.report.views.tornado import tornado_view
from capacity.simulator.verdict import STABLE, UNSETTLED
from capacity_app import parts, sides, state, views
from capacity_app.boundary import boundary, plain
from capacity_app.jobs import Task
from capacity_app.router import current_inputs

BILL = "capacity.planning.bills.cost:cost"
inputs = current_inputs()
units = inputs.units


def usd(value: float | None, digits: int = 3) -> str:
    """Dollars, or a dash where there is no figure."""
    return "-" if value is None else f"${value:,.{digits}f}"


def exact(label: str, value: str, below: str, number: float | None = None) -> parts.Kpi:
    """A figure that no interval belongs to."""
    return parts.Kpi(
        label=label, value=value, below=below, number=None if number is None else Quantity(value=number)
    )


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


def ask(side: sides.Side) -> Task:
    """The bill of a side."""
    model = inputs.model if side.model == inputs.model_name else side.model
    return Task(function=BILL, arguments={"model": model, **side.options, **side.cost})


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
    with st.container(horizontal=True, vertical_alignment="bottom"):
        listed = st.toggle(
            "Compare with listed APIs",
            True,
            **state.bound("cost_apis", True),
            help="By the dated list of API prices; a remark below says where it has none.",
        )
        own = st.toggle("and with an API of", False, **state.bound("cost_api", False))
        api_in = state.number("$ per 1M input", "cost_api_in", 0.2, 0.0, 1000.0, disabled=not own, width=125)
        api_out = state.number(
            "$ per 1M output", "cost_api_out", 0.6, 0.0, 1000.0, disabled=not own, width=125
        )
        cached = state.number(
            "Cached share", "cost_cached", 0.0, 0.0, 1.0, step=0.05, disabled=not own, width=125
        )
    options: dict[str, Any] = {"api": "all"} if listed else {}
    if own:
        options |= {"api_input_price": api_in, "api_output_price": api_out, "api_cached_fraction": cached}
    return options


def day_and_curve(options: dict[str, Any]) -> None:
    """Latency against load, and replicas by the hour of a day."""
    st.subheader("How much it carries, and replicas by the hour")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        ratio = state.number(
            "Peak over mean",
            "cost_peak_to_mean",
            1.6,
            1.0,
            2.0,
            width=135,
            help="How much more comes at the day's peak.",
        )
        asked = st.number_input(
            "Peak requests/s",
            0.01,
            1e6,
            None,
            placeholder=f"{inputs.request_rate * ratio:g}",
            **state.bound("cost_peak", None),
            width=140,
            help="Empty: the sidebar's requests/s times the peak over the mean.",
        )
        peak = inputs.request_rate * ratio if asked is None else asked
        each = state.number("Requests a user-hour", "cost_each", 6.0, 0.01, 1e5, width=165)
    load = {
        **{name: value for name, value in options.items() if name != "request_rate"},  # a curve has its own
        **inputs.client,
        "slo": inputs.slo,
        "peak_rate": peak,
        "peak_to_mean": ratio,
        "requests_per_user_hour": each,
    }
    task = Task(function="capacity.planning.load.curve:curve", arguments={"model": inputs.model, **load})
    curve = parts.background("curve", task, doing="Searching the highest rate", button="Draw the curve").value
    parts.copies("curve", inputs.model_name, load, curve)
    if curve is None:
        return
    if curve.highest is not None:
        users = "" if curve.users is None else f", {curve.users:,.0f} users of {each:g} requests an hour"
        st.success(
            plain(
                f"Up to {curve.highest.at_confidence:,.2f} requests/s within the SLO at "
                f"{curve.highest.confidence:.0%} confidence{users}."
            ),
            icon=":material/check:",
        )
    parts.chart(figures.curve_chart(curve))
    day = figures.day_chart(curve)
    if day is not None:
        parts.chart(day)
        if curve.day.autoscaled_usd_per_month is not None:
            st.caption(
                plain(
                    f"A month: {usd(curve.day.autoscaled_usd_per_month, 0)} autoscaled, "
                    f"{usd(curve.day.fixed_usd_per_month, 0)} fixed."
                )
            )
    parts.notes(curve.warnings)


def sensitivity(options: dict[str, Any]) -> None:
    """The tornado."""
    st.subheader("What it hangs on")
    task = Task(
        function="capacity.planning.variations.tornado:tornado", arguments={"model": inputs.model, **options}
    )
    tornado = parts.background("tornado", task, doing="Varying inputs", button="Draw the tornado").value
    parts.copies("tornado", inputs.model_name, options, tornado)
    if tornado is not None:
        views.show(tornado_view(tornado), tornado)


with st.container(horizontal=True, vertical_alignment="bottom"):
    replicas = state.whole("Replicas", "cost_replicas", 1, 1, 1000, width=120)
    requests = state.requests_to_simulate("cost_requests")
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
        **requests,
        **({"replicas": replicas} if replicas > 1 else {}),
        **inputs.cost,
    }
    billed["slo"] = list(inputs.slo)
    task = Task(function=BILL, arguments={"model": inputs.model, **options, **billed})
    bill: Bill | None = parts.background("bill", task, doing="Simulating the load").value
    parts.copies("cost", inputs.model_name, {**options, **billed}, bill)
    if bill is not None:
        asked = {name: value for name, value in {**options, **billed}.items() if name not in inputs.cost}
        current = sides.Side(page="cost", model=inputs.model_name, options=asked, cost=dict(inputs.cost))
        verdict_line(bill)
        sides.figures(current, bill, ask=ask, row=figures_of_merit, slo=inputs.slo)
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
