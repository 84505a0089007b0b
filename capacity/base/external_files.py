"""Reader for files from outside, with limits of size, time and depth.

A pipe (`--trace <(zcat t.gz)`) or a device may be read, but only for a limited time. Unreadable or invalid content
raises a `MalformedFile` with one line.
"""

import gzip
import io
import json
import os
import select
import stat
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from capacity.base.errors import MalformedFile
from capacity.base.untrusted_text import printable_values

FileKind = Literal[
    "a model configuration",
    "a safetensors index",
    "a hardware profile",
    "a deployment",
    "a sweep",
    "a sweep's results",
    "a list of prices",
    "a scenario",
    "a campaign",
    "a measurement file",
    "a benchmark result",
    "a server log",
]
MAX_BYTES: Mapping[FileKind, int] = {  # uncompressed; several times the largest known file of each kind
    "a model configuration": 1_000_000,
    "a safetensors index": 1 << 26,
    "a hardware profile": 1 << 20,
    "a deployment": 1 << 18,
    "a sweep": 1 << 18,
    "a sweep's results": 1 << 28,
    "a list of prices": 1 << 22,
    "a scenario": 1 << 28,
    "a campaign": 1 << 20,
    "a measurement file": 1 << 28,
    "a benchmark result": 1 << 29,
    "a server log": 1 << 26,
}
PIPE_TIMEOUT_S = 10.0  # longest time without data from a pipe
GZIP_MAGIC = b"\x1f\x8b"


def outside_path(name: str | os.PathLike[str]) -> Path:
    """Return the user's path with `~` expanded. Raises MalformedFile for an impossible file name."""
    path = Path(name)
    try:
        path = path.expanduser()
        path.exists()  # too long, a link in a loop
    except (OSError, ValueError, RuntimeError) as error:
        raise MalformedFile(name, _reason(error)) from None
    if "\0" in str(path):
        raise MalformedFile(name, "a path must not contain a zero byte")
    return path


def is_file(path: Path) -> bool:
    """Return whether a file exists; False for an impossible file name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def open_outside(name: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file, pipe or device as bytes; the caller closes it. Raises MalformedFile, also for a silent pipe."""
    path = outside_path(name)
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise MalformedFile(name, _reason(error)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        os.close(descriptor)
        raise MalformedFile(name, "is a folder; give a file")
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")  # noqa: PTH123 - a descriptor has no path
    return io.BufferedReader(_Pipe(descriptor, os.fspath(name)))


def read_bytes(name: str | os.PathLike[str], kind: FileKind, *, cut: bool = False) -> bytes:
    """Return all bytes of a file, decompressed if it is gzip. A file above the size limit of its kind is truncated
    with `cut`, else rejected."""
    most = MAX_BYTES[kind]
    try:
        with open_outside(name) as file:
            compressed = file.peek(2)[:2] == GZIP_MAGIC
            stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
            raw: bytes = stream.read(most + 1)
    except EOFError:
        raise MalformedFile(name, "the gzip data is truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise MalformedFile(name, f"the gzip data is damaged: {error}") from None
    except OSError as error:
        raise MalformedFile(name, _reason(error)) from None
    if len(raw) > most and not cut:
        raise MalformedFile(name, f"has more than {most:,} bytes, the limit for {kind}")
    return raw[:most]


def read_text(name: str | os.PathLike[str], kind: FileKind) -> str:
    """Return the text of a UTF-8 file, with or without a byte-order mark."""
    try:
        return read_bytes(name, kind).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MalformedFile(name, "not UTF-8 text") from None


def read_toml(name: str | os.PathLike[str], kind: FileKind) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    return parse_toml(read_text(name, kind), name)


def parse_toml(text: str, origin: object) -> dict[str, Any]:
    """Return the tables of TOML text, with printable texts.

    Raises MalformedFile for invalid TOML, excessive nesting, or too long numbers.
    """
    try:
        return printable_values(tomllib.loads(text))  # type: ignore[no-any-return]
    except tomllib.TOMLDecodeError as error:
        raise MalformedFile(origin, f"not TOML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise MalformedFile(origin, "not TOML: nested too deeply") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise MalformedFile(origin, f"not TOML: {_too_long(error)}") from None


def parse_json(text: str, origin: object, **hooks: Any) -> Any:
    """Return a JSON value with printable texts.

    Raises MalformedFile for invalid JSON, excessive nesting, or too long numbers. `hooks` are those of `json.loads`.
    """
    try:
        return printable_values(json.loads(text, **hooks))
    except json.JSONDecodeError as error:
        raise MalformedFile(origin, f"not JSON ({error.msg})", where=f"line {error.lineno}") from None
    except RecursionError:
        raise MalformedFile(origin, "not JSON: nested too deeply") from None
    except MalformedFile:
        raise
    except ValueError as error:
        raise MalformedFile(origin, f"not JSON: {_too_long(error)}") from None


class _Pipe(io.RawIOBase):
    """A pipe or device, read until it ends; a read fails if no data arrives for `PIPE_TIMEOUT_S`."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self.name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not select.select([self._descriptor], [], [], PIPE_TIMEOUT_S)[0]:
            problem = f"no data within {PIPE_TIMEOUT_S:g} s; check that a process writes to it"
            raise MalformedFile(self.name, problem)
        return os.readv(self._descriptor, [buffer])

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def _too_long(error: ValueError) -> str:
    return f"a number is too long ({str(error).split(';')[0]})"


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"cannot be read ({text[:1].lower()}{text[1:].rstrip('.')})"
