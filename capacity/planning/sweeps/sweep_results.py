"""A sweep's rows read back: from its store, or from the CSV or JSON that it was exported to."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from capacity.base.checked import checked
from capacity.base.errors import MalformedFile
from capacity.base.outside import outside_path, parse_json, read_bytes, read_text
from capacity.planning.sweeps.store import Row, status_of
from capacity.planning.sweeps.sweep_export import flat_row

SQLITE = b"SQLite format 3\x00"
MOST_ROWS = 1_000_000
Flat = Mapping[str, object]


@checked
def sweep_results(path: str | Path) -> tuple[Flat, ...]:
    """The points of a sweep: options as `option.NAME`, `status`, `reason`, and the answer's numbers by dotted names.

    `path` is what `capacity sweep` kept (its store), or wrote with `--export FILE.csv` or `--format json`. A store that
    is still written to gives the points that are done. Raises MalformedFile.
    """
    if read_bytes(path, "a sweep's results", cut=True)[: len(SQLITE)] == SQLITE:
        return _of_a_store(outside_path(path))
    text = read_text(path, "a sweep's results")
    rows = _of_json(text, path) if text.lstrip()[:1] in ("{", "[") else _of_csv(text, path)
    if not rows or not all("status" in row for row in rows):
        raise MalformedFile(
            path, "has no points of a sweep: each has a status; was it written by `capacity sweep`?"
        )
    return rows


def _of_a_store(file: Path) -> tuple[Flat, ...]:
    alone = "" if file.with_name(file.name + "-wal").exists() else "&immutable=1"  # nobody writes to it
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro{alone}", uri=True, timeout=5)
        try:
            connection.execute("PRAGMA trusted_schema=OFF")
            kind = connection.execute("SELECT type FROM sqlite_master WHERE name = 'points'").fetchone()
            if kind != ("table",):
                raise MalformedFile(file, "is no store of sweeps: it has no table of points")
            found = connection.execute(
                "SELECT options, answer, reason FROM points ORDER BY options LIMIT ?", (MOST_ROWS,)
            ).fetchall()
        finally:
            connection.close()
        return tuple(_row(*each) for each in found)
    except (sqlite3.Error, ValueError, TypeError) as error:
        if isinstance(error, MalformedFile):
            raise
        raise MalformedFile(file, f"is no store of sweeps ({error})") from None


def _row(options: str, answer: str | None, reason: str | None) -> Flat:
    read = json.loads(answer) if answer is not None else {}
    return flat_row(Row(options=json.loads(options), status=status_of(reason), reason=reason, answer=read))


def _of_json(text: str, path: str | Path) -> tuple[Flat, ...]:
    read = parse_json(text, path)
    rows = read.get("rows") if isinstance(read, dict) else read
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MalformedFile(path, "has no rows: it must be what `capacity sweep --format json` writes")
    return tuple(rows)


def _of_csv(text: str, path: str | Path) -> tuple[Flat, ...]:
    try:
        return tuple(
            {name: _value(value) for name, value in row.items() if name is not None}
            for row in csv.DictReader(io.StringIO(text), strict=True)
        )
    except csv.Error as error:
        raise MalformedFile(path, f"is no CSV: {error}") from None


def _value(text: str | None) -> object:
    """A cell as the number it is, else as it is; nothing for an empty one."""
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return text
