"""Timing arithmetic, and clocks that do not count waiting."""

import time

import pytest
from capacity_validate.timing import (
    SAMPLES_KEPT,
    CpuStopwatch,
    RunClock,
    ThreadClock,
    rotations,
    summarise_samples,
)
from hypothesis import given
from hypothesis import strategies as st


def test_a_timing_is_a_median_with_its_spread_outliers_and_drift() -> None:
    timing = summarise_samples([1.0, 1.0, 1.0, 1.0, 5.0, 1.2, 1.2, 1.2, 1.2], "thread time")
    assert timing.seconds == 1.2
    assert timing.outliers == 1
    assert timing.drift == pytest.approx(0.2)


def test_raw_samples_are_kept_and_thinned_where_there_are_many() -> None:
    timing = summarise_samples([1.23456e-3] * 5, "graph", calls=32, held_down=2)
    assert timing.samples == (1.235e-3,) * 5
    assert (timing.calls_per_sample, timing.held_down) == (32, 2)
    many = summarise_samples([float(i) for i in range(1, 1001)], "events")
    assert 100 <= len(many.samples) <= SAMPLES_KEPT
    assert (many.samples[0], many.repetitions) == (1.0, 1000)


@given(st.integers(1, 2**34), st.integers(1, 2**28))
def test_rotated_inputs_exceed_the_cache_twice_or_are_many(bytes_per_set: int, cache_bytes: int) -> None:
    count = rotations(bytes_per_set, cache_bytes)
    assert count * bytes_per_set >= 2 * cache_bytes or count == 32


def test_thread_time_does_not_count_sleep_and_wall_time_does() -> None:
    taken = CpuStopwatch().sample([lambda: time.sleep(0.02)], budget_s=0, at_least=3, at_most=3)
    assert taken.how == "thread time"
    assert max(taken.seconds) < 0.01
    taken = CpuStopwatch(threads=2).sample([lambda: time.sleep(0.02)], budget_s=0, at_least=3, at_most=3)
    assert taken.how == "wall time"
    assert min(taken.seconds) >= 0.02
    assert all(taken.began_s < instant < taken.ended_s for instant in taken.instants)


def test_a_thread_clock_leaps_over_waiting() -> None:
    clock = ThreadClock()
    start = time.perf_counter()
    clock.wait_until(100.0)
    assert time.perf_counter() - start < 1.0
    assert clock.now_s() == pytest.approx(100.0, abs=0.1)
    wall = RunClock()
    wall.wait_until(0.02)
    assert wall.now_s() >= 0.02
