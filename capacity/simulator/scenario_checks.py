"""Checks of the numbers in a scenario (see `scenarios`); errors state the field, its value and the allowed values."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from capacity.base.clock import LATEST_S
from capacity.base.errors import InvalidInput

MAX_INTEGER = 1 << 40  # limit of counts and seeds, so that their sums fit in 64 bits
INTEGER_FIELDS = (
    "num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len",
    "long_prefill_token_threshold", "max_num_active_seqs", "prefill_schedule_interval", "pp",
    "num_cpu_blocks", "sliding_window", "hybrid_window", "page_size",
)  # fmt: skip
REQUEST_INTEGER_FIELDS = ("max_tokens", "priority", "out_seed")
MAX_STEP_S = 1e5  # of a step, or per token


def check_scenario(scenario: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a field of the wrong type. Missing fields raise KeyError later, when they are read."""
    _check_integers(scenario, INTEGER_FIELDS)
    _check_number("watermark", scenario.get("watermark", 0), 1)
    times = scenario.get("step_time", {})
    if not isinstance(times, Mapping):
        raise InvalidInput(f"step_time is {times!r}: it must be an object with base and per_token")
    for name, seconds in times.items():
        _check_number(f"step_time.{name}", seconds, MAX_STEP_S)
    requests = scenario.get("requests", [])
    if not isinstance(requests, list):
        raise InvalidInput(f"requests is a {type(requests).__name__}: it must be a list")
    for index, request in enumerate(requests):
        if not isinstance(request, Mapping):
            raise InvalidInput(f"request {index} is {request!r:.60}: it must be an object")
        _check_integers(request, REQUEST_INTEGER_FIELDS)
        _check_number("arrival", request.get("arrival", 0), LATEST_S)
        if isinstance(request.get("id", 0), list | dict):
            raise InvalidInput(f"request {index}: its id must be a text or a number")


def check_segment(segment: Any) -> int:
    """Return the length of a segment of a prompt, [seed, length] or ["o", seed, length]. Raises InvalidInput."""
    if not isinstance(segment, list) or len(segment) not in (2, 3):
        raise InvalidInput(f"segment {segment!r:.60}: it must be [seed, length] or ['o', seed, length]")
    for number in segment[-2:]:
        if not _is_integer(number):
            raise InvalidInput(f"segment {segment!r:.60}: {number!r:.60} must be a whole number below 2^40")
    return int(segment[-1])


def _check_integers(document: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        value = document.get(name)
        if value is not None and not _is_integer(value):
            raise InvalidInput(f"{name} is {value!r:.60}: it must be a whole number below 2^40")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_INTEGER


def _check_number(name: str, value: object, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        shown = "nan" if isinstance(value, float) and math.isnan(value) else f"{value!r:.60}"
        raise InvalidInput(f"{name} is {shown}: it must be a number from 0 to {most:g}")
