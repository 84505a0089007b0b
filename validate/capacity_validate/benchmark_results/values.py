"""JSON values of result files: documents one after the other, and numbers that may not be any."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capacity.base.errors import MalformedFile
from capacity.base.foreign import printable_values

MAX_NUMBER = 1e15  # of anything measured

Document = Mapping[str, Any]


def documents(path: Path, text: str) -> Iterator[Any]:
    """JSON values of a file's text: one, or several one after the other (appended results, JSON lines)."""
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:  # also an integer of more digits than Python converts
            line = text.count("\n", 0, position) + 1
            hint = "" if position else "; a server log is given to compare with --server-log FILE"
            raise MalformedFile(path, f"not JSON: {error}{hint}", where=f"from line {line}") from None
        if not isinstance(value, dict | list):
            raise MalformedFile(path, f"holds a bare {type(value).__name__}, not a result")
        yield printable_values(value)
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < MAX_NUMBER else None  # not-a-number compares false


def rate(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return float(value) if np.isinf(value) or value < MAX_NUMBER else None


def count(value: object) -> int | None:
    finite = number(value)
    return None if finite is None or finite < 1 else int(finite)


def summarise_ms(values_s: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles in ms, as the benchmark clients compute them."""
    array = np.asarray(values_s, dtype=float)
    if not len(array):
        return {}
    if not (np.abs(array) < MAX_NUMBER).all():
        raise ValueError("a time is no number of seconds")
    array = array * 1e3
    quantiles = {f"p{p}": float(np.percentile(array, p)) for p in (50, 90, 95, 99)}
    return {"mean": float(array.mean()), **quantiles}


def mean(total: object, count: int) -> float | None:
    finite = number(total)
    return finite / count if finite is not None and count else None


def lists(document: Document, *names: str) -> list[list[Any]] | None:
    """Equally long per-request arrays, or None where one is missing."""
    columns = [document.get(name) for name in names]
    if not all(isinstance(column, list) and column for column in columns):
        return None
    if len({len(column) for column in columns if column is not None}) != 1:
        return None
    return [list(column) for column in columns if column is not None]


def known(statistics: Mapping[str, object], factor: float = 1.0) -> dict[str, float]:
    """Those statistics that are finite numbers, times `factor`."""
    numbers = {name: number(value) for name, value in statistics.items()}
    return {name: value * factor for name, value in numbers.items() if value is not None}


def flat_latencies(document: Document, names: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """`mean_ttft_ms` and its kin; `names` maps our metric to the tool's."""
    latencies = {
        metric: known(
            {
                "mean": document.get(f"mean_{name}_ms"),
                "p50": document.get(f"median_{name}_ms", document.get(f"p50_{name}_ms")),
                **{f"p{p}": document.get(f"p{p}_{name}_ms") for p in (90, 95, 99)},
            }
        )
        for metric, name in names.items()
    }
    return {metric: statistics for metric, statistics in latencies.items() if statistics}
