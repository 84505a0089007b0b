"""Timing arithmetic, and clocks that do not count waiting."""

import math
import random
import statistics
import time

import pytest
from capacity_validate.timing import (
    SAMPLES_KEPT,
    CpuStopwatch,
    CudaStopwatch,
    RunClock,
    ThreadClock,
    autocorrelation,
    is_precise,
    rotations,
    summarise_samples,
)
from fake_cuda import FakeCuda
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
def test_rotated_inputs_exceed_five_caches(bytes_per_set: int, cache_bytes: int) -> None:
    count = rotations(bytes_per_set, cache_bytes)
    assert count * bytes_per_set >= 5 * cache_bytes
    assert (count - 1) * bytes_per_set < 5 * cache_bytes


def test_rotated_inputs_leave_a_random_replacement_cache_before_their_next_use() -> None:
    """Batch 1, 512 tokens of a cache of 2 MiB on a B200, whose L2 of 126 MiB holds 32 of them whole."""
    lines, cached = rotations(2 * 2**20, 126 * 2**20), 63  # in units of one input set
    generator, cache, hits, uses = random.Random(0), [-1] * cached, 0, 0
    for turn in range(40):
        for line in range(lines):
            if turn >= 10:
                uses, hits = uses + 1, hits + (line in cache)
            if line not in cache:
                cache[generator.randrange(cached)] = line
    assert hits / uses < 0.02


def test_a_sustained_sample_lasts_as_long_as_asked_and_shows_a_clock_that_falls() -> None:
    """1.5 ms calls, 15 % slower once the card has worked for a second; their scatter is 1 %."""
    fake, generator = FakeCuda(launch_s=0.0), random.Random(0)

    def call() -> object:
        slow = 1.15 if fake.now_s > 1.0 else 1.0
        return fake.kernel(1.5e-3 * slow * math.exp(generator.gauss(0, 0.01)))()

    watch = CudaStopwatch(fake.torch, "cuda:0")
    taken = watch.sample([call], budget_s=5.0, at_least=5, at_most=10**6, capturable=False, sustained=True)
    assert 5.0 <= sum(taken.seconds) < 5.1
    last = taken.seconds[len(taken.seconds) // 2 :]
    assert statistics.median(last) == pytest.approx(1.15 * 1.5e-3, rel=0.01)
    short = watch.sample([call], budget_s=5.0, at_least=5, at_most=10**6, capturable=False)
    assert sum(short.seconds) < 1.0  # until the median is known


def test_a_sustained_sample_lasts_as_long_as_asked_on_a_cpu() -> None:
    start = time.perf_counter()
    CpuStopwatch().sample([lambda: None], budget_s=0.1, at_least=5, at_most=10**9, sustained=True)
    assert time.perf_counter() - start >= 0.1


def test_samples_that_follow_a_slow_change_need_more_than_independent_ones() -> None:
    generator = random.Random(0)
    independent = [1 + generator.gauss(0, 0.005) for _ in range(64)]
    assert is_precise(independent)
    assert not is_precise(sorted(independent))
    assert autocorrelation(sorted(independent)) > 0.9
    assert autocorrelation([1.0] * 40) == 0.0


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
    assert time.perf_counter() - start < 10.0
    assert clock.now_s() == pytest.approx(100.0, abs=0.1)
    wall = RunClock()
    wall.wait_until(0.02)
    assert wall.now_s() >= 0.02
