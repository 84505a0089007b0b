"""A sweep's rows for others: CSV, Parquet, HTML. One row a point, in the sweep's order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from capacity.base.errors import InvalidInput
from capacity.base.html import page_html, records_html
from capacity.base.outside import outside_path
from capacity.base.rows import flattened, to_csv
from capacity.planning.sweeps.store import Row

ENDINGS = (".csv", ".parquet", ".html")
LEFT_OUT = ("breakdown", "warnings", "schema")
Flat = Mapping[str, object]


def flat_row(row: Row) -> Flat:
    """Options, status and the answer's numbers on one level; breakdowns and warnings stay in the store."""
    answer = {name: value for name, value in row.answer.items() if name not in LEFT_OUT}
    options = {f"option.{name}": value for name, value in row.options.items()}
    return {**options, "status": row.status, "reason": row.reason, **flattened(answer)}


def check_export(path: str | Path) -> None:
    """Raises InvalidInput for a file that no rows could be written to: before they are computed."""
    file = outside_path(path)
    if file.suffix not in ENDINGS:
        raise InvalidInput(
            f"cannot export to {str(path)!r}: name a file that ends in .csv, .parquet or .html"
        )
    if file.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise InvalidInput("Parquet needs pyarrow: pip install 'llm-capacity[parquet]'; or export to .csv")
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"cannot write {path}: there is no folder {file.parent}")


def export(rows: Iterable[Row], path: str | Path) -> None:
    """Write the rows as the file's ending says: .csv, .parquet or .html. Raises InvalidInput."""
    check_export(path)
    file = outside_path(path)
    flat = [flat_row(row) for row in rows]
    try:
        match file.suffix:
            case ".csv":
                file.write_text(to_csv(flat), encoding="utf-8")
            case ".html":
                file.write_text(_html(flat), encoding="utf-8")
            case _:
                _parquet(flat, file)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None


def _parquet(rows: Sequence[Flat], file: Path) -> None:
    import pandas

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _of_one_type([row.get(name) for row in rows]) for name in names}
    pandas.DataFrame(columns).to_parquet(file, index=False)


def _of_one_type(values: list[object]) -> list[object]:
    """A column as it is, or as text where it holds several types: Parquet has one a column."""
    kinds = {float if type(value) is int else type(value) for value in values if value is not None}
    if len(kinds) <= 1 and kinds <= {bool, float, str}:
        return values
    return [None if value is None else str(value) for value in values]


def _html(rows: Sequence[Flat]) -> str:
    return page_html("Sweep", records_html(rows))
