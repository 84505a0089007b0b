"""Widgets for traffic; they return the library's keyword arguments."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from capacity.deployment import Traffic
from capacity.workload import trace_titles
from capacity_app import dropped_files, example_files, state
from capacity_app.example_files import read_files
from capacity_app.state import Inputs
from capacity_app.widgets import Field, draw_fields, show_field, widget_row

Keywords = dict[str, Any]

CLOSED_LOOP, TOGETHER_AT_ONCE, TRACE = "closed loop", "all at once", "a trace"
ARRIVALS = (
    *("Poisson", "bursty", "constant", "on and off", "ramp", "a day"),
    *(CLOSED_LOOP, TOGETHER_AT_ONCE, "conversations", TRACE),
)
_HELP = (
    "Arrival process. A closed loop keeps the sidebar's concurrency in flight; the others use the sidebar's rate. "
    f"A trace is your own file ({trace_titles()}, optionally gzip)."
)
SKIP_LABEL = "Skip requests longer than (tokens)"
TRACE_TYPES = ("csv", "jsonl", "json", "gz", "txt")
PERCENTILES = ("p50", "p90", "p95", "p99")
_traffic_field = partial(show_field, (Traffic,))
_ARRIVAL_FIELDS: Mapping[
    str, tuple[Keywords, tuple[Field, ...]]
] = {  # keywords and widgets per arrival process
    "bursty": (
        {},
        (_traffic_field("burstiness", "sim_burst", "Burstiness", start=0.3, least=0.01, most=100.0),),
    ),
    "constant": ({"burstiness": float("inf")}, ()),
    "on and off": (
        {"arrivals": "on-off"},
        (
            _traffic_field("on_s", "sim_on", "On time, s", start=10.0, least=0.1, most=86_400.0),
            _traffic_field("off_s", "sim_off", "Off time, s", start=10.0, least=0.1, most=86_400.0),
        ),
    ),
    "ramp": (
        {"arrivals": "ramp"},
        (
            _traffic_field(
                "end_request_rate", "sim_end", "Final requests/s", start=12.0, least=0.01, most=100_000.0
            ),
            _traffic_field("ramp_s", "sim_ramp", "Ramp duration, s", start=60.0, least=0.1, most=86_400.0),
        ),
    ),
    "a day": (
        {"arrivals": "diurnal"},
        (
            _traffic_field("day_peak_to_mean", "sim_peak", "Peak / mean load"),
            _traffic_field("day_length_s", "sim_day", "Day length, s", start=240.0, least=1.0, most=86_400.0),
        ),
    ),
    "conversations": (
        {},
        (
            _traffic_field("turns", "sim_turns", "Turns", start=4, most=50),
            _traffic_field("think_time_s", "sim_think", "Think time, s", start=5.0, most=3600.0),
        ),
    ),
}


def requests_to_simulate(key: str, **page: Any) -> Field:
    """Return the field for the number of requests; empty means as many as a steady-state verdict needs."""
    limits = {"least": 10, "most": 50_000, "step": 100} | page
    return _traffic_field("num_prompts", key, "Requests to simulate", **limits)


def draw_service_levels(page: str) -> tuple[str, ...]:
    """Draw the inputs for the SLO of a search page, and return the service levels."""
    with widget_row():
        at = state.choice("SLO percentile", f"{page}_at", PERCENTILES, "p95", width=150)
        ttft_ms = state.number("TTFT limit, ms", f"{page}_ttft", 1000.0, 1.0, 600_000.0, step=50.0, width=150)
        tpot_ms = state.number("TPOT limit, ms", f"{page}_tpot", 50.0, 0.1, 60_000.0, step=5.0, width=150)
        e2e: dict[str, Any] = {"placeholder": "any", "help": "Time from request to last token."}
        e2e_s = state.number("E2E limit, s", f"{page}_e2e", None, 0.001, 1e6, width=150, **e2e)
    whole = () if e2e_s is None else (f"e2el:{at}:{e2e_s:.15g}s",)
    return f"ttft:{at}:{ttft_ms:.15g}ms", f"tpot:{at}:{tpot_ms:.15g}ms", *whole


def draw_traffic(inputs: Inputs) -> Keywords | None:
    """Draw the traffic widgets; return keyword arguments of `simulate`, or None if the trace is not uploaded yet."""
    kind = state.choice("Arrivals", "sim_arrivals", ARRIVALS, "Poisson", help=_HELP)
    if kind == TRACE:
        return _upload_fields()
    said, asked = _ARRIVAL_FIELDS.get(kind, ({}, ()))
    rate = float("inf") if kind == TOGETHER_AT_ONCE else inputs.request_rate
    load: Keywords = {"concurrency": inputs.concurrency} if kind == CLOSED_LOOP else {"request_rate": rate}
    with widget_row():
        drawn = draw_fields(
            _traffic_field(
                "num_prompts", "sim_requests", "Requests", start=1000, least=1, most=100_000, step=500
            ),
            _traffic_field("random_prefix_len", "sim_prefix", "System prompt tokens", most=100_000),
            _traffic_field("seed", "sim_seed", "Seed", most=1_000_000),
            *asked,
        )
    return {**inputs.lengths, **inputs.spread, **load, **said, **drawn}


def _upload_fields() -> Keywords | None:
    """Draw the widgets of a trace, and return its keyword arguments; None without a file."""
    with widget_row():
        drawn = draw_fields(
            _traffic_field("trace_rate_factor", "sim_factor", "Rate factor", least=0.01, most=1000.0),
            _traffic_field(
                "trace_until_s", "sim_until", "Trace duration, s", start=600.0, least=1.0, most=1e7
            ),
            _traffic_field("max_request_tokens", "sim_longest", SKIP_LABEL, start=32_768, most=2_000_000),
        )
    paths = read_files(
        "Trace",
        "sim_trace",
        example_files.TRACE,
        dropped=dropped_files.TRACE,
        type=TRACE_TYPES,
        help="The file stays on this machine.",
    )
    return {"trace": paths[0], **drawn} if paths else None


def duration_s(traffic: Mapping[str, Any], inputs: Inputs) -> float:
    """Return the approximate time in s in which requests arrive; it sets the sampling interval of time series."""
    if "trace" in traffic:
        return float(traffic["trace_until_s"]) / float(traffic.get("trace_rate_factor", 1.0))
    rate = traffic.get("request_rate", inputs.request_rate)
    return max(10.0, traffic["num_prompts"] / rate if rate != float("inf") else 60.0)
