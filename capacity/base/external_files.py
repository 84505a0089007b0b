"""Read files from outside of this package, with limits of size, time and depth.

A pipe (`--trace <(zcat t.gz)`) or a device may be read, but only for a limited time. Unreadable or invalid content
raises MalformedFile, whose message is one line.
"""

import gzip
import io
import json
import os
import re
import select
import stat
import tomllib
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from capacity.base.errors import MalformedFile
from capacity.base.untrusted_text import one_line, printable_values

FileKind = Literal[
    "a model configuration",
    "a safetensors index",
    "a hardware profile",
    "a deployment",
    "a hall",
    "a sweep",
    "a sweep's results",
    "a list of prices",
    "a scenario",
    "a campaign",
    "a measurement file",
    "a benchmark result",
    "a server log",
    "a validation report",
    "a submission",
    "a watch state",
    "a launch file",
]
MAX_BYTES: Mapping[FileKind, int] = {  # uncompressed; several times the largest known file of each kind
    "a model configuration": 1_000_000,
    "a safetensors index": 1 << 26,
    "a hardware profile": 1 << 20,
    "a deployment": 1 << 18,
    "a hall": 1 << 18,
    "a sweep": 1 << 18,
    "a sweep's results": 1 << 28,
    "a list of prices": 1 << 22,
    "a scenario": 1 << 28,
    "a campaign": 1 << 20,
    "a measurement file": 1 << 28,
    "a benchmark result": 1 << 29,
    "a server log": 1 << 26,
    "a validation report": 1 << 28,
    "a submission": 1 << 27,
    "a watch state": 1 << 24,
    "a launch file": 1_000_000,
}
# with the nodes that aliases repeat; `helm template` of a large chart has some 10,000
MAX_YAML_NODES = 50_000
MAX_YAML_DEPTH = 100
READABLE_VARIABLE = "CAPACITY_READABLE_FOLDERS"
"""Environment variable with the only folders from which files may be read; the service sets it for its workers."""
_HIDDEN = Path(os.devnull, "not-readable-here")  # never exists
PIPE_TIMEOUT_S = 10.0  # longest time without data from a pipe
GZIP_MAGIC = b"\x1f\x8b"


def outside_path(name: str | os.PathLike[str]) -> Path:
    """Return the user's path with `~` expanded. Raises MalformedFile for an impossible file name.

    If the environment limits reading to some folders, a path outside of them is replaced by one that does not exist.
    """
    path = Path(name)
    try:
        path = path.expanduser()
        path.exists()  # too long, a link in a loop
    except (OSError, ValueError, RuntimeError) as error:
        raise MalformedFile(name, _reason(error)) from None
    if "\0" in str(path):
        raise MalformedFile(name, "a path must not contain a zero byte")
    return path if _is_readable(path) else _HIDDEN


def _is_readable(path: Path) -> bool:
    folders = os.environ.get(READABLE_VARIABLE)
    if folders is None:
        return True
    return any(Path(os.path.realpath(path)).is_relative_to(each) for each in folders.split(os.pathsep))


def is_file(path: Path) -> bool:
    """Return whether a file exists; False for an impossible file name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is below `folder`, after links are resolved."""
    return outside_path(path).resolve().is_relative_to(folder.resolve())


def open_outside(name: str | os.PathLike[str], *, pipes: bool = True) -> io.BufferedReader:
    """Open a file as bytes; with `pipes`, also a pipe or device. The caller closes it.

    Raises MalformedFile, also for a pipe without data.
    """
    path = outside_path(name)
    if path is _HIDDEN:
        raise MalformedFile(
            name, "cannot be read: the service reads no files of its machine; send the content"
        )
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
    if not pipes:
        os.close(descriptor)
        raise MalformedFile(name, "is a pipe or a device; give a file")
    return io.BufferedReader(_Pipe(descriptor, os.fspath(name)))


def read_bytes(name: str | os.PathLike[str], kind: FileKind, *, cut: bool = False) -> bytes:
    """Return all bytes of a file, decompressed if it is gzip. A file above the size limit of its `kind` is truncated
    with `cut`, else rejected. Pipes and devices can be read, except as a launch file."""
    most = MAX_BYTES[kind]
    try:
        with open_outside(name, pipes=kind != "a launch file") as file:
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
    """Return the tables of TOML text; hidden characters in texts are escaped.

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
    """Return the value of JSON text; hidden characters in texts are escaped.

    Raises MalformedFile for invalid JSON, excessive nesting, or too long numbers. `hooks` are passed to `json.loads`.
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


def parse_yaml(text: str, origin: object) -> list[Any]:
    """Return the documents of YAML 1.2 text (`yes` and `1:30` are text); hidden characters in texts are escaped.

    Raises MalformedFile for invalid YAML, merge keys, excessive nesting, and more than `MAX_YAML_NODES` nodes.
    """
    import yaml  # imported here because few commands read YAML

    try:
        _check_yaml_nodes(text, origin)
        return [printable_values(each) for each in yaml.load_all(text, Loader=_yaml_loader())]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "cannot be parsed"
        where = "" if mark is None else f"line {mark.line + 1}"
        raise MalformedFile(origin, f"not YAML ({one_line(problem)})", where=where) from None
    except RecursionError:
        raise MalformedFile(origin, "not YAML: nested too deeply") from None
    except MalformedFile:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise MalformedFile(origin, f"not YAML: {_too_long(error)}") from None


def _check_yaml_nodes(text: str, origin: object) -> None:
    """Raise MalformedFile if YAML text has too many nodes; an alias counts all nodes of its anchor."""
    import yaml

    sizes: dict[str, int] = {}  # nodes of an anchor's value
    total, open_nodes = 0, list[tuple[str | None, int]]()
    for event in yaml.parse(text, Loader=_yaml_loader()):
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor not in sizes:
                raise MalformedFile(origin, f"the alias *{anchor} is inside its own value or has no anchor")
            total += sizes[anchor]
        elif isinstance(event, yaml.CollectionEndEvent):
            opened, before = open_nodes.pop()
            sizes |= {} if opened is None else {opened: total - before}
        else:
            total += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((anchor, total - 1))
            elif isinstance(event, yaml.ScalarEvent):
                sizes |= {} if anchor is None else {anchor: 1}
                if event.value == "<<" and event.implicit[0]:
                    raise MalformedFile(
                        origin,
                        "merge keys (<<) are not read; `docker compose config` writes the file without them",
                    )
        if total > MAX_YAML_NODES or len(open_nodes) > MAX_YAML_DEPTH:
            raise MalformedFile(
                origin,
                f"has more than {MAX_YAML_NODES:,} YAML nodes or {MAX_YAML_DEPTH} levels; give a part of it",
            )


@cache
def _yaml_loader() -> Any:
    """Return a YAML loader for plain data, with the scalars of the YAML 1.2 core schema."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[Any] = {}

    for name, pattern, first in (
        ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
        ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+.0123456789"),
        ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"(?:{pattern})$"), list(first))
    Loader.add_constructor("tag:yaml.org,2002:int", _yaml_integer)
    return Loader


def _yaml_integer(_: Any, node: Any) -> int:
    return int(node.value, 16 if node.value.startswith("0x") else 10)


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
