"""Means of a steady part, by hand: a loop of two, and arrivals of one a second."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.simulator.load_means import steady_means, whole_run_means
from capacity.simulator.metrics import RequestRecord, RequestTable, summarize


def table(*spans: tuple[float, float, float, float, int]) -> RequestTable:
    """Arrival, first schedule, first token, finish (s), output tokens."""
    return RequestTable.from_records(
        [
            RequestRecord(
                index=index,
                arrival_s=arrival,
                first_scheduled_s=scheduled,
                first_token_s=first,
                finish_s=finish,
                prompt_tokens=10,
                output_tokens=outputs,
            )
            for index, (arrival, scheduled, first, finish, outputs) in enumerate(spans)
        ]
    )


WAVES = table(
    *((2.0 * wave, 2.0 * wave, 2.0 * wave + 0.5, 2.0 * wave + 2, 4) for wave in range(4) for _ in "ab")
)


def test_a_loops_rate_follows_from_those_in_flight_whatever_its_waves() -> None:
    """Two at a time, 2 s each: one a second, though six arrivals in the 4 s of three waves would be 1.5 or 1.25."""
    means = steady_means(WAVES, np.arange(2, 8), clocked=False)
    assert means is not None
    assert (means.in_flight, means.e2e_s, means.requests_per_s) == pytest.approx((2, 2, 1))
    assert (means.ttft_s, means.tpot_s, means.waiting_s) == pytest.approx((0.5, 0.5, 0))


def test_arrivals_by_the_clock_have_their_own_rate() -> None:
    """One a second, each stays 3 s: three in flight. Single tokens have no TPOT."""
    arrivals = table(*((float(at), at + 0.25, at + 1.0, at + 3.0, 1) for at in range(10)))
    means = steady_means(arrivals, np.arange(2, 9), clocked=True)
    assert means is not None
    assert (means.requests_per_s, means.in_flight, means.requests) == pytest.approx((1, 3, 7))
    assert means.tpot_s is None
    assert means.waiting_s == pytest.approx(0.25)
    assert means.to_dict()["mean_tpot_ms"] is None
    assert means.to_dict()["mean_e2el_ms"] == pytest.approx(3000)


def test_too_few_have_no_means() -> None:
    assert steady_means(WAVES, np.arange(1), clocked=False) is None
    assert steady_means(WAVES, np.arange(2), clocked=True) is None  # both at once: no rate


def test_a_whole_run_is_what_its_summary_says() -> None:
    """Eight requests in 8 s, two at a time."""
    means = whole_run_means(summarize(WAVES), WAVES)
    assert means is not None
    assert (means.requests_per_s, means.in_flight, means.ttft_s) == pytest.approx((1, 2, 0.5))
