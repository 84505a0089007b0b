"""Export sweep results (CSV, Parquet, HTML; one row per point, in the sweep's order), and read them back."""

import csv
import io
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import outside_path, parse_json, read_bytes, read_text
from capacity.base.html import page_html, records_html
from capacity.base.output_files import replaced_file
from capacity.base.rows import flatten, to_csv
from capacity.planning.sweeps.store import Row

ENDINGS = (".csv", ".parquet", ".html")
LEFT_OUT = ("breakdown", "warnings", "schema")
SQLITE = b"SQLite format 3\x00"
MAX_ROWS = 1_000_000
Flat = Mapping[str, object]


def flat_row(row: Row) -> Flat:
    """Return options, status and the answer's numbers in one flat mapping, without breakdowns and warnings."""
    answer = {name: value for name, value in row.answer.items() if name not in LEFT_OUT}
    options = {f"option.{name}": value for name, value in row.options.items()}
    return {**options, "status": row.status, "reason": row.reason, **flatten(answer)}


def check_export(path: str | Path) -> None:
    """Raise InvalidInput if results cannot be exported to this path; called before they are computed."""
    file = outside_path(path)
    if file.suffix not in ENDINGS:
        raise InvalidInput(f"cannot export to {str(path)!r}: must end in .csv, .parquet or .html")
    if file.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise InvalidInput("Parquet needs pyarrow: pip install 'llm-capacity[parquet]'; or export to .csv")
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"cannot write {path}: the folder {file.parent} does not exist")


def export(rows: Iterable[Row], path: str | Path) -> None:
    """Write the rows in the format of the file name's extension: .csv, .parquet or .html. Raises InvalidInput."""
    check_export(path)
    file = outside_path(path)
    flat = [flat_row(row) for row in rows]
    with replaced_file(file) as draft:
        match file.suffix:
            case ".csv":
                draft.write_text(to_csv(flat), encoding="utf-8")
            case ".html":
                draft.write_text(page_html("Sweep", records_html(flat)), encoding="utf-8")
            case _:
                _parquet(flat, draft)


def _parquet(rows: Sequence[Flat], file: Path) -> None:
    import pandas

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _single_type([row.get(name) for row in rows]) for name in names}
    pandas.DataFrame(columns).to_parquet(file, index=False)


def _single_type(values: list[object]) -> list[object]:
    """Return a column unchanged, or as text if it has several types, because a Parquet column has one type."""
    kinds = {float if type(value) is int else type(value) for value in values if value is not None}
    if len(kinds) <= 1 and kinds <= {bool, float, str}:
        return values
    return [None if value is None else str(value) for value in values]


@validate_arguments
def sweep_results(path: str | Path) -> tuple[Flat, ...]:
    """Read the results of a sweep, one dictionary per point.

    The keys are `option.NAME` for options, `status`, `reason`, and dotted names for the numbers of the answer. `path`
    is the store of `capacity sweep`, or a file from `--export FILE.csv` or `--format json`. A store that is still
    being written returns the finished points. Raises MalformedFile.
    """
    if read_bytes(path, "a sweep's results", cut=True)[: len(SQLITE)] == SQLITE:
        return _read_store(outside_path(path))
    text = read_text(path, "a sweep's results")
    rows = _read_json_rows(text, path) if text.lstrip()[:1] in ("{", "[") else _read_csv_rows(text, path)
    if not rows or not all("status" in row for row in rows):
        raise MalformedFile(path, "contains no sweep points: give a file written by `capacity sweep`")
    return rows


def _read_store(file: Path) -> tuple[Flat, ...]:
    alone = "" if file.with_name(file.name + "-wal").exists() else "&immutable=1"  # no writer has it open
    try:
        opened = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro{alone}", uri=True, timeout=5)
        with closing(opened) as connection:
            connection.execute("PRAGMA trusted_schema=OFF")
            kind = connection.execute("SELECT type FROM sqlite_master WHERE name = 'points'").fetchone()
            if kind != ("table",):
                raise MalformedFile(file, "is not a sweep store: it has no table of points")
            found = connection.execute(
                "SELECT options, answer, reason FROM points ORDER BY options LIMIT ?", (MAX_ROWS,)
            ).fetchall()
        return tuple(
            flat_row(Row.from_stored(json.loads(options), answer, reason))
            for options, answer, reason in found
        )
    except (sqlite3.Error, ValueError, TypeError) as error:
        if isinstance(error, MalformedFile):
            raise
        raise MalformedFile(file, f"is not a sweep store ({error})") from None


def _read_json_rows(text: str, path: str | Path) -> tuple[Flat, ...]:
    read = parse_json(text, path)
    rows = read.get("rows") if isinstance(read, dict) else read
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MalformedFile(path, "has no rows: give the output of `capacity sweep --format json`")
    return tuple(rows)


def _read_csv_rows(text: str, path: str | Path) -> tuple[Flat, ...]:
    try:
        return tuple(
            {name: _value(value) for name, value in row.items() if name is not None}
            for row in csv.DictReader(io.StringIO(text), strict=True)
        )
    except csv.Error as error:
        raise MalformedFile(path, f"is not CSV: {error}") from None


def _value(text: str | None) -> object:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return text
