"""Scrapes of one server over time: read from /metrics or a Prometheus range, kept in a state file, split into windows.

State files and Prometheus ranges contain the same data: counters since the server's start, at several times. Removing a
scrape joins the windows before and after it, so a long history stays small.
"""

import json
import os
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import parse_json, read_bytes
from capacity.base.latency_metrics import HISTOGRAMS
from capacity.base.output_files import write_file
from capacity_validate.benchmark_results.metrics_scrape import LENGTHS, is_metrics, read_scrape
from capacity_validate.evidence import read_source, scrape_source
from capacity_validate.server_metrics import ServerMetrics

MAX_SCRAPES = 300
MIN_REQUESTS = 50  # completed requests in a window
MIN_RESIDENCES = 5.0  # length of a window in mean E2E latencies, so that few requests belong to two windows
RANGE_S = 7 * 86400.0  # of a query_range address without a start
RANGE_PATH = "/api/v1/query_range"
STATE = "capacity/watch-state/v1"
_SCRAPES = TypeAdapter(tuple[ServerMetrics, ...])
_HISTOGRAMS = {name for names in (*HISTOGRAMS.values(), *LENGTHS.values()) for name in names}
_COUNTERS = (
    "request_success",
    "num_requests",
    "prompt_tokens",
    "generation_tokens",
    "cache",
    "cached_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The requests completed between two scrapes. `offered_per_s` is the rate of arrivals, computed from completions
    and the change in running and waiting requests."""

    metrics: ServerMetrics
    seconds: float
    offered_per_s: float

    @property
    def end_s(self) -> float:
        return self.metrics.scraped_s or 0.0


def read_scrapes(source: str) -> tuple[ServerMetrics, ...]:
    """Return the scrapes at an http(s) address or in a file.

    The content is one scrape of /metrics, a Prometheus range, or a state file. Raises InvalidInput if the address does
    not answer in time; MalformedFile for other content.
    """
    text, at_s = read_source(_range_address(source) if "://" in source else source)
    if is_metrics(text):
        return (_trim(scrape_source(source, text, at_s)),)
    if STATE in text[:100]:
        return read_state(source)
    if not text.lstrip().startswith("{"):
        raise MalformedFile(
            source, "is neither a scrape of vLLM's or SGLang's /metrics nor a Prometheus range"
        )
    return tuple(_range_scrapes(source, parse_json(text, source)))


def _range_address(source: str) -> str:
    """Return the address; if it ends in query_range without a query, add one for the engines' metrics of the last 7
    days."""
    parts = urllib.parse.urlsplit(source)
    if not parts.path.endswith(RANGE_PATH) or parts.query:
        return source
    end_s = time.time()
    asked = {"query": '{__name__=~"(vllm|sglang):.+"}', "start": end_s - RANGE_S, "end": end_s}
    query = urllib.parse.urlencode(asked | {"step": round(RANGE_S / MAX_SCRAPES)})
    return urllib.parse.urlunsplit(parts._replace(query=query))


def _range_scrapes(source: str, document: Any) -> Iterator[ServerMetrics]:
    """Yield a scrape for each time of a Prometheus range (a matrix), at most `MAX_SCRAPES`."""
    try:
        series = document["data"]["result"]
        if document["data"]["resultType"] != "matrix":
            raise TypeError
        servers = {each["metric"].get("instance") for each in series}
        times = sorted({float(at) for each in series for at, _ in each["values"]})
        kept = set(times[:: max(1, -(-len(times) // MAX_SCRAPES))])
        lines: dict[float, list[str]] = {at: [] for at in kept}
        for each in series:
            labels = ",".join(
                f"{name}={json.dumps(str(value))}"
                for name, value in each["metric"].items()
                if name != "__name__"
            )
            for at, value in each["values"]:
                if float(at) in kept:
                    lines[at].append(
                        f"{each['metric']['__name__']}{{{labels}}} {value} {round(float(at) * 1e3)}"
                    )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise MalformedFile(
            source, "is not the JSON of Prometheus' query_range (a matrix of samples)"
        ) from None
    if len(servers) > 1:
        names = ", ".join(sorted(map(str, servers)))
        raise MalformedFile(source, f"contains several servers ({names}): select one with {{instance=...}}")
    for at in sorted(kept):
        yield _trim(read_scrape(source, "\n".join(lines[at])))


def _trim(scrape: ServerMetrics) -> ServerMetrics:
    if scrape.scraped_s is None:
        raise MalformedFile(scrape.path, "contains no timestamp: give a file or an address")
    return replace(
        scrape,
        counters={
            name: value for name, value in scrape.counters.items() if any(part in name for part in _COUNTERS)
        },
        histograms={name: each for name, each in scrape.histograms.items() if name in _HISTOGRAMS},
        gauges={
            name: values
            for name, values in scrape.gauges.items()
            if name.startswith(("num_r", "num_q", "max_", "context_len"))
        },
    )


def extend_history(
    history: Sequence[ServerMetrics], new: Sequence[ServerMetrics]
) -> tuple[ServerMetrics, ...]:
    """Return the history with the later scrapes of `new`. Raises InvalidInput if they belong to another server.
    Above `MAX_SCRAPES`, scrapes in the first half are removed, each time the one between the two shortest windows."""
    found = list(history)
    for scrape in sorted(new, key=lambda each: each.scraped_s or 0.0):
        if found and (scrape.engine, scrape.models) != (found[-1].engine, found[-1].models):
            raise InvalidInput(
                f"{scrape.path} is {scrape.engine} with {', '.join(scrape.models)}, but the state belongs to "
                f"{found[-1].engine} with {', '.join(found[-1].models)}: use another --state"
            )
        if not found or (scrape.scraped_s or 0.0) > (found[-1].scraped_s or 0.0):
            found.append(scrape)
    while len(found) > MAX_SCRAPES:
        times = [scrape.scraped_s or 0.0 for scrape in found]
        del found[min(range(1, len(found) // 2), key=lambda at: times[at + 1] - times[at - 1])]
    return tuple(found)


def split_history(history: Sequence[ServerMetrics], least_s: float = 1.0) -> list[Window]:
    """Return the windows between scrapes with enough requests and at least `least_s` seconds; none spans a restart."""
    windows: list[Window] = []
    start: ServerMetrics | None = None
    for scrape in history:
        if start is None or not scrape.follows(start):
            start = scrape
            continue
        metrics = scrape.minus(start)
        e2e = metrics.histogram(*HISTOGRAMS["e2el"])
        e2e_s = 0.0 if e2e is None else e2e.mean or 0.0
        seconds = metrics.seconds or 0.0
        if metrics.served < MIN_REQUESTS or seconds < max(MIN_RESIDENCES * e2e_s, least_s):
            continue
        arrived = metrics.served + _in_flight(scrape) - _in_flight(start)
        windows.append(Window(metrics=metrics, seconds=seconds, offered_per_s=max(arrived, 1.0) / seconds))
        start = scrape
    return windows


def _in_flight(scrape: ServerMetrics) -> float:
    return (scrape.running or 0.0) + (scrape.waiting or 0.0)


def read_state(path: str | Path) -> tuple[ServerMetrics, ...]:
    """Return the scrapes in a state file; none if it does not exist. Raises MalformedFile."""
    if not os.path.lexists(path):
        return ()
    document = parse_json(str(read_bytes(path, "a watch state"), "utf-8", errors="replace"), path)
    if not isinstance(document, dict) or document.get("schema") != STATE:
        raise MalformedFile(path, f"is not a state of `capacity watch` ({STATE}): give another --state")
    try:
        scrapes = _SCRAPES.validate_python(document.get("scrapes"))
        if any(len(h.bounds) != len(h.counts) for each in scrapes for h in each.histograms.values()):
            raise ValueError
    except (ValidationError, ValueError):
        raise MalformedFile(
            path, "is a damaged state of `capacity watch`: remove it to start again"
        ) from None
    return scrapes


def write_state(path: str | Path, history: Sequence[ServerMetrics]) -> None:
    """Write a state file completely or not at all. Raises InvalidInput."""
    document = {"schema": STATE, "scrapes": _SCRAPES.dump_python(tuple(history))}
    write_file(path, json.dumps(document, separators=(",", ":")))
