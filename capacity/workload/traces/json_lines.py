"""Parse the JSON objects of a trace, one per line, and their numbers."""

import json
from typing import NoReturn

from capacity.workload.traces.format import JsonLines
from capacity.workload.traces.lines import MAX_CLOCK_S, TraceLines, check_tokens, short_repr

MAX_DOCUMENT_CHARACTERS = 1 << 28


def json_record(lines: TraceLines, line: str) -> dict[str, object]:
    """Parse one line as a JSON object. Raises MalformedFile."""
    record = _decode(lines, line)
    if not isinstance(record, dict):
        lines.reject(f"is not a JSON object: {short_repr(line.strip())}; a trace has one object per line")
    return record


def _decode(lines: TraceLines, text: str) -> object:
    try:
        return _DECODER.decode(text)
    except RecursionError:
        lines.reject("is nested too deeply")
    except ValueError as error:
        lines.reject(f"is not JSON: {getattr(error, 'msg', error)}: {short_repr(text.strip())}")


def json_document(lines: TraceLines, first: str) -> JsonLines:
    """Parse the whole file as one JSON object or array; `first` is its first line. Raises MalformedFile."""
    texts, characters = [first], len(first)
    for line in lines:
        texts.append(line)
        characters += len(line)
        if characters > MAX_DOCUMENT_CHARACTERS:
            lines.reject(
                f"the document has more than {MAX_DOCUMENT_CHARACTERS:,} characters; write one object per line"
            )
    read = _decode(lines, "".join(texts))
    objects = [entry for entry in (read if isinstance(read, list) else [read]) if isinstance(entry, dict)]
    if not objects or (isinstance(read, list) and len(objects) < len(read)):
        lines.reject(f"is neither a JSON object nor a list of objects: {short_repr(first.strip())}")
    return JsonLines(objects[0], tuple(objects[1:]))


def json_number(lines: TraceLines, field: str, value: object) -> float:
    """Return `value` as a finite number of at least 0; errors name `field`. Raises MalformedFile."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        lines.reject(f"{field} {short_repr(value)} is not a number")
    if not value < float("inf") or abs(value) > 1e300:
        lines.reject(f"{field} {short_repr(value)} is not finite")
    if value < 0:
        lines.reject(f"{field} {short_repr(value)} is negative")
    if value > 1000 * MAX_CLOCK_S:
        lines.reject(f"{field} {short_repr(value)} is too large")
    return float(value)


def json_tokens(lines: TraceLines, field: str, value: object) -> int:
    """Return `value` as a whole number of tokens, at least 0; errors name `field`. Raises MalformedFile."""
    if type(value) is not int:
        number = json_number(lines, field, value)
        if number != int(number):
            lines.reject(f"{field} {short_repr(value)} is not a whole number")
        value = int(number)
    check_tokens(lines, field, value, value)
    return value


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)
