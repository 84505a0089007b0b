"""Convert nested records to flat rows, and rows to CSV."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from capacity.base.untrusted_text import printable

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def flatten(record: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Return the record with one level of keys: nested mappings become dotted names, and lists become JSON text."""
    flat: dict[str, object] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.dumps(value) if isinstance(value, (list, tuple)) else value
    return flat


def to_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows as CSV with a header. Text that a spreadsheet would read as a formula gets a leading apostrophe."""
    rows = list(rows)
    output = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(output, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _guard_text(value) for name, value in row.items()} for row in rows)
    return output.getvalue()


def guarded_cell(text: str) -> str:
    """Return the text, with a leading apostrophe if a spreadsheet would read it as a formula (it begins with =, +, -,
    @, a tab or a carriage return)."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _guard_text(value: object) -> object:
    return guarded_cell(printable(value)) if isinstance(value, str) else value
