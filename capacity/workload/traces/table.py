"""Read traces from tables with one request per row; columns are identified by name."""

import csv
import itertools
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

import numpy as np

from capacity.base.errors import MalformedFile
from capacity.workload.columns import FloatArray, IntArray
from capacity.workload.traces.format import FirstLine, Table, TraceFormat, TraceOptions
from capacity.workload.traces.lines import (
    MAX_CLOCK_S,
    TraceLines,
    count_from_first,
    parse_number,
    parse_seconds,
    parse_token_count,
    short_repr,
)
from capacity.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvSchema:
    """Column names of one kind of table, and the meaning of its timestamps and of 0 tokens."""

    name: str
    title: str
    arrival: str
    prompt: str
    output: str
    session: str | None = None
    optional: tuple[str, ...] = ()
    calendar: bool = False  # arrivals are dates with times
    from_first: bool = False  # the clock has an arbitrary origin, so count from the first request
    skip_empty_answers: bool = False  # failed requests are logged, with 0 tokens

    @property
    def required(self) -> tuple[str, str, str]:
        """Return the names of the three required columns: arrival, prompt tokens and output tokens."""
        return self.arrival, self.prompt, self.output


_FIRST_YEAR, _LAST_YEAR = 1971, 2099  # differences in nanoseconds fit in 64 bits

CHUNK_CHARACTERS = 1 << 20  # size of the read-ahead buffer
_PLAIN_NUMBERS = frozenset("0123456789.+-eE")

_CALENDAR = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
# without a zone
_PLAIN_CALENDAR = r"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}{}[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]+)?"


def table_format(schema: CsvSchema) -> TraceFormat:
    """Return the trace format of one kind of table, which is recognised by three required columns."""
    return TraceFormat(
        name=schema.name,
        title=schema.title,
        recognises=lambda first: isinstance(first, Table) and first.has(schema.required),
        read=partial(_read, schema),
        needed=schema.required,
        tabular=True,
    )


def _read(schema: CsvSchema, lines: TraceLines, first: FirstLine, options: TraceOptions) -> Workload:
    assert isinstance(first, Table)
    names = [column.casefold() for column in first.columns]
    for column in schema.required:
        if names.count(column.casefold()) > 1:
            lines.reject(f"column {short_repr(column)} occurs {names.count(column.casefold())} times")
    table = _Columns(lines, schema, first.columns)
    try:
        table.read(iter(lines), first.delimiter, options.limit)
    except csv.Error as error:
        lines.reject(str(error))
    if not table.prompt_tokens:
        lines.reject(f"the {schema.name} table has a header but no requests")
    return table.workload(options.name)


def parse_header(lines: TraceLines, first_line: str) -> Table:
    """Parse the column names, with the delimiter that gives the most names. Raises MalformedFile."""
    split: dict[str, list[str]] = {}
    for delimiter in ",;\t":
        try:
            split[delimiter] = next(csv.reader([first_line], delimiter=delimiter, strict=True), [])
        except csv.Error as error:
            lines.reject(f"the header {short_repr(first_line.strip())} is not CSV: {error}")
    delimiter = max(split, key=lambda d: len(split[d]))
    return Table(tuple(column.strip() for column in split[delimiter]), delimiter)


def reject_table(lines: TraceLines, table: Table, needed: str) -> NoReturn:
    """Raise MalformedFile for a table with unknown columns; `needed` lists the columns of known formats."""
    columns = short_repr(",".join(table.columns))
    if all(re.fullmatch(r"[0-9.:+\- T]*", column) for column in table.columns):
        lines.reject(f"the header is missing: the first line is {columns}; columns must be named {needed}")
    lines.reject(f"columns {columns} do not match a known trace format; needed: {needed}")


class _Columns:
    """Collects the columns of one table while it is read."""

    def __init__(self, lines: TraceLines, schema: CsvSchema, header: Sequence[str]) -> None:
        self.lines = lines
        self.schema = schema
        self.width = len(header)
        self.index = {column.casefold(): position for position, column in enumerate(header)}
        self.arrivals: array[float] | array[int] = array("q") if schema.calendar else array("d")
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self.session: dict[str, int] | None = {} if self._position(schema.session) is not None else None
        self.session_of = array("q")
        self.optional = {
            column: array("d") for column in schema.optional if self._position(column) is not None
        }
        self.clock = CalendarClock()
        self.rewritten: str | None = None  # first count that was not written in plain digits
        self.empty_answers = 0

    def _position(self, column: str | None) -> int | None:
        return None if column is None else self.index.get(column.casefold())

    def read(self, lines: Iterator[str], delimiter: str, limit: int | None) -> None:
        """Read up to `limit` requests. Chunks of lines with plain numbers are parsed at once, others row by row."""

        def rows(source: Iterator[str]) -> Iterator[list[str]]:
            return csv.reader(source, delimiter=delimiter, strict=True)

        chunks, before = _chunks(lines), self.lines.number
        many = limit is None and self.session is None and not self.optional
        while many and (chunk := next(chunks, None)):
            numbered = self._number_lines(chunk, before)
            if any('"' in line for line in chunk):  # a quoted field may continue in the next chunk
                lines = itertools.chain(numbered, lines, itertools.chain.from_iterable(chunks))
                break
            if not self._read_plain(chunk, delimiter):
                self._read_rows(rows(numbered), None)
            before = self.lines.number
        self._read_rows(rows(lines), limit)

    def _number_lines(self, chunk: list[str], before: int) -> Iterator[str]:
        """Yield the lines of a chunk; the line number for errors starts at `before` and is increased with each line."""
        for place, line in enumerate(chunk, start=before + 1):
            self.lines.number = place
            yield line

    def _read_plain(self, chunk: list[str], delimiter: str) -> bool:
        """Parse all rows of a chunk at once. If that is not possible for a row, return False and add no rows."""
        text = "".join(chunk)
        if not text.isascii() or not self.lines.allows_rows(len(self.prompt_tokens) + len(chunk)):
            return False
        if any(line.count(delimiter) != self.width - 1 for line in chunk):
            return False
        if max(map(len, chunk)) > csv.field_size_limit():
            return False
        fields = text.rstrip("\n").replace("\n", delimiter).split(delimiter)
        arrival, prompt, output = (
            fields[self.index[column.casefold()] :: self.width] for column in self.schema.required
        )
        prompts, outputs = _plain_counts(prompt), _plain_counts(output)
        if prompts is None or outputs is None:
            return False
        arrivals: IntArray | FloatArray | None = (
            self.clock.plain_nanoseconds(self.lines, self.schema.arrival, arrival)
            if self.schema.calendar
            else _plain_seconds(arrival)
        )
        if arrivals is None:
            return False
        self.arrivals.frombytes(arrivals.tobytes())
        self.prompt_tokens.frombytes(prompts.tobytes())
        self.output_tokens.frombytes(outputs.tobytes())
        return True

    def _read_rows(self, rows: Iterator[list[str]], limit: int | None) -> None:
        lines, schema, width = self.lines, self.schema, self.width
        arrival, prompt, output = (self.index[column.casefold()] for column in schema.required)
        arrival_name, prompt_name, output_name = schema.required
        clock: Callable[[TraceLines, str, str], float] = (
            self.clock.nanoseconds if schema.calendar else parse_seconds
        )
        for row in rows:
            if len(row) != width:
                if not "".join(row).strip():
                    continue
                lines.reject(f"has {len(row)} fields, the header has {width}: {short_repr(','.join(row))}")
            answer_tokens = self._tokens(output_name, row[output])
            if answer_tokens == 0:
                if not schema.skip_empty_answers:
                    lines.reject(f"{output_name} {short_repr(row[output])} must be at least 1 token")
                self.empty_answers += 1
                continue
            prompt_tokens = self._tokens(prompt_name, row[prompt])
            if prompt_tokens == 0:
                lines.reject(f"{prompt_name} {short_repr(row[prompt])} must be at least 1 token")
            self.arrivals.append(clock(lines, arrival_name, row[arrival]))  # type: ignore[arg-type]
            self.prompt_tokens.append(prompt_tokens)
            self.output_tokens.append(answer_tokens)
            if self.session is not None:
                whose = row[self.index[str(schema.session).casefold()]].strip()
                self.session_of.append(self.session.setdefault(whose, len(self.session)))
            for column, values in self.optional.items():
                values.append(parse_number(lines, column, row[self.index[column]]))
            if limit is not None and len(self.prompt_tokens) >= limit:
                return
            lines.count_row(len(self.prompt_tokens))

    def _tokens(self, column: str, text: str) -> int:
        if text.isdigit() and text.isascii() and len(text) < 8:
            return int(text)
        count, rewritten = parse_token_count(self.lines, column, text)
        if rewritten and self.rewritten is None:
            self.rewritten = f"line {self.lines.number}: {column} {short_repr(text)} read as {count}"
        return count

    def workload(self, name: str) -> Workload:
        """Return the requests as a workload in order of arrival, with notices of skipped rows."""
        notices: list[str] = []
        if self.rewritten:
            notices.append(self.rewritten)
        if self.empty_answers:
            notices.append(f"{self.empty_answers:,} requests without an answer (0 tokens) skipped")
        arrival_s = self._arrival_s(notices)
        columns: Mapping[str, Any] = {
            name: np.frombuffer(values, dtype=np.float64) for name, values in self.optional.items()
        }
        return Workload.sort_arrivals(
            arrival_s=arrival_s,
            prompt_tokens=as_ints(self.prompt_tokens),
            output_tokens=as_ints(self.output_tokens),
            session=None if self.session is None else as_ints(self.session_of),
            name=name,
            source=self.lines.path,
            notices=tuple(notices),
            **columns,
        )

    def _arrival_s(self, notices: list[str]) -> FloatArray:
        if self.schema.calendar:
            arrival_ns = np.frombuffer(self.arrivals, dtype=np.int64)
            since_first_s: FloatArray = (arrival_ns - arrival_ns.min()) / 1e9
            return since_first_s
        arrival_s = np.frombuffer(self.arrivals, dtype=np.float64)
        return arrival_s - arrival_s.min() if self.schema.from_first else count_from_first(arrival_s, notices)


class CalendarClock:
    """Converts dates with times to nanoseconds since 1970; times without a time zone are UTC."""

    def __init__(self) -> None:
        self._minutes: dict[tuple[str, str, str | None], int] = {}

    def nanoseconds(self, lines: TraceLines, field: str, text: str) -> int:
        """Return exact nanoseconds since 1970; datetime has too few decimals for Azure traces."""
        match = _CALENDAR.fullmatch(text.strip())
        if match is None:
            lines.reject(f"{field} {short_repr(text)} is not a time such as 2023-11-16 18:15:46.6805900")
        day, minute, second, fraction, zone = match.groups()
        minute_ns = self._minutes.get((day, minute, zone))
        if minute_ns is None:
            try:
                moment = datetime.fromisoformat(f"{day}T{minute}{zone or ''}")
            except ValueError as error:
                lines.reject(f"{field} {short_repr(text)} is not a time: {error}")
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
                lines.reject(
                    f"{field} {short_repr(text)} is not between the years {_FIRST_YEAR} and {_LAST_YEAR}"
                )
            minute_ns = self._minutes[day, minute, zone] = int(moment.timestamp()) * 1_000_000_000
        if int(second) > 59:
            lines.reject(f"{field} {short_repr(text)} is not a time: second must be in 0..59")
        return minute_ns + int(second) * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))

    def plain_nanoseconds(self, lines: TraceLines, field: str, texts: Sequence[str]) -> IntArray | None:
        """Return nanoseconds since 1970 of texts in one format without time zone; None for other texts."""
        width, form = len(texts[0]), _PLAIN_CALENDAR.format(" T"["T" in texts[0]])
        if not 19 <= width <= 29 or width == 20 or any(len(text) != width for text in texts):
            return None
        if not all(map(re.compile(form).fullmatch, texts)):
            return None
        try:
            nanoseconds = np.array(texts, dtype="datetime64[ns]").astype(np.int64)
            for text in (min(texts), max(texts)):  # check the limits of years
                self.nanoseconds(lines, field, text)
        except (ValueError, MalformedFile):  # the full error is raised when the row is read
            return None
        return nanoseconds


def _chunks(lines: Iterator[str]) -> Iterator[list[str]]:
    """Yield lists of consecutive lines. If reading a line fails, the lines before it are yielded before the error."""
    chunk, size = list[str](), 0
    try:
        for line in lines:
            chunk.append(line)
            size += len(line)
            if size > CHUNK_CHARACTERS:
                yield chunk
                chunk, size = [], 0
    except MalformedFile:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _plain_counts(texts: Sequence[str]) -> IntArray | None:
    """Return token counts if all texts are short, contain only digits and are not 0; otherwise None."""
    if not "".join(texts).isdigit() or not all(0 < len(text) < 8 for text in texts):
        return None
    counts = np.array(list(map(int, texts)), dtype=np.int64)
    return counts if counts.all() else None


def _plain_seconds(texts: Sequence[str]) -> FloatArray | None:
    """Return times in seconds; None if `parse_seconds` would reject a text, or if a text contains whitespace."""
    if not _PLAIN_NUMBERS.issuperset("".join(texts)):
        return None
    try:
        values = np.array(list(map(float, texts)))
    except ValueError:
        return None
    return values if ((values >= 0) & (values <= MAX_CLOCK_S)).all() else None


def as_ints(values: "array[int]") -> IntArray:
    return np.frombuffer(values, dtype=np.int64)
