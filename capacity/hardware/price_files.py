"""Lists of prices as CSV: one reader for what GPUs cost and what APIs charge."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from capacity.base.errors import MalformedFile
from capacity.base.foreign import printable
from capacity.base.outside import read_text

Row = Mapping[str, str | None]
Priced = TypeVar("Priced")


def read_price_rows(
    path: str | Path, columns: Sequence[str], price: Callable[[Row, str], Priced]
) -> tuple[Priced, ...]:
    """Every row of a list that has these columns, read by `price(row, "line N")`. Raises MalformedFile."""
    text = read_text(path, "a list of prices")
    try:
        lines = csv.DictReader([printable(line) for line in text.splitlines()], strict=True)
        missing = [column for column in columns if column not in (lines.fieldnames or ())]
        if missing:
            raise MalformedFile(path, f"column {missing[0]} is missing; needed are {','.join(columns)}")
        prices = tuple(price(row, f"line {lines.line_num}") for row in lines)
    except csv.Error as error:
        raise MalformedFile(path, f"cannot be read: {error}") from None
    if not prices:
        raise MalformedFile(path, "holds no price")
    return prices
