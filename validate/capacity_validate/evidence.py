"""Files to calibrate on, whose kind is detected from their content: results, logs, scrapes, kernel measurements."""

import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import read_bytes
from capacity_validate.benchmark_results import MeasuredRun, read_results
from capacity_validate.benchmark_results.metrics_scrape import is_metrics, read_metrics
from capacity_validate.cases import SCHEMA
from capacity_validate.decode_log import DecodeSteps, decode_steps
from capacity_validate.server_log import ServerLog, parse_server_log

FETCH_SECONDS = 10.0
FETCH_BYTES = 16 * 2**20
_JSON = re.compile(r"\s*(?:\{|\[\s*[\[\]{])")  # a log line may start with [2026-11-22 ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Data to calibrate on: benchmark runs, log and decode times of one deployment, or kernel measurement files."""

    sources: tuple[str, ...]
    runs: tuple[MeasuredRun, ...] = ()
    log: ServerLog | None = None
    steps: tuple[DecodeSteps, ...] = ()
    measurements: tuple[str, ...] = ()

    def engine(self, asked: str | None) -> str | None:
        """Return the engine `asked`, else the one that a result implies. Raises InvalidInput if they differ."""
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
        """Return the server's launch settings from its log, or else from a result file."""
        return self.log or next((run.server for run in self.runs if run.server is not None), None)


def read_evidence(sources: Sequence[str | Path]) -> Evidence:
    """Read the given files and http(s) addresses as evidence. Raises MalformedFile, InvalidInput."""
    if not sources:
        raise InvalidInput(
            "no result to calibrate on: give a benchmark's result file, an engine's log, or its /metrics"
        )
    runs: list[MeasuredRun] = []
    steps: list[DecodeSteps] = []
    logs: list[ServerLog] = []
    measurements: list[str] = []
    for source in map(str, sources):
        if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", source):
            runs.append(read_metrics(source, fetch_text(source)))
            continue
        text = str(read_bytes(source, "a benchmark result"), "utf-8-sig", errors="replace")
        if _JSON.match(text) and f'"{SCHEMA}"' in text[:2000]:
            measurements.append(source)
        elif _JSON.match(text) or is_metrics(text):
            runs += [run.require_measured() for run in read_results(source, text)]
        else:
            found, log = decode_steps(text), parse_server_log(source, text)
            if not found and log is None:
                raise MalformedFile(
                    source,
                    "is neither a supported benchmark result, nor an engine log or /metrics scrape with a usable value",
                )
            steps += found
            logs += [log] if log is not None else []
    return Evidence(
        sources=tuple(map(str, sources)),
        runs=tuple(runs),
        log=_single_server_log(logs),
        steps=tuple(steps),
        measurements=tuple(measurements),
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
            content = answer.read(FETCH_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise InvalidInput(
            f"{address} returned {error.code} {error.reason}: give the address of /metrics"
        ) from None
    except (OSError, ValueError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        raise InvalidInput(
            f"{address} cannot be read: {reason}; save its content and give that file"
        ) from None
    if len(content) > FETCH_BYTES:
        raise InvalidInput(
            f"{address} returned more than {FETCH_BYTES // 2**20} MiB, longer than any engine's metrics"
        )
    return str(content, "utf-8", errors="replace")
