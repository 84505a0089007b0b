"""Store of sweep results in SQLite. Results are written as points finish, so a killed process loses only unfinished
ones.

Concurrent sweeps on one store share the work: each claims points before it computes them, and claims of processes that
have ended are released. A process is identified by its id and start time, so a reused id counts as another process.
"""

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
from capacity.base.external_files import outside_path
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
_OPENED = count()  # counts the sweeps of one process, which are different owners


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of one sweep point: `answer` is canonical JSON; if it is None, `reason` has the cause."""

    answer: str | None
    reason: str | None


def status_of(reason: str | None) -> str:
    """Return the status of a sweep point: "done", "does not fit" (also a valid answer), or "failed"."""
    if reason is None:
        return "done"
    return "does not fit" if reason.startswith("DoesNotFit:") else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Point of a sweep with its result; `answer` is empty for a point that failed."""

    options: Options
    status: str
    reason: str | None
    answer: Mapping[str, object]

    @classmethod
    def from_stored(cls, options: Options, answer: str | None, reason: str | None) -> "Row":
        described = json.loads(answer) if answer is not None else {}
        return cls(options=options, status=status_of(reason), reason=reason, answer=described)


class Store:
    """SQLite file with results of one or more sweeps, one row per point; its key is a hash of the point's input."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._owner = this_process() + f"|{next(_OPENED)}"
        self._claimed = False

    def done_keys(self, *, failed: bool = True) -> set[str]:
        """Return the keys of sweep points with a result; with `failed`, also of points that failed."""
        statuses = ("done", "failed") if failed else ("done", "done")
        rows = self._connection.execute("SELECT key FROM points WHERE status IN (?, ?)", statuses)
        return {key for (key,) in rows}

    def claim(self, points: Sequence[Point], *, failed: bool = True) -> list[Point]:
        """Claim and return sweep points that have no result and no claim; with `failed`, failures count as results."""
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
        """Release the sweep points that this process has claimed and not stored."""
        if self._claimed:
            # if the disk is full, the claims end with this process
            with suppress(sqlite3.Error), self._connection:
                self._connection.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))

    def _is_known(self, key: str, *, failed: bool) -> bool:
        row = self._connection.execute("SELECT status FROM points WHERE key = ?", (key,)).fetchone()
        return row is not None and (failed or row[0] == "done")

    def _is_others(self, key: str) -> bool:
        row = self._connection.execute("SELECT owner FROM claims WHERE key = ?", (key,)).fetchone()
        return row is not None and row[0] != self._owner and is_alive(row[0].rpartition("|")[0])

    def store_answers(self, points: Sequence[Point], answers: Sequence[Answer]) -> None:
        """Store the results of sweep points in one transaction, and release their claims."""
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
        """Yield the results of the points that are stored, in the order of `points`."""
        for point in points:
            row = self._connection.execute(
                "SELECT answer, reason FROM points WHERE key = ?", (point.key,)
            ).fetchone()
            if row is not None:
                yield Row.from_stored(point.options, *row)


@contextmanager
def open_store(path: str | Path) -> Iterator[Store]:
    """Open the store in the file `path`; create it if it does not exist.

    Raises MalformedFile for a file of another kind, and InvalidInput if it cannot be written. With WAL and synchronous
    NORMAL, a killed process loses nothing that was committed; a power failure may lose the last transactions, but the
    file stays valid.
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
        raise InvalidInput(f"{path} cannot be written ({error}); its content is unchanged") from None
    except sqlite3.Error as error:
        raise MalformedFile(path, f"is not a sweep store ({error})") from None


def this_process() -> str:
    """Return an identifier of this process: machine, container, process id and start time."""
    return f"{_machine_id()}|{os.getpid()}|{_process_start(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Return whether the process with the identifier `owner` still runs.

    A process that cannot be checked, for example on another machine, counts as ended: its points may be computed
    twice, but no sweep waits forever.
    """
    place, _, rest = owner.partition("|")
    number, _, begun = rest.partition("|")
    # on Windows, signal 0 would terminate the process
    if place != _machine_id() or not number.isdigit() or os.name == "nt":
        return False
    try:
        os.kill(int(number), 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return _process_start(int(number)) == begun


def _machine_id() -> str:
    try:
        container = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        container = ""
    return f"{socket.gethostname()} {container}".replace("|", " ")


def _process_start(number: int) -> str:
    """Return the start time of a process in kernel ticks; empty if unavailable, "ended" for a zombie."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "ended" if fields[0] == "Z" else fields[19]
