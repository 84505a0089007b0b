"""Largest simulated time: the limit of arrival times, think times, client timeouts and all other times of a run."""

from capacity.base.errors import InvalidInput

# 12.7 days. The compiled engines' clock, 2^60 ps, holds 13.3 days; the difference is left for requests still running.
LATEST_S = 1.1e6


def check_time(what: str, seconds: float, *, above_zero: bool = False) -> None:
    """Raise InvalidInput for a time that is not finite, is negative, or exceeds the largest simulated time."""
    if not (0 <= seconds <= LATEST_S) or (above_zero and seconds == 0):
        least = "above 0" if above_zero else "at least 0"
        raise InvalidInput(f"the {what} must be {least} and at most {LATEST_S:g} s, not {seconds}")
