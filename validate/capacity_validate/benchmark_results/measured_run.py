"""One benchmark run in a common form for all tools: the measurements, and the workload that was sent."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from capacity.base.data_files import read_data
from capacity.base.errors import MalformedFile
from capacity.base.untrusted_text import printable_values
from capacity.simulator.distribution import PERCENTILES, Distribution
from capacity.workload import Workload
from capacity.workload.columns import FloatArray
from capacity_validate.server_log import ServerLog

STATISTICS = ("mean", *(f"p{percent}" for percent in PERCENTILES))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestColumns:
    """Per-request values of the successful requests, in the order sent. Times are in s; None if not in the file."""

    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    start_s: Sequence[float] | None = None  # sending time
    scheduled_s: Sequence[float] | None = None  # sending time without a concurrency limit


TOOLS = read_data(Path(__file__).with_name("tools.toml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One benchmark run. `latencies_ms[metric][statistic]` contains only metrics that were measured."""

    tool: str
    path: str
    model: str | None = None
    completed: int
    failed: int
    duration_s: float | None = None
    request_throughput: float | None = None
    output_throughput: float | None = None
    latencies_ms: Mapping[str, Mapping[str, float]]
    requests: RequestColumns | None = None
    request_rate: float | None = None  # inf: all at once; None: unknown
    burstiness: float = 1.0
    concurrency: int | None = None
    num_requests: int
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None
    range_ratio: float | None = None  # lengths are uniform in mean x (1 - ratio) to mean x (1 + ratio)
    # by metric such as `p90_ttft_ms`: standard deviation of the logarithm of a coarse measurement
    deviations: Mapping[str, float] = field(default_factory=dict)
    rate_varies: bool = False  # request_rate is a mean over hours or days
    prefix_hit_rate: float | None = None  # share of prompt tokens found in the prefix cache
    accepted_length: float | None = None
    in_process: bool = False  # requests were made inside the engine's process: no HTTP, no client
    client_latency_s: float | None = None  # if the tool reports it
    server: ServerLog | None = None  # launch settings in the file
    notices: tuple[str, ...] = ()

    @property
    def engine(self) -> str | None:
        """Return the engine if the tool can measure only one engine, otherwise None."""
        engine: str | None = TOOLS.get(self.tool, {}).get("engine")
        return engine

    def require_measured(self) -> MeasuredRun:
        """Return this run. Raises MalformedFile if no latency or throughput in it is above 0."""
        latencies = [value for statistics in self.latencies_ms.values() for value in statistics.values()]
        if any(
            value and value > 0 for value in (*latencies, self.request_throughput, self.output_throughput)
        ):
            return self
        raise MalformedFile(
            self.path,
            f"contains no measurement: every latency and throughput of a {self.tool} run is 0 or missing "
            f"({self.completed:,} requests completed, {self.failed:,} failed); check the client's errors and run "
            "it again",
        )

    def workload(self) -> Workload | None:
        """Return the requests as they were sent; None if the file lacks per-request lengths or start times."""
        columns = self.requests
        if columns is None:
            return None
        arrivals = self._arrivals_s(columns)
        if arrivals is None:
            return None
        return Workload.sort_arrivals(
            arrival_s=arrivals,
            prompt_tokens=np.maximum(1, np.asarray(columns.prompt_tokens, dtype=np.int64)),
            output_tokens=np.maximum(1, np.asarray(columns.output_tokens, dtype=np.int64)),
            concurrency=self.concurrency,
            name=f"{self.tool} run",
            source=self.path,
            notices=self.notices,
        )

    def _arrivals_s(self, columns: RequestColumns) -> FloatArray | None:
        """Return each request's arrival in s after the first; None if unknown. In a closed loop, start times depend on
        the server, so the client's scheduled times are used; without scheduled times and a request rate, all are 0."""
        times = columns.start_s
        if self.concurrency is not None:
            times = columns.scheduled_s
            if times is None and (self.request_rate is None or np.isinf(self.request_rate)):
                return np.zeros(len(columns.prompt_tokens))
        if times is None:
            return None
        return np.asarray(times, dtype=float) - min(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFormat:
    """One file format: the tools that write it, a test that recognises its JSON values, and its reader."""

    tools: tuple[str, ...]  # tools that write this format; messages name the first
    recognises: Callable[[Sequence[Any]], bool]
    read: Callable[[Path, Sequence[Any]], list[MeasuredRun]]

    @classmethod
    def of_objects(
        cls,
        *tools: str,
        read: Callable[[Path, Document], MeasuredRun],
        recognises: Callable[[Document], bool] | None = None,
    ) -> ResultFormat:
        """Return the format of files in which each JSON object is one run. The first object identifies the tool, by
        `recognises` or by the tool's `keys` in TOOLS."""
        return cls(
            tools=tools,
            recognises=lambda documents: (
                recognises(documents[0]) if recognises else has_keys(documents, *TOOLS[tools[0]]["keys"])
            ),
            read=lambda path, documents: [read(path, document) for document in documents],
        )


@contextmanager
def explain_structure(path: str | Path, source: str) -> Iterator[None]:
    """Convert an error of the reader in this block to MalformedFile: the file looks like `source`, but has another
    structure."""
    try:
        yield
    except MalformedFile:
        raise
    except (AttributeError, TypeError, LookupError, ValueError, OverflowError, csv.Error) as error:
        reason = str(error)[:120] or type(error).__name__
        raise MalformedFile(path, f"looks like {source}, but has another structure: {reason}") from None


def has_keys(documents: Sequence[Any], *keys: str) -> bool:
    """Return whether the first JSON object, or the first object in a list, has all these keys."""
    first = documents[0]
    first = first[0] if isinstance(first, list) and first else first
    return isinstance(first, Mapping) and set(keys) <= first.keys()


MAX_NUMBER = 1e15  # upper limit for any measured number

Document = Mapping[str, Any]


def parse_documents(path: Path, text: str) -> Iterator[Any]:
    """Yield the JSON values in a text: one, or several in sequence (appended results, JSON lines)."""
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:  # including integers with too many digits for Python
            line = text.count("\n", 0, position) + 1
            hint = "" if position else "; give a server log to compare with --server-log FILE"
            raise MalformedFile(path, f"not JSON: {error}{hint}", where=f"from line {line}") from None
        if not isinstance(value, dict | list):
            raise MalformedFile(
                path, f"contains a value of type {type(value).__name__}, not a benchmark result"
            )
        yield printable_values(value)
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1


def to_number(value: object) -> float | None:
    """Return the value as a float; None if it is not a number or its magnitude is 1e15 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < MAX_NUMBER else None  # NaN compares false


def parse_number(text: object) -> float | None:
    """Return the number in a text; None if there is none, or if its magnitude is 1e15 or more."""
    try:
        return to_number(float(str(text)))
    except ValueError:
        return None


def to_rate(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return float(value) if np.isinf(value) or value < MAX_NUMBER else None


def to_count(value: object) -> int | None:
    finite = to_number(value)
    return None if finite is None or finite < 1 else int(finite)


def summarise_ms(values_s: Sequence[float]) -> dict[str, float]:
    """Return mean and percentiles in ms, computed as the benchmark clients do."""
    array = np.asarray(values_s, dtype=float)
    if not (np.abs(array) < MAX_NUMBER).all():
        raise ValueError("a time is not a finite number of seconds")
    found = Distribution.from_values(array * 1e3)
    return {} if found is None else {name: found.statistics[name] for name in STATISTICS}


def request_lists(document: Document, *names: str) -> list[list[Any]] | None:
    """Return the named per-request arrays; None if one is missing or empty, or if their lengths differ."""
    columns = [document.get(name) for name in names]
    if not all(isinstance(column, list) and column for column in columns):
        return None
    if len({len(column) for column in columns if column is not None}) != 1:
        return None
    return [list(column) for column in columns if column is not None]


def finite_statistics(statistics: Mapping[str, object], factor: float = 1.0) -> dict[str, float]:
    """Return the statistics that are finite numbers, times `factor`."""
    numbers = {name: to_number(value) for name, value in statistics.items()}
    return {name: value * factor for name, value in numbers.items() if value is not None}


def percentiles(document: object, factor: float = 1.0, *, mean: str = "mean") -> dict[str, float]:
    """Return mean and percentiles under this package's names, times `factor`; `mean` is the tool's key of the mean."""
    if not isinstance(document, Mapping):
        return {}
    tails = {f"p{p}": document.get(f"p{p}") for p in (90, 95, 99)}
    return finite_statistics(
        {"mean": document.get(mean), "p50": document.get("median", document.get("p50")), **tails}, factor
    )


def flat_latencies(
    document: Document, names: Mapping[str, str], ending: str = "_ms", factor: float = 1.0
) -> dict[str, dict[str, float]]:
    """Return {metric: {statistic: ms}} from keys such as `mean_ttft_ms`; `names` maps metrics to the tool's names."""
    statistics = ("mean", "median", "p90", "p95", "p99")
    return {
        metric: percentiles({s: document.get(f"{s}_{name}{ending}") for s in statistics}, factor)
        for metric, name in names.items()
    }


def value_at(document: object, path: str) -> Any:
    """Return the value at a dotted path of nested mappings, such as `a.b.c`; None if a name in the path is missing."""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


_READERS: Mapping[str, Callable[[object], Any]] = {  # fields that are not plain numbers
    "model": lambda value: value if isinstance(value, str) else None,
    "completed": lambda value: to_count(value) or 0,
    "failed": lambda value: to_count(value) or 0,
    "request_rate": to_rate,
    "concurrency": to_count,
}


def measured_run(
    tool: str, path: Path, document: Document, *, latencies: Mapping[str, Mapping[str, float]], **others: Any
) -> MeasuredRun:
    """Build a run from a tool's JSON object and its field table in TOOLS; `others` are further fields."""
    table = TOOLS[tool]
    paths = table.get("fields", {})
    fields = {name: _READERS.get(name, to_number)(value_at(document, where)) for name, where in paths.items()}
    fields = {"failed": 0, "notices": table.get("notices", ()), **fields, **others}
    return MeasuredRun(
        **{"num_requests": fields["completed"], **fields},
        tool=tool,
        path=str(path),
        latencies_ms={metric: statistics for metric, statistics in latencies.items() if statistics},
    )


def run_of_requests(
    tool: str,
    path: Path,
    rows: Sequence[tuple[float, float, int | None, int | None]],
    samples: Mapping[str, Sequence[float]],
    *,
    failed: int,
) -> MeasuredRun:
    """Build a run from a tuple per request (start s, end s, prompt tokens, output tokens), sorted by start time.

    `samples` maps each metric to the latencies of the requests in s.
    """
    if not rows:
        raise MalformedFile(path, "has no successful request")
    starts, ends, prompts, outputs = map(list, zip(*rows, strict=True))
    duration = max(ends) - starts[0]
    complete = None not in (*prompts, *outputs)
    return MeasuredRun(
        tool=tool,
        path=str(path),
        completed=len(rows),
        failed=failed,
        duration_s=duration,
        request_throughput=len(rows) / duration if duration else None,
        output_throughput=sum(tokens or 0 for tokens in outputs) / duration if duration else None,
        latencies_ms={metric: summarise_ms(values) for metric, values in samples.items() if values},
        requests=RequestColumns(prompt_tokens=prompts, output_tokens=outputs, start_s=starts)
        if complete
        else None,
        num_requests=len(rows),
        notices=tuple(TOOLS[tool].get("request_notices", ())),
    )
