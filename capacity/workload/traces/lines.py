"""Read the lines of a trace file, plain or gzipped, with size limits, and parse their fields."""

import gzip
import io
import math
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NoReturn

from capacity.base.errors import MalformedFile
from capacity.base.external_files import open_outside
from capacity.workload.columns import MAX_REQUEST_TOKENS, FloatArray

MAX_LINE_CHARACTERS = 16 * 2**20
MAX_FILE_CHARACTERS = 4 * 2**30  # after decompression
MAX_ROWS = 10_000_000
MAX_CLOCK_S = 1e10  # year 2286, in seconds since 1970
EPOCH_LIKE_S = 1e8  # a first arrival after three years is a calendar time, not a time since the start

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


class TraceLines:
    """Iterator over the lines of an open trace; it counts lines for errors.

    Raises MalformedFile for damaged compression, invalid text, and lines or files beyond the limits.
    """

    def __init__(self, path: str, stream: IO[str]) -> None:
        self.path = path
        self.number = 0
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        characters = 0
        readline = self._stream.readline
        try:
            while line := readline(MAX_LINE_CHARACTERS + 1):
                self.number += 1
                characters += len(line)
                if len(line) > MAX_LINE_CHARACTERS:
                    self.reject(
                        f"is longer than {MAX_LINE_CHARACTERS:,} characters; a trace has one request per line"
                    )
                if characters > MAX_FILE_CHARACTERS:
                    self.reject(
                        f"the file has more than {MAX_FILE_CHARACTERS:,} characters; set a limit to read a part of it"
                    )
                yield line
        except EOFError:
            self.reject("the gzip data is truncated")
        except (gzip.BadGzipFile, zlib.error) as error:
            self.reject(f"the gzip data is damaged: {error}")
        except OSError as error:
            self.reject(f"cannot be read: {error.strerror or error}")

    def reject(self, problem: str) -> NoReturn:
        """Raise MalformedFile with the problem and the current line number."""
        raise MalformedFile(self.path, problem, where=f"line {max(self.number, 1)}")

    def allows_rows(self, rows: int) -> bool:
        """Return whether a trace may have `rows` rows."""
        return rows <= MAX_ROWS

    def count_row(self, rows: int) -> None:
        """Raise MalformedFile if `rows`, the number of rows so far, exceeds `MAX_ROWS`."""
        if not self.allows_rows(rows):
            self.reject(f"more than {MAX_ROWS:,} requests; set a limit to read the first ones")


@contextmanager
def open_trace(path: str | os.PathLike[str]) -> Iterator[TraceLines]:
    """Yield the lines of a file, or of standard input for `-`; gzip is recognised by its first two bytes."""
    name = os.fspath(path)
    if name == "-":
        yield TraceLines("stdin", _decode_text(_buffer(sys.stdin.buffer)))
        return
    with open_outside(name) as binary:
        yield TraceLines(name, _decode_text(binary))


def short_repr(value: object) -> str:
    """Return a value for an error message: in ASCII, quoted and shortened."""
    text = ascii(value)
    return text if len(text) <= 48 else f"{text[:44]}...{text[0]}"


def parse_token_count(lines: TraceLines, field: str, text: str) -> tuple[int, bool]:
    """Parse a token count, at least 0; also return whether the text contains anything except digits."""
    text = text.strip()
    if text.isdigit() and text.isascii() and len(text) < 18:
        count, plain = int(text), True
    else:
        value = parse_number(lines, field, text)
        if value != math.floor(value):
            lines.reject(f"{field} {short_repr(text)} is not a whole number")
        count, plain = int(value), False
    check_tokens(lines, field, count, text)
    return count, not plain


def check_tokens(lines: TraceLines, field: str, count: int, written: object) -> None:
    """Raise MalformedFile for a token count below 0 or above the limit; 0 is accepted, and the caller must check it."""
    if count < 0:
        lines.reject(f"{field} {short_repr(written)} is negative; a request has at least 1 token")
    if count > MAX_REQUEST_TOKENS:
        lines.reject(
            f"{field} {short_repr(written)} is above {MAX_REQUEST_TOKENS:,} tokens, longer than any model's context"
        )


def parse_number(lines: TraceLines, field: str, text: str) -> float:
    """Parse a field as a finite number. Raises MalformedFile."""
    text = text.strip()
    if not text:
        lines.reject(f"{field} is empty")
    if _NOT_FINITE.fullmatch(text):
        lines.reject(f"{field} {short_repr(text)} is not finite")
    if not _NUMBER.fullmatch(text):
        lines.reject(f"{field} {short_repr(text)} is not a number")
    value = float(text)
    if math.isinf(value):
        lines.reject(f"{field} {short_repr(text)} is not finite: above the range of 64-bit floats")
    return value


def parse_seconds(lines: TraceLines, field: str, text: str) -> float:
    """Parse a field as a time in seconds, finite and not negative. Raises MalformedFile."""
    value = parse_number(lines, field, text)
    if value < 0:
        lines.reject(f"{field} {short_repr(text.strip())} is negative; times must be at least 0")
    if value > MAX_CLOCK_S:
        lines.reject(f"{field} {short_repr(text.strip())} is too large: at most {MAX_CLOCK_S:g} s")
    return value


def count_from_first(arrival_s: FloatArray, notices: list[str]) -> FloatArray:
    """Return the arrivals. If they are large enough to be calendar times, subtract the first one and add a notice."""
    first_s = float(arrival_s.min())
    if first_s < EPOCH_LIKE_S:
        return arrival_s
    notices.append(f"arrivals count from the first request, which is at {first_s:.0f} s")
    return arrival_s - first_s


def _buffer(stream: IO[bytes]) -> io.BufferedReader:
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # type: ignore[arg-type]


def _decode_text(binary: io.BufferedReader) -> IO[str]:
    """Return the stream as UTF-8 text, with or without BOM; invalid bytes are kept for error messages."""
    try:
        compressed = binary.peek(2)[:2] == b"\x1f\x8b"
    except OSError as error:
        raise MalformedFile(binary.name, f"cannot be read: {error.strerror or error}") from None
    source = gzip.GzipFile(fileobj=binary) if compressed else binary
    return io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape")
