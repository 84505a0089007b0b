"""Windows of a workload: the busiest by offered work, and which of the others a service level is judged in."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.base.errors import InvalidInput
from capacity.workload import Workload
from capacity.workload.windows import (
    OUTPUT_WEIGHT,
    clock_text,
    evaluated_windows,
    find_windows,
    parse_window_s,
    take_window,
    window_rows,
)


def steady(output_tokens: np.ndarray, gap_s: float = 1.0, **columns: object) -> Workload:
    count = len(output_tokens)
    return Workload(
        arrival_s=np.arange(count) * gap_s,
        prompt_tokens=np.full(count, 100),
        output_tokens=output_tokens,
        **columns,
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("1h", 3600), ("90s", 90), ("0.5h", 1800), ("trace", None)]
)
def test_parse_window_s_returns_seconds(text: str, seconds: float | None) -> None:
    assert parse_window_s(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "m", "0m", "-1h", "1.2.3h", "day", "5 parsecs"])
def test_parse_window_s_of_no_duration_is_rejected(text: str) -> None:
    with pytest.raises(InvalidInput, match="15m, 1h or 900s, or trace"):
        parse_window_s(text)


def test_windows_of_equal_rates_are_busiest_where_outputs_are_long() -> None:
    outputs = np.full(600, 10)
    outputs[250:300] = 500
    windows = find_windows([steady(outputs)], 50.0)
    busiest = windows[0]
    assert (busiest.start_s, busiest.end_s, busiest.requests) == (250.0, 300.0, 50)
    assert busiest.work == pytest.approx(50 * (100 + 500 * OUTPUT_WEIGHT))
    assert sum(window.requests for window in windows) == 600
    assert evaluated_windows(windows) == (busiest,)


def test_windows_of_draws_average_their_requests() -> None:
    draws = [steady(np.full(400, 10)), steady(np.full(400, 10))]
    windows = find_windows(draws, 100.0)
    assert [window.requests for window in windows] == [100] * 4
    assert evaluated_windows(windows) == windows


def test_windows_of_short_traffic_and_closed_loops_are_none() -> None:
    outputs = np.full(100, 10)
    assert find_windows([steady(outputs)], 99.0) == ()
    assert find_windows([steady(outputs)], None) == ()
    assert find_windows([steady(outputs).in_closed_loop(4)], 10.0) == ()
    waiting = np.concatenate(([-1], np.arange(99)))  # one session: only its first request comes by the clock
    assert find_windows([steady(outputs, after_request=waiting, think_s=np.ones(100))], 10.0) == ()


def test_take_window_keeps_the_rate_of_the_whole() -> None:
    outputs = np.full(600, 10)
    outputs[250:300] = 500
    whole = steady(outputs)
    busiest = find_windows([whole], 50.0)[0]
    part = take_window(whole, busiest)
    assert window_rows(whole, busiest) == slice(250, 300)
    assert set(part.output_tokens.tolist()) == {500}
    assert part.offered_per_s == pytest.approx(whole.offered_per_s)


def test_clock_text_counts_days_after_the_first() -> None:
    assert clock_text(40_510.4) == "11:15:10"
    assert clock_text(86_400 + 61) == "day 2 00:01:01"
