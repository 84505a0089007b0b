"""Widgets for traffic; they return the library's keyword arguments."""

from collections.abc import Mapping
from typing import Any

from capacity.report.display import phrase
from capacity.workload import trace_titles
from capacity_app import dropped_files, example_files, state
from capacity_app.example_files import read_files
from capacity_app.pages import LOOP, RATE
from capacity_app.state import Inputs
from capacity_app.widgets import draw_fields, widget_row

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
TRACE_TYPES = ("csv", "jsonl", "json", "gz", "txt")
PERCENTILES = ("p50", "p90", "p95", "p99")
_ARRIVAL_FIELDS: Mapping[
    str, tuple[Keywords, tuple[str, ...]]
] = {  # keywords and widgets per arrival process
    "bursty": ({}, ("sim_burst",)),
    "constant": ({"burstiness": float("inf")}, ()),
    "on and off": ({"arrivals": "on-off"}, ("sim_on", "sim_off")),
    "ramp": ({"arrivals": "ramp"}, ("sim_end", "sim_ramp")),
    "a day": ({"arrivals": "diurnal"}, ("sim_peak", "sim_day")),
    "conversations": ({}, ("sim_turns", "sim_think")),
}


def draw_service_levels(page: str) -> tuple[str, ...]:
    """Draw the inputs for the SLO of a search page, and return the service levels."""
    with widget_row():
        at = state.choice("SLO percentile", f"{page}_at", PERCENTILES, "p95", width=150)
        ttft_ms = state.number("TTFT limit, ms", f"{page}_ttft", 1000.0, 1.0, 600_000.0, step=50.0, width=150)
        tpot_ms = state.number("TPOT limit, ms", f"{page}_tpot", 50.0, 0.1, 60_000.0, step=5.0, width=150)
        e2e: dict[str, Any] = {"placeholder": "any", "help": "Time from request to last token."}
        e2e_s = state.number("E2E limit, s", f"{page}_e2e", None, 0.001, 1e6, width=150, **e2e)
    whole = phrase("e2el:{}:{:.15g}s", at, e2e_s)
    return tuple(filter(None, (f"ttft:{at}:{ttft_ms:.15g}ms", f"tpot:{at}:{tpot_ms:.15g}ms", whole)))


def draw_loop_or_rate(inputs: Inputs, key: str, help: str) -> Keywords:
    """Draw the choice between a closed loop and arrivals at a rate, and return the load as a keyword argument."""
    loads: dict[str, Keywords] = {
        LOOP: {"concurrency": inputs.concurrency},
        RATE: {"request_rate": inputs.request_rate},
    }
    return loads[state.segments("Load type", key, tuple(loads), LOOP, help=help)]


def draw_traffic(inputs: Inputs) -> Keywords:
    """Draw the traffic widgets; return keyword arguments of `simulate`. Raises NotReady until there is a trace."""
    kind = state.choice("Arrivals", "sim_arrivals", ARRIVALS, "Poisson", help=_HELP)
    if kind == TRACE:
        return _upload_fields()
    said, asked = _ARRIVAL_FIELDS.get(kind, ({}, ()))
    loads: dict[str, Keywords] = {
        CLOSED_LOOP: {"concurrency": inputs.concurrency},
        TOGETHER_AT_ONCE: {"request_rate": float("inf")},
    }
    load = loads.get(kind, {"request_rate": inputs.request_rate})
    with widget_row():
        drawn = draw_fields("sim_requests", "sim_prefix", "sim_seed", *asked)
    return {**inputs.lengths, **inputs.spread, **load, **said, **drawn}


def _upload_fields() -> Keywords:
    """Draw the widgets for uploading a trace, and return its keyword arguments."""
    with widget_row():
        drawn = draw_fields("sim_factor", "sim_until", "sim_longest")
    paths = read_files(
        "Trace",
        "sim_trace",
        example_files.TRACE,
        dropped=dropped_files.TRACE,
        type=TRACE_TYPES,
        help="The file stays on this machine.",
    )
    return {"trace": paths[0], **drawn}


def duration_s(traffic: Mapping[str, Any], inputs: Inputs) -> float:
    """Return the approximate time in s in which requests arrive; it sets the sampling interval of time series."""
    if "trace" in traffic:
        return float(traffic["trace_until_s"]) / float(traffic.get("trace_rate_factor", 1.0))
    rate = traffic.get("request_rate", inputs.request_rate)
    return max(10.0, traffic["num_prompts"] / rate if rate != float("inf") else 60.0)
