"""The widgets that say how requests come, and what they answer as the library's keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from capacity.workload import trace_titles
from capacity_app import state, uploads
from capacity_app.state import Inputs

Keywords = dict[str, Any]

CLOSED_LOOP, TOGETHER_AT_ONCE, TRACE = "closed loop", "all at once", "a trace"
ARRIVALS = (
    "Poisson",
    "bursty",
    "constant",
    "on and off",
    "ramp",
    "a day",
    CLOSED_LOOP,
    TOGETHER_AT_ONCE,
    "conversations",
    TRACE,
)
_HELP = (
    "How requests come. In a closed loop the sidebar's concurrency stays in flight; all others go by its requests/s; "
    f"a trace is a file of yours ({trace_titles()}, gzip or not)."
)
TRACE_TYPES = ("csv", "jsonl", "json", "gz", "txt")


def traffic_widgets(inputs: Inputs) -> Keywords | None:
    """Draw the widgets; the traffic as keywords of `simulate`, or None until there is a trace."""
    kind = state.choice("Arrivals", "sim_arrivals", ARRIVALS, "Poisson", help=_HELP)
    return _uploaded() if kind == TRACE else _generated(kind, inputs)


def _arriving(kind: str, inputs: Inputs) -> Keywords:
    """The arrivals as the library's keywords, with the widgets of this kind drawn."""
    rate: Keywords = {"request_rate": inputs.request_rate}
    columns = st.columns(4)
    if kind == "bursty":
        with columns[2]:
            return {
                **rate,
                "burstiness": state.number("Burstiness", "sim_burst", 0.3, 0.01, 100.0, help="1: Poisson."),
            }
    if kind == "constant":
        return {**rate, "burstiness": float("inf")}
    if kind == "on and off":
        with columns[2]:
            on_s = state.number("Seconds on", "sim_on", 10.0, 0.1, 86_400.0)
        with columns[3]:
            return {
                **rate,
                "arrivals": "on-off",
                "on_s": on_s,
                "off_s": state.number("off", "sim_off", 10.0, 0.1, 86_400.0),
            }
    if kind == "ramp":
        with columns[2]:
            end = state.number("Last requests/s", "sim_end", 12.0, 0.01, 100_000.0)
        with columns[3]:
            ramp_s = state.number("over seconds", "sim_ramp", 60.0, 0.1, 86_400.0)
        return {**rate, "arrivals": "ramp", "end_request_rate": end, "ramp_s": ramp_s}
    if kind == "a day":
        with columns[2]:
            peak = state.number("Peak over mean", "sim_peak", 1.5, 1.0, 2.0)
        with columns[3]:
            day_s = state.number("Day of seconds", "sim_day", 240.0, 1.0, 86_400.0)
        return {**rate, "arrivals": "diurnal", "day_peak_to_mean": peak, "day_length_s": day_s}
    if kind == CLOSED_LOOP:
        return {"concurrency": inputs.concurrency}
    if kind == TOGETHER_AT_ONCE:
        return {"request_rate": float("inf")}
    if kind == "conversations":
        with columns[2]:
            turns = state.whole("Turns", "sim_turns", 4, 1, 50)
        with columns[3]:
            think_s = state.number("Think time, s", "sim_think", 5.0, 0.0, 3600.0)
        return {**rate, "turns": turns, "think_time_s": think_s}
    return rate


def _generated(kind: str, inputs: Inputs) -> Keywords:
    """Requests from parameters."""
    columns = st.columns(4)
    with columns[0]:
        count = state.whole("Requests", "sim_requests", 1000, 1, 100_000, step=500)
    with columns[1]:
        prefix = state.whole(
            "System prompt tokens", "sim_prefix", 0, 0, 100_000, help="Shared by all requests."
        )
    with columns[2]:
        seed = state.whole("Seed", "sim_seed", 0, 0, 1_000_000)
    requests: Keywords = {**inputs.lengths, **inputs.spread, "num_prompts": count}
    if prefix:
        requests["random_prefix_len"] = prefix
    return {**requests, **_arriving(kind, inputs), **({"seed": seed} if seed else {})}


def _uploaded() -> Keywords | None:
    """Requests from a file; None until there is one."""
    columns = st.columns(3)
    with columns[0]:
        factor = state.number("Times its rate", "sim_factor", 1.0, 0.01, 1000.0)
    with columns[1]:
        until_s = state.number("First seconds of it", "sim_until", 600.0, 1.0, 1e7)
    with columns[2]:
        longest = state.whole("Leave out requests over tokens", "sim_longest", 32_768, 2, 2_000_000)
    file = st.file_uploader("Trace", type=TRACE_TYPES, key="sim_trace", help="It stays on this machine.")
    if file is None:
        return None
    return {
        "trace": str(uploads.kept(file)),
        "trace_until_s": until_s,
        "trace_rate_factor": factor,
        "max_request_tokens": longest,
    }


def duration_s(traffic: Mapping[str, Any], inputs: Inputs) -> float:
    """About how long the requests come, for the density of the time series."""
    if "trace" in traffic:
        return float(traffic["trace_until_s"]) / float(traffic["trace_rate_factor"])
    rate = traffic.get("request_rate", inputs.request_rate)
    return max(10.0, traffic["num_prompts"] / rate if rate != float("inf") else 60.0)
