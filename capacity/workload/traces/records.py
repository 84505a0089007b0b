"""Read requests from JSON records whose fields for times and token counts have several possible names."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from capacity.base.data_files import read_rows
from capacity.workload.traces.format import JsonLines
from capacity.workload.traces.json_lines import json_record, json_tokens
from capacity.workload.traces.lines import MAX_CLOCK_S, TraceLines, short_repr
from capacity.workload.traces.table import CalendarClock, as_ints
from capacity.workload.workload import Workload

Record = Mapping[str, object]
_PER_NS = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000), (0.0, 1_000_000_000))  # ns, us, ms and s since 1970
_MAX_DEPTH = 4  # maximum nesting of dotted names


def json_records(lines: TraceLines, first: JsonLines) -> Iterator[Record]:
    """Yield all records of a file: one from each line, or the items of its single array."""
    yield first.record
    yield from first.rest
    for line in lines:
        if not line.isspace():
            yield json_record(lines, line)


def flatten_record(record: Record, prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Return the record with dotted names for nested fields; the names of OpenTelemetry `attributes` are unchanged."""
    found: dict[str, object] = {}
    for name, value in record.items():
        if name == "attributes":
            found |= _attributes(value)
        elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
            found |= flatten_record(value, f"{prefix}{name}.", depth + 1)
        else:
            found[f"{prefix}{name}"] = value
    return found


def _attributes(value: object) -> dict[str, object]:
    """Return OpenTelemetry attributes as a dict; they may also be an OTLP list of keys with typed values."""
    if isinstance(value, Mapping):
        return dict(value)
    found: dict[str, object] = {}
    for entry in value if isinstance(value, list) else ():
        typed = entry.get("value") if isinstance(entry, Mapping) else None
        if isinstance(typed, Mapping) and len(typed) == 1:
            (kind, held) = next(iter(typed.items()))
            found[str(entry.get("key", ""))] = _parse_whole_number(held) if kind == "intValue" else held
    return found


def _parse_whole_number(value: object) -> object:
    """Return an OTLP 64-bit integer, which is written as text, as a number; other values are unchanged."""
    return (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
        else value
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Possible field names of one format for times, tokens and session; the first name that is present is used."""

    name: str
    times: tuple[str, ...]
    prompts: tuple[str, ...]
    outputs: tuple[str, ...]
    sessions: tuple[str, ...] = ()

    def names_of(self, record: Record) -> tuple[str, str, str] | None:
        """Return the field names of time, prompt tokens and output tokens in a record; None if one is missing."""
        time, prompt, output = (
            first_name_in(record, names) for names in (self.times, self.prompts, self.outputs)
        )
        return None if time is None or prompt is None or output is None else (time, prompt, output)


@cache
def record_names() -> Mapping[str, Names]:
    """Return the possible field names of each record format (OpenTelemetry, AIPerf, ...). Raises MalformedFile."""
    return read_rows(Path(__file__).with_name("formats") / "records.toml", Names)


def first_name_in(record: Record, names: Sequence[str]) -> str | None:
    """Return the first of `names` that the record has, or None."""
    return next((name for name in names if record.get(name) is not None), None)


class Requests:
    """Collects requests while a trace is read: times since 1970 or another origin, and token counts."""

    def __init__(self, lines: TraceLines) -> None:
        self.lines = lines
        self.clock = CalendarClock()
        self.sent_ns = array("q")
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self.session_of = array("q")
        self.sessions: dict[object, int] = {}
        self.empty = 0

    def __len__(self) -> int:
        return len(self.sent_ns)

    def add(self, record: Record, time: str, prompt: str, output: str, session: str | None = None) -> None:
        """Add the request of a record; the arguments are field names. Requests without a response are only counted."""
        lines = self.lines
        output_tokens = json_tokens(lines, output, _parse_whole_number(record[output]))
        prompt_tokens = json_tokens(lines, prompt, _parse_whole_number(record[prompt]))
        if output_tokens == 0 or prompt_tokens == 0:
            self.empty += 1
            return
        self.sent_ns.append(self._nanoseconds(time, record[time]))
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)
        whose: object = len(self.sessions) if session is None else str(record[session])
        self.session_of.append(self.sessions.setdefault(whose, len(self.sessions)))
        lines.count_row(len(self))

    def _nanoseconds(self, field: str, value: object) -> int:
        """Return nanoseconds since 1970 of a date or a number; its unit (s, ms, us, ns) follows from its magnitude."""
        value = _parse_whole_number(value)
        if isinstance(value, str):
            return self.clock.nanoseconds(self.lines, field, value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value < 1e9 * MAX_CLOCK_S
        ):
            self.lines.reject(f"{field} {short_repr(value)} is not a time")
        scale = next(ns for least, ns in _PER_NS if value >= least)
        ns = value * scale if isinstance(value, int) else round(value * scale)
        if ns >= 1 << 63:
            self.lines.reject(f"{field} {short_repr(value)} is too large for a time")
        return ns

    def workload(self, name: str, notices: Sequence[str] = ()) -> Workload:
        """Return the requests as a workload whose first one arrives at 0 s. Raises MalformedFile without requests."""
        if not len(self):
            self.lines.reject("has no request with a time, prompt and output tokens")
        if self.empty:
            notices = (*notices, f"{self.empty:,} requests without an answer (0 tokens) skipped")
        sent_ns = as_ints(self.sent_ns)
        shared = len(self.sessions) < len(self)
        return Workload.sort_arrivals(
            arrival_s=(sent_ns - sent_ns.min()) / 1e9,
            prompt_tokens=as_ints(self.prompt_tokens),
            output_tokens=as_ints(self.output_tokens),
            session=np.asarray(as_ints(self.session_of)) if shared else None,
            name=name,
            source=self.lines.path,
            notices=tuple(notices),
            remark=False,  # logs are in order of completion, so no note
        )
