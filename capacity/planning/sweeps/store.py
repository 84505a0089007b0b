"""Points as they end, in SQLite: kill the program at any time and only the points in flight are lost.

Sweeps that run side by side on one store share the work: each claims points before it begins them, and the claims of a
process that has ended are free again. A process is known by its number and the instant it began, so that a number used
again is another.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.outside import outside_path
from capacity.planning.sweeps.sweep_spec import Options, Point

POINTS = """
CREATE TABLE IF NOT EXISTS points (
    key TEXT PRIMARY KEY,
    options TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('done', 'failed')),
    answer TEXT,
    reason TEXT
) WITHOUT ROWID
"""
CLAIMS = "CREATE TABLE IF NOT EXISTS claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL) WITHOUT ROWID"
_OPENED = count()  # several sweeps of one process are different owners


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one point: `answer` is canonical JSON, or `reason` says why there is none."""

    answer: str | None
    reason: str | None


def status_of(reason: str | None) -> str:
    """What became of a point: done, does not fit (which is an answer too), or failed for another reason."""
    if reason is None:
        return "done"
    return "does not fit" if reason.startswith("DoesNotFit:") else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A point with what became of it; `answer` is empty where there is none."""

    options: Options
    status: str
    reason: str | None
    answer: Mapping[str, object]

    @classmethod
    def stored(cls, options: Options, answer: str | None, reason: str | None) -> Row:
        """The row of a point, with its answer as the store holds it."""
        described = json.loads(answer) if answer is not None else {}
        return cls(options=options, status=status_of(reason), reason=reason, answer=described)


class Store:
    """The file of one or more sweeps; rows are keyed by the hash of the point's whole specification."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._owner = this_process() + f"|{next(_OPENED)}"
        self._claimed = False

    def known(self, *, failed: bool = True) -> set[str]:
        """Keys of the points that are done; with `failed`, also of those that failed."""
        statuses = ("done", "failed") if failed else ("done", "done")
        rows = self._connection.execute("SELECT key FROM points WHERE status IN (?, ?)", statuses)
        return {key for (key,) in rows}

    def claim(self, points: Sequence[Point], *, failed: bool = True) -> list[Point]:
        """Those of `points` that are neither known (as `known` says) nor another living process's: ours from now on."""
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            ours = []
            for point in points:
                if not self._is_known(point.key, failed=failed) and not self._is_others(point.key):
                    row = (point.key, self._owner)
                    self._connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?)", row)
                    ours.append(point)
        self._claimed = self._claimed or bool(ours)
        return ours

    def release(self) -> None:
        """Leave what was claimed and not kept to others."""
        if self._claimed:
            # where a disk is full, the claims end with this process
            with suppress(sqlite3.Error), self._connection:
                self._connection.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))

    def _is_known(self, key: str, *, failed: bool) -> bool:
        row = self._connection.execute("SELECT status FROM points WHERE key = ?", (key,)).fetchone()
        return row is not None and (failed or row[0] == "done")

    def _is_others(self, key: str) -> bool:
        row = self._connection.execute("SELECT owner FROM claims WHERE key = ?", (key,)).fetchone()
        return row is not None and row[0] != self._owner and is_alive(row[0].rpartition("|")[0])

    def keep(self, points: Sequence[Point], answers: Sequence[Answer]) -> None:
        """Write points that ended together; they stay, whatever happens next."""
        rows = [
            (
                point.key,
                json.dumps(point.options, sort_keys=True),
                "done" if answer.reason is None else "failed",
                answer.answer,
                answer.reason,
            )
            for point, answer in zip(points, answers, strict=True)
        ]
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?)", rows)
            self._connection.executemany("DELETE FROM claims WHERE key = ?", [(row[0],) for row in rows])

    def rows(self, points: Iterable[Point]) -> Iterator[Row]:
        """The points that are there, in the sweep's order."""
        for point in points:
            row = self._connection.execute(
                "SELECT answer, reason FROM points WHERE key = ?", (point.key,)
            ).fetchone()
            if row is not None:
                yield Row.stored(point.options, *row)


@contextmanager
def open_store(path: str | Path) -> Iterator[Store]:
    """The store in the file `path`, made where there is none. Raises MalformedFile for another kind of file.

    WAL with synchronous NORMAL: a killed process loses nothing that was committed; a power cut may lose the last
    moments, never the file.
    """
    file = outside_path(path)
    try:
        with closing(sqlite3.connect(file, timeout=30)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            for table in (POINTS, CLAIMS):
                connection.execute(table)
            connection.commit()
            store = Store(connection)
            try:
                yield store
            finally:
                store.release()
    except sqlite3.OperationalError as error:  # disk full, read-only, locked
        raise InvalidInput(f"{path} cannot be written ({error}); what is in it is kept") from None
    except sqlite3.Error as error:
        raise MalformedFile(path, f"is no store of sweeps ({error})") from None


def this_process() -> str:
    """The name of this process, on this machine and in this container."""
    return f"{_place()}|{os.getpid()}|{_begun(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Whether that process still runs. One that cannot be looked up, of another machine, say, counts as ended: what
    it may still be doing is done twice, and nothing waits for ever."""
    place, _, rest = owner.partition("|")
    number, _, begun = rest.partition("|")
    # on Windows, asking with signal 0 would end it
    if place != _place() or not number.isdigit() or os.name == "nt":
        return False
    try:
        os.kill(int(number), 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return _begun(int(number)) == begun


def _place() -> str:
    try:
        container = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        container = ""
    return f"{socket.gethostname()} {container}".replace("|", " ")


def _begun(number: int) -> str:
    """When a process began, in the kernel's ticks; nothing where the system does not say. A zombie has ended."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "ended" if fields[0] == "Z" else fields[19]
