"""Convert untrusted sequences to validated read-only numpy arrays, the columns of a workload."""

from typing import Any

import numpy as np
import numpy.typing as npt

from capacity.base.errors import InvalidInput

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Longest plausible prompt or answer; the longest context window offered in 2026 is 10 M tokens.
MAX_REQUEST_TOKENS = 2**24
MAX_TIME_S = 1e9  # thirty years; a later arrival has a wrong unit


def float_column(
    name: str, values: object, *, length: int | None = None, minimum: float = 0.0, maximum: float = np.inf
) -> FloatArray:
    """Return finite values from `minimum` to `maximum` as a float64 column. Raises InvalidInput."""
    raw = _to_vector(name, values, length)
    if raw.dtype.kind not in "iuf":
        raise InvalidInput(f"{name} must be numbers, not {raw.dtype}")
    column = raw.astype(np.float64)
    _reject_values(name, column, ~np.isfinite(column), "is not finite")
    _reject_values(name, column, column < minimum, f"is below {minimum:g}")
    _reject_values(name, column, column > maximum, f"is above {maximum:g}")
    return _make_read_only(column)


def int_column(
    name: str,
    values: object,
    *,
    length: int | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
) -> IntArray:
    """Return whole numbers within the limits as an int64 column; whole floats are accepted. Raises InvalidInput."""
    raw = _to_vector(name, values, length)
    if raw.dtype.kind == "f":
        _reject_values(name, raw, ~np.isfinite(raw), "is not finite")
        _reject_values(name, raw, raw != np.floor(raw), "is not a whole number")
        _reject_values(name, raw, np.abs(raw) >= 2.0**63, "is beyond 64 bits")
    elif raw.dtype.kind not in "iu" and raw.size:
        raise InvalidInput(f"{name} must be whole numbers, not {raw.dtype}")
    if minimum is not None:
        _reject_values(name, raw, raw < minimum, f"is below {minimum}")
    if maximum is not None:
        _reject_values(name, raw, raw > maximum, f"is above {maximum}")
    return _make_read_only(raw.astype(np.int64))


def token_column(name: str, values: object, *, length: int | None = None) -> IntArray:
    """Return token counts as a column: whole numbers from 1 to `MAX_REQUEST_TOKENS`. Raises InvalidInput."""
    return int_column(name, values, length=length, minimum=1, maximum=MAX_REQUEST_TOKENS)


def _to_vector(name: str, values: object, length: int | None) -> npt.NDArray[Any]:
    try:
        raw: npt.NDArray[Any] = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"{name} must be a flat sequence of numbers: {error}") from None
    if raw.ndim != 1:
        raise InvalidInput(f"{name} must be a flat sequence of numbers, not {raw.ndim}-dimensional")
    if length is not None and raw.size != length:
        raise InvalidInput(f"{name} has {raw.size} values for {length} requests")
    return raw


def _reject_values(name: str, column: npt.NDArray[Any], bad: npt.NDArray[np.bool_], reason: str) -> None:
    if bad.any():
        index = int(np.argmax(bad))
        raise InvalidInput(f"{name} of request {index} {reason}: {column[index].item()!r}")


def _make_read_only(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    column.setflags(write=False)
    return column
