"""Time windows of a workload: SLOs are evaluated in the busiest window, which has the most work (weighted tokens)."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.workload import Workload

WINDOW_S = 900.0  # default length of a window
OUTPUT_WEIGHT = 3.35  # work of an output token in prompt tokens: median price ratio in
# planning/bills/hosted_prices.csv (32 rows, read 2026-11-05); assumed to follow the cost of serving
MIN_WORK_FRACTION = 0.8  # fraction of the busiest window's work; below it, load does not cause SLO misses
_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time from `start_s` to before `end_s`. `work`: prompt tokens plus weighted output tokens in it."""

    start_s: float
    end_s: float
    requests: int
    work: float

    @property
    def requests_per_s(self) -> float:
        """Return the mean arrival rate in the window."""
        return self.requests / (self.end_s - self.start_s)

    @property
    def duration(self) -> str:
        """Return the duration as text, for example "15 min"."""
        return duration_text(self.end_s - self.start_s)

    @property
    def label(self) -> str:
        """Return start and end on the workload's clock, for example "10:15:00 to 10:30:00"."""
        return f"{clock_text(self.start_s)} to {clock_text(self.end_s)}"

    @property
    def text(self) -> str:
        """Return start, end and mean rate, for example "10:15:00 to 10:30:00, 6.85 requests/s"."""
        return f"{self.label}, {self.requests_per_s:,.2f} requests/s"


def parse_window_s(text: str) -> float | None:
    """Return the seconds of a window such as 15m, 1h or 900s; None for `trace`, which is the whole trace.

    Raises InvalidInput for other text.
    """
    word = text.strip().lower()
    if word == "trace":
        return None
    match = re.fullmatch(r"([0-9.]+)\s*([a-z]+)", word)
    try:
        seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    except (KeyError, ValueError):
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidInput(f"slo_window is {text!r}: must be a duration such as 15m, 1h or 900s, or trace")
    return seconds


def clock_text(seconds: float) -> str:
    """Return seconds on a workload's clock as HH:MM:SS, after the first day with the number of the day."""
    whole = round(seconds)
    days, rest = divmod(whole, 86_400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"day {days + 1} {text}" if days else text


def duration_text(seconds: float) -> str:
    """Return a duration as text, in the largest unit that gives at least 1."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def find_windows(workloads: Sequence[Workload], window_s: float | None) -> tuple[Window, ...]:
    """Return windows of `window_s` seconds, most work first; `workloads` are random draws of the same traffic.

    The busiest window has the most work of all windows of this length that start at an arrival. The other windows
    adjoin each other before and after it. The result is empty if a workload is no longer than a window, or if it is a
    closed loop whose requests have no arrival times of their own.
    """
    if window_s is None or any(w.concurrency is not None or _timed_span_s(w) <= window_s for w in workloads):
        return ()
    arrival_s = np.concatenate([workload.arrival_s for workload in workloads])
    order = np.argsort(arrival_s, kind="stable")
    arrival_s = arrival_s[order]
    work = np.concatenate([w.prompt_tokens + OUTPUT_WEIGHT * w.output_tokens for w in workloads])[order]
    reached = np.concatenate(([0.0], np.cumsum(work)))
    ends = np.searchsorted(arrival_s, arrival_s + window_s)
    start_s = float(arrival_s[int(np.argmax(reached[ends] - reached[:-1]))])
    before = math.ceil((start_s - float(arrival_s[0])) / window_s)
    after = math.ceil((float(arrival_s[-1]) - start_s) / window_s + 1e-9)
    edges = start_s + window_s * np.arange(-before, after + 1, dtype=np.float64)
    at = np.searchsorted(arrival_s, edges)
    draws = len(workloads)
    found = [
        Window(
            start_s=max(float(edges[i]), 0.0),
            end_s=float(edges[i + 1]),
            requests=round((at[i + 1] - at[i]) / draws),
            work=float(reached[at[i + 1]] - reached[at[i]]) / draws,
        )
        for i in range(len(edges) - 1)
        if at[i + 1] > at[i]
    ]
    return tuple(sorted(found, key=lambda window: (-window.work, abs(window.start_s - start_s))))


def evaluated_windows(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Return the windows with at least `MIN_WORK_FRACTION` of the busiest window's work, in which SLOs must be met.

    Windows with less work have fewer requests in flight. If one of them misses an SLO, the cause is the small sample or
    the lengths, so more replicas would not help.
    """
    return tuple(window for window in windows if window.work >= MIN_WORK_FRACTION * windows[0].work)


def window_rows(workload: Workload, window: Window) -> slice:
    """Return a slice of the rows of the requests that arrive in the window."""
    first, last = np.searchsorted(workload.arrival_s, [window.start_s, window.end_s])
    return slice(int(first), int(last))


def take_window(workload: Workload, window: Window) -> Workload:
    """Return the requests that arrive in the window. Their `offered_per_s` remains the rate of the whole workload."""
    part = workload.select(np.arange(len(workload))[window_rows(workload, window)])
    return replace(part, asked_per_s=workload.offered_per_s)


def take_busiest_window(
    workloads: Sequence[Workload], slo_window: str
) -> tuple[Sequence[Workload], tuple[Window, ...]]:
    """Return the requests of the busiest window of length `slo_window` (such as 15m), and all windows, busiest first.

    For `trace`, or if the traffic is not longer than a window, return all requests and no windows.
    """
    windows = find_windows(workloads, parse_window_s(slo_window))
    return ([take_window(w, windows[0]) for w in workloads] if windows else workloads), windows


def _timed_span_s(workload: Workload) -> float:
    """Return the time from the first to the last arrival of requests that do not wait for another request."""
    after = workload.after_request
    arrival_s = workload.arrival_s if after is None else workload.arrival_s[after < 0]
    return float(arrival_s[-1] - arrival_s[0])
