"""Files to calibrate on, whose kind is detected from their content: results, logs, scrapes, kernel measurements."""

import hashlib
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from capacity.base.errors import CapacityError, InvalidInput, MalformedFile
from capacity.base.external_files import parse_json, read_bytes
from capacity_validate.benchmark_results import MeasuredRun, is_mlperf, read_results
from capacity_validate.benchmark_results.metrics_scrape import (
    RELEASE,
    is_metrics,
    modified_s,
    read_scrape,
    run_of_metrics,
    split_into_windows,
)
from capacity_validate.kernel_files import is_kernel_file
from capacity_validate.server_log import DecodeSteps, ServerLog, decode_steps, parse_server_log
from capacity_validate.server_metrics import ServerMetrics

FETCH_SECONDS = 10.0
FETCH_BYTES = 16 * 2**20
RELEASE_PATHS = {"vllm": ("version",), "sglang": ("server_info", "get_server_info")}
"""Paths of JSON with the engine's `version`: vLLM 0.6 to 0.33, entrypoints (`/version`); SGLang 0.4 to 0.5,
entrypoints/http_server.py. /metrics does not contain it."""
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_JSON = re.compile(r"\s*(?:\{|\[\s*[\[\]{])")  # a log line may start with [2026-11-22 ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Data to calibrate on: benchmark runs, log and decode times of one deployment, or kernel measurement files.

    `kinds`: the kind of content that was detected in each source.
    """

    sources: tuple[str, ...]
    runs: tuple[MeasuredRun, ...] = ()
    log: ServerLog | None = None
    steps: tuple[DecodeSteps, ...] = ()
    measurements: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)

    def engine(self, asked: str | None) -> str | None:
        """Return the engine `asked`, or else the engine that a result implies. Raises InvalidInput if they differ."""
        found = asked
        for run in self.runs:
            found = found or run.engine
            if run.engine is not None and found is not None and found.partition("@")[0] != run.engine:
                raise InvalidInput(
                    f"{run.path} is a result of {run.tool}, which measures {run.engine}, not {found}: use "
                    f"--engine {run.engine}, or leave that file out"
                )
        return found

    @property
    def server(self) -> ServerLog | None:
        """Return the server's launch settings from its log, completed from the result files.

        Raises InvalidInput if two result files contain different settings.
        """
        found, first = self.log, None
        for server in (run.server for run in self.runs if run.server is not None):
            _require_same_server(first, server)
            first = first or server
            found = server if found is None else found.completed_by(server)
        return found


RESULT, SCRAPE, LOG, KERNELS = "benchmark result", "/metrics scrape", "engine log", "kernel measurements"


def read_evidence(sources: Sequence[str | Path], *, rejected: dict[str, str] | None = None) -> Evidence:
    """Read the given files and http(s) addresses as evidence. Raises MalformedFile, InvalidInput.

    With `rejected`, a source that cannot be used raises no error; the dict receives its reason instead.
    """
    if not sources:
        raise InvalidInput(
            "no result to calibrate on: give a benchmark's result file, an engine's log, or its /metrics"
        )
    reader = _EvidenceReader(rejected)
    for source in map(str, sources):
        with reader.record_rejection(source):
            reader.read(source)
    return Evidence(
        sources=tuple(map(str, sources)),
        runs=(*reader.runs, *reader.scraped_runs()),
        log=_single_server_log(reader.logs),
        steps=tuple(reader.steps),
        measurements=tuple(reader.measurements),
        kinds=reader.kinds,
    )


@dataclass
class _EvidenceReader:
    """Reads sources by the kind of their content, and collects what they contain."""

    rejected: dict[str, str] | None
    runs: list[MeasuredRun] = field(default_factory=list)
    scrapes: list[ServerMetrics] = field(default_factory=list)
    steps: list[DecodeSteps] = field(default_factory=list)
    logs: list[ServerLog] = field(default_factory=list)
    measurements: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    seen: dict[bytes, str] = field(default_factory=dict)  # sources by the digest of their content

    @contextmanager
    def record_rejection(self, source: str) -> Iterator[None]:
        """Record a CapacityError in the block as the source's rejection; raise it if `rejected` is None."""
        try:
            yield
        except CapacityError as error:
            if self.rejected is None:
                raise
            self.rejected[source] = str(error).removeprefix(f"{source}: ")

    def read(self, source: str) -> None:
        text, at_s = read_source(source)
        _refuse_copy(source, text, self.seen)
        if _ADDRESS.match(source) or is_metrics(text):
            self.kinds[source] = SCRAPE
            self.scrapes.append(scrape_source(source, text, at_s))
        elif is_kernel_file(text):
            self.kinds[source] = KERNELS
            self.measurements.append(source)
        elif _JSON.match(text) or is_mlperf(text):
            self.kinds[source] = RESULT
            self.runs.extend([run.require_measured() for run in read_results(source, text)])
        else:
            self._read_log(source, text)

    def _read_log(self, source: str, text: str) -> None:
        steps, log = decode_steps(text), parse_server_log(source, text)
        if not steps and log is None:
            raise MalformedFile(
                source,
                "is neither a supported benchmark result, nor an engine log or /metrics scrape with a usable value",
            )
        self.kinds[source] = LOG
        logs = [log] if log is not None else []
        _single_server_log([*self.logs, *logs])
        self.steps.extend(steps)
        self.logs.extend(logs)

    def scraped_runs(self) -> list[MeasuredRun]:
        """Return a run for each window between two scrapes of /metrics."""
        runs = []
        with self.record_rejection(self.scrapes[-1].path if self.scrapes else ""):
            for window in split_into_windows(self.scrapes):
                with self.record_rejection(window.path):
                    runs.append(run_of_metrics(window).require_measured())
        return runs


def read_source(source: str) -> tuple[str, float | None]:
    """Return the text at an http(s) address or in a file, and when it was read or written (seconds since 1970)."""
    if _ADDRESS.match(source):
        return fetch_text(source), time.time()
    raw = read_bytes(source, "a benchmark result")
    return str(raw, "utf-8-sig", errors="replace"), modified_s(source)


def scrape_source(source: str, text: str, at_s: float | None) -> ServerMetrics:
    """Return the metrics in `text`; for an address of /metrics, with the release that the server states elsewhere."""
    scrape, parts = read_scrape(source, text, scraped_s=at_s), urllib.parse.urlsplit(source)
    paths = RELEASE_PATHS[scrape.engine] if parts.netloc and parts.path.endswith("/metrics") else ()
    for path in paths:
        address = urllib.parse.urlunsplit(parts._replace(path=parts.path.removesuffix("metrics") + path))
        with suppress(CapacityError):
            document = parse_json(fetch_text(address), address)
            stated = document.get("version") if isinstance(document, dict) else None
            if found := re.match(r"\d+\.\d+(\.\d+)?", str(stated)):
                return replace(scrape, labels={**scrape.labels, RELEASE: {"version": found[0]}})
    return scrape


def _refuse_copy(source: str, text: str, seen: dict[bytes, str]) -> None:
    """Raise InvalidInput if an earlier source has the same content, because a run must not count twice."""
    digest = hashlib.sha256(text.encode("utf-8", errors="replace")).digest()
    if (other := seen.setdefault(digest, source)) is not source:
        raise InvalidInput(
            f"{source} has the same content as {other}, which would count twice: leave one out"
        )


def _require_same_server(first: ServerLog | None, other: ServerLog) -> None:
    if first is None:
        return
    for name, value in other.settings.items():
        before = first.settings.get(name, value)
        # one of two scrapes may not state the release
        (one, *release), (two, *another) = (str(each).split("@") for each in (before, value))
        unstated = name == "engine" and one == two and not (release and another)
        if before != value and not unstated:
            raise InvalidInput(
                f"the results come from different servers: {name.replace('_', ' ')} is {before} in {first.path} and "
                f"{value} in {other.path}; give only results of one server"
            )


def _single_server_log(logs: Sequence[ServerLog]) -> ServerLog | None:
    sizes = {log.kv_tokens for log in logs if log.kv_tokens is not None}
    if len(sizes) > 1:
        raise InvalidInput(
            f"the logs come from different servers (KV caches of {' and '.join(f'{n:,}' for n in sorted(sizes))} "
            "tokens): calibrate from one log first, then from the next one with the resulting variant as --gpu"
        )
    return logs[0] if logs else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Reject redirects, so that only the given address is requested."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def fetch_text(address: str) -> str:
    """Return the text at an http(s) address that the user gave. Raises InvalidInput if it cannot be read in 10 s."""
    scheme = urllib.parse.urlsplit(address).scheme.lower()
    if scheme not in ("http", "https"):
        raise InvalidInput(f"{address}: only http and https addresses are supported, not {scheme}")
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(address, timeout=FETCH_SECONDS) as answer:
            content = _read_in_time(answer)
    except urllib.error.HTTPError as error:
        raise InvalidInput(
            f"{address} returned {error.code} {error.reason}: give the address of /metrics"
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise InvalidInput(
            f"{address} cannot be read: {reason}; save its content and give that file"
        ) from None
    if len(content) > FETCH_BYTES:
        raise InvalidInput(
            f"{address} returned more than {FETCH_BYTES // 2**20} MiB, the limit; give the address of /metrics"
        )
    return str(content, "utf-8", errors="replace")


def _read_in_time(answer: Any) -> bytes:
    """Return at most `FETCH_BYTES` + 1 bytes of an HTTP answer. Raises TimeoutError after `FETCH_SECONDS`."""
    until, content = time.monotonic() + FETCH_SECONDS, b""
    while len(content) <= FETCH_BYTES and (part := answer.read1(2**16)):
        content += part
        if time.monotonic() > until:
            raise TimeoutError(f"not complete after {FETCH_SECONDS:g} s")
    return content
