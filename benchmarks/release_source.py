"""Files and facts of an engine's releases: read the wheel by HTTP ranges, and defaults from its syntax trees."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from capacity.deployment.engines.engine_spec import EngineSpec


@dataclass(frozen=True)
class Source:
    """Parsed files of one release; a file that the release does not have is an empty module."""

    release: str
    files: dict[str, str]

    def tree(self, path: str) -> ast.Module:
        return _parsed(self.files.get(path, ""))


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


Value = object
Node = TypeVar("Node", bound=ast.AST)


def class_default(tree: ast.AST, owner: str, field: str) -> Value:
    """Return the default of a class's field, None if it has none. Raises KeyError if there is no such field."""
    for node in nodes(tree, ast.ClassDef):
        for line in node.body if node.name == owner else ():
            if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == field:
                return default_value(line.value)
    raise KeyError(field)


def default_value(value: ast.expr | None) -> Value:
    if isinstance(value, ast.Call):  # Field(default=0.9, gt=0)
        named = [keyword.value for keyword in value.keywords if keyword.arg == "default"]
        return default_value(next(iter([*named, *value.args]), None))
    return value.value if isinstance(value, ast.Constant) else None


def nodes(tree: ast.AST, kind: type[Node]) -> Iterator[Node]:
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def function(tree: ast.AST, name: str) -> ast.AST:
    return next((node for node in nodes(tree, ast.FunctionDef) if node.name == name), ast.Module([], []))


def names(tree: ast.AST) -> set[str]:
    names = {node.id for node in nodes(tree, ast.Name)}
    return names | {node.attr for node in nodes(tree, ast.Attribute)}


def literal(tree: ast.Module, name: str) -> list[str]:
    """Return the values of a `Literal` that the module assigns to `name`."""
    for node in nodes(tree, ast.Assign):
        if ast.unparse(node.targets[0]) == name:
            return [str(value.value) for value in nodes(node.value, ast.Constant)]
    raise KeyError(name)


@dataclass(frozen=True)
class ReleaseFact:
    """A fact: how to read it from a release's source, and from an entry of our data (None: no field has it)."""

    read: Callable[[Source], Value]
    entry: Callable[[EngineSpec], Value] | None
    label: str  # in the handbook
    differs: str = ""  # the rule of our entries, where it is another on purpose


@dataclass(frozen=True)
class EngineFacts:
    """An engine whose releases are read: its facts, and the files of its wheel that decide them.

    `adapt`: changes the facts of an entry where a release states a default in another way.
    """

    name: str
    package: str
    label: str
    releases: tuple[str, ...]
    files: tuple[str, ...]
    facts: dict[str, ReleaseFact]
    adapt: Callable[[str, EngineSpec, dict[str, Value]], dict[str, Value]] = lambda _release, _engine, facts: (
        facts
    )

    @property
    def table(self) -> Path:
        return Path(__file__).parents[1] / "tests/data" / f"{self.name}_releases.csv"


class RangedFile(io.RawIOBase):
    """A file behind a URL, read by HTTP ranges of at least 1 MiB."""

    def __init__(self, url: str) -> None:
        self._url, self._position, self._start, self._buffer = url, 0, 0, b""
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=60) as answer:
            self._size = int(answer.headers["Content-Length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, into: bytearray | memoryview) -> int:  # type: ignore[override]
        wanted = min(len(into), self._size - self._position)
        first = self._position - self._start
        if first < 0 or first + wanted > len(self._buffer):
            last = min(self._size, self._position + max(wanted, 2**20)) - 1
            headers = {"Range": f"bytes={self._position}-{last}"}
            request = urllib.request.Request(self._url, headers=headers)
            with urllib.request.urlopen(request, timeout=120) as answer:
                self._start, self._buffer, first = self._position, answer.read(), 0
        into[:wanted] = self._buffer[first : first + wanted]
        self._position += wanted
        return wanted


def wheel_url(package: str, release: str) -> str:
    """Return the address of a release's wheel, as pip resolves it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", str(report)]
        command += ["--no-deps", "--ignore-installed", "--only-binary", ":all:", "--target", folder]
        subprocess.run([*command, f"{package}=={release}"], check=True, stdout=subprocess.DEVNULL)
        return str(json.loads(report.read_text(encoding="utf-8"))["install"][0]["download_info"]["url"])


def read_release(facts: EngineFacts, release: str, folder: Path | None = None) -> Source:
    """Return the files of a release, from `folder` or its wheel; `folder` then keeps them.

    A file that the wheel does not have is kept as an empty one. Raises URLError and CalledProcessError.
    """
    places = {path: folder / release / path for path in facts.files} if folder else {}
    if not places or not all(place.exists() for place in places.values()):
        with zipfile.ZipFile(io.BufferedReader(RangedFile(wheel_url(facts.package, release)))) as wheel:
            names = set(wheel.namelist())
            files = {path: wheel.read(path).decode() if path in names else "" for path in facts.files}
        for path, place in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(files[path], encoding="utf-8")
        return Source(release, files)
    return Source(release, {path: place.read_text(encoding="utf-8") for path, place in places.items()})


def release_order(release: str) -> tuple[int, ...]:
    """Return the numbers of a release, to compare it with others."""
    return tuple(int(part) for part in re.findall(r"\d+", release.partition(".post")[0]))
