"""Read data files of this package, and find the folders of the user's own files. Data files are TOML, or JSON if every
command reads them, because JSON is parsed 20 times as fast."""

import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from capacity.base.errors import MalformedFile
from capacity.base.fields import parse_json_object

Row = TypeVar("Row")
Table: TypeAlias = Mapping[str, Any]
"""A table of a data file: plain values by key."""


def read_data(path: Path) -> Table:
    """Return the content of a TOML or JSON file as plain values, with lists as tuples. Raises MalformedFile."""
    try:
        raw = path.read_bytes()
        table = parse_json_object(raw, path) if path.suffix == ".json" else tomllib.loads(raw.decode())
        return {key: _lists_to_tuples(value) for key, value in table.items()}
    except MalformedFile:
        raise
    except (OSError, ValueError) as error:
        raise MalformedFile(path, f"cannot be read: {error}") from None


def read_rows(path: Path, make: Callable[..., Row], *, named: bool = True) -> dict[str, Row]:
    """Return a record for each table of a TOML or JSON file, by the table's name. `make` builds the record from the
    table's keys; with `named`, it also gets the table's name as `name`. Raises MalformedFile."""
    tables = read_data(path)
    return {
        name: make_row(path, name, make, {"name": name, **row} if named else row)
        for name, row in tables.items()
    }


def make_row(path: Path, name: str, make: Callable[..., Row], values: Table) -> Row:
    """Return the record that `make` builds from one table. Raises MalformedFile for a missing or unknown key."""
    try:
        return make(**values)
    except (TypeError, ValueError) as error:
        if hasattr(error, "errors"):  # a pydantic error; pydantic is not imported here
            found = error.errors()[0]
            key = ".".join(map(str, found["loc"]))
            raise MalformedFile(path, f"{key}: {found['msg']}", where=name) from None
        raise MalformedFile(path, str(error).partition("() ")[2] or str(error), where=name) from None


def _lists_to_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_lists_to_tuples, value))
    return {key: _lists_to_tuples(each) for key, each in value.items()} if isinstance(value, dict) else value


def user_folder(kind: str) -> Path:
    """Return the user's folder for files of `kind` (profiles, models). It need not exist."""
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", "~")).expanduser() / "capacity" / kind
    if sys.platform == "darwin":
        return Path("~/Library/Application Support/capacity").expanduser() / kind
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "capacity" / kind
