"""Confidence intervals: coverage on queues whose answer is known, and Student's quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_models import FunctionStepTimes

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.capacity_probe import Capacity
from capacity.simulator.gap_counter import BATCH_BIN_BITS, GapCounter, bin_middles_ps
from capacity.simulator.intervals import (
    Interval,
    gap_intervals_ms,
    mean_of_runs,
    percentile_intervals,
    share_interval,
    t_quantile,
)
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.verdict import judge
from capacity.step import AffineStepTimes, StepShape
from capacity.workload import FixedLengths, LognormalLengths, SteadyArrivals, synthetic


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 19, 100])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_students_quantiles_are_those_of_scipy(degrees: int, confidence: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(confidence, degrees) == pytest.approx(
        stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-4
    )


def percentile_interval(values: np.ndarray, percent: float) -> Interval | None:
    return percentile_intervals(values, [percent])[0]


def gap_interval_ms(batches: np.ndarray, percent: float) -> Interval | None:
    return gap_intervals_ms(batches, [percent])[0]


def sojourn_times(rho: float, count: int, seed: int) -> np.ndarray:
    """M/M/1 with service rate 1, from its Lindley recursion, after a warm-up."""
    rng = np.random.default_rng(seed)
    warm = 5_000
    service = rng.exponential(1.0, count + warm)
    gaps = rng.exponential(1 / rho, count + warm)
    steps = np.concatenate(([0.0], service[:-1] - gaps[1:]))
    walk = np.cumsum(steps)
    waits = walk - np.minimum.accumulate(np.minimum(walk, 0.0))
    return (waits + service)[warm:]


@pytest.mark.parametrize(("count", "percent"), [(1000, 90), (2000, 95), (2000, 99), (5000, 99)])
def test_short_runs_leave_the_tail_open_rather_than_miss_it(count: int, percent: int) -> None:
    """A few hundred independent waits do not bound a tail; what they cannot is left open, marked "?" in tables."""
    truth = -math.log(1 - percent / 100) / 0.3
    found = [percentile_interval(sojourn_times(0.7, count, seed), percent) for seed in range(200)]
    held = [(f.low or 0.0) <= truth <= (f.high or math.inf) for f in found if f is not None]
    assert sum(held) >= 0.86 * 200
    if percent == 99:
        assert sum(f is not None and f.high is None for f in found) > 100


@pytest.mark.parametrize("percent", [50, 90, 99])
def test_intervals_of_a_dependent_sequence_hold_the_truth(percent: int) -> None:
    """Sojourn times of M/M/1 are exponential with rate 1 - rho: of 95 % intervals, at least 90 % must hold.

    At rho = 0.7 and 20,000 customers the times are correlated over tens of customers; an interval that took them
    for independent would hold the median in about half of the runs.
    """
    rho, runs = 0.7, 100
    truth = -math.log(1 - percent / 100) / (1 - rho)
    held = naive = 0
    for seed in range(runs):
        times = sojourn_times(rho, 20_000, seed)
        found = percentile_interval(times, percent)
        assert found is not None
        assert found.low is not None
        held += found.low <= truth <= (found.high or math.inf)
        half = 1.96 * math.sqrt(percent / 100 * (1 - percent / 100) / len(times))
        low, high = np.quantile(times, [percent / 100 - half, percent / 100 + half])
        naive += low <= truth <= high
    assert held >= 0.9 * runs
    assert naive < held


def test_too_little_data_gives_no_bound() -> None:
    assert percentile_interval(np.empty(0), 50) is None
    few = percentile_interval(np.arange(50.0), 50)
    assert few is not None
    assert (few.value, few.low, few.high) == (24.5, None, None)
    tail = percentile_interval(np.random.default_rng(1).random(150), 99)
    assert tail is not None
    assert tail.high is None, "150 values do not bound the 99th percentile from above"


@given(st.lists(st.floats(0, 1e6), min_size=100, max_size=300), st.sampled_from([50, 90, 95, 99]))
def test_an_interval_holds_its_own_value(values: list[float], percent: int) -> None:
    found = percentile_interval(np.array(values), percent)
    assert found is not None
    assert found.low is None or found.low <= found.value + 1e-9
    assert found.high is None or found.value <= found.high + 1e-9


def test_mean_of_runs_has_the_interval_of_student() -> None:
    found = mean_of_runs([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), rel=1e-5)
    assert mean_of_runs([5.0]).low is None
    with pytest.raises(InvalidInput):
        mean_of_runs([])


# shares


def held_shares(runs: int, count: int) -> int:
    """How many 95 % intervals hold the true share of M/M/1 customers within a limit."""
    rho, limit = 0.7, 5.0
    truth = 1 - math.exp(-(1 - rho) * limit)
    found = [share_interval(sojourn_times(rho, count, seed) <= limit) for seed in range(runs)]
    return sum(each is not None and each.low <= truth <= each.high for each in found)  # type: ignore[operator]


def test_intervals_of_attainment_hold_the_truth() -> None:
    assert held_shares(100, 10_000) >= 90


def test_attainment_of_few_or_of_all() -> None:
    assert share_interval(np.empty(0)) is None
    few = share_interval(np.array([True] * 50))
    assert few is not None
    assert (few.value, few.low, few.high) == (1.0, None, None)
    every = share_interval(np.ones(1000, dtype=bool))
    assert every is not None
    assert every.low == pytest.approx(1 - 3 / 1000, abs=2e-4), "the rule of three"
    assert every.high == 1.0
    none = share_interval(np.zeros(1000, dtype=bool))
    assert none is not None
    assert none.low == 0.0
    assert none.high == pytest.approx(3 / 1000, abs=2e-4)


# gaps


def test_gap_intervals_need_enough_and_hold_their_value() -> None:
    counter = GapCounter()
    assert gap_interval_ms(counter.batches().histograms(), 50) is None
    for _ in range(60):
        counter.add(10**10)
    few = gap_interval_ms(counter.batches().histograms(), 50)
    assert few is not None
    assert few.value == pytest.approx(10.0, rel=0.004)
    assert (few.low, few.high) == (None, None)
    rng = np.random.default_rng(1)
    for gap in rng.exponential(1e10, 20_000).astype(np.int64).tolist():
        counter.add(gap)
    for percent in (50, 90, 99):
        found = gap_interval_ms(counter.batches().histograms(), percent)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.value <= found.high
        assert found.value == pytest.approx(-10 * math.log(1 - percent / 100), rel=0.05)


# whole runs: what a simulation says of itself, warm-up cut and all


def mm1(seed: int, count: int, rho: float = 0.7) -> SimulationResult:
    """M/M/1 in the simulator: one request at a time, one token, an exponential step of mean 1 s."""
    rng = np.random.default_rng(seed + 10_000)

    def step_s(shape: StepShape) -> float:
        return float(rng.exponential(1.0)) if shape.num_tokens else 0.0

    workload = synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(rho),
        prompt=FixedLengths(1),
        output=FixedLengths(1),
        seed=seed,
    )
    limits = SchedulerLimits(max_num_seqs=1)
    times = FunctionStepTimes(step_s)
    return simulate(workload, EngineSetup(step_times=times, num_blocks=100, policy="vllm-v1", limits=limits))


def held_by_mm1(runs: int, count: int, metrics: tuple[str, ...] = ("ttft", "e2el")) -> dict[str, float]:
    """The share of runs whose interval holds the truth: sojourn times are exponential with rate 1 - rho."""
    rho = 0.7
    held: dict[str, float] = {}
    workload = synthetic(
        num_requests=count, arrivals=SteadyArrivals(rho), prompt=FixedLengths(1), output=FixedLengths(1)
    )
    known = Capacity(requests_per_s=1.0, error_fraction=0.0)
    for seed in range(runs):
        verdict = judge(mm1(seed, count, rho).records, workload, capacity=known)
        for metric in metrics:
            for percent in (50, 90, 95):
                truth_ms = -1e3 * math.log(1 - percent / 100) / (1 - rho)
                found = verdict.intervals_ms[f"p{percent}_{metric}_ms"]
                assert found is not None, verdict.reason
                inside = (found.low or 0.0) <= truth_ms <= (found.high or math.inf)
                key = f"p{percent}_{metric}"
                held[key] = held.get(key, 0.0) + inside / runs
    return held


def test_a_simulated_queue_knows_its_latencies() -> None:
    """20 runs of 2,000 requests. Of intervals that hold with 95 %, fewer than 15 in 20 hold once in 3,000 times."""
    assert min(held_by_mm1(20, 2000).values()) >= 15 / 20


@pytest.mark.slow
def test_a_simulated_queue_knows_its_latencies_in_the_long() -> None:
    """90 % is what a queue at a load of 0.7 allows in 5,000 requests; 2 % are chance in 200 runs."""
    assert min(held_by_mm1(200, 5000).values()) >= 0.88


def engine_run(seed: int, count: int) -> SimulationResult:
    workload = synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(4.0),
        prompt=LognormalLengths(200, 1.0, highest_tokens=2000),
        output=LognormalLengths(40, 0.7, highest_tokens=400),
        seed=seed,
    )
    limits = SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=512)
    steps = AffineStepTimes(0.01, 1e-4, per_context_token_s=2e-7)
    return simulate(workload, EngineSetup(step_times=steps, num_blocks=4000, limits=limits))


def held_by_gaps(runs: int, count: int) -> dict[int, float]:
    """The share of runs whose ITL intervals hold the percentile of all runs' gaps together."""
    results = [engine_run(seed, count) for seed in range(runs)]
    assert all(run.gaps is not None for run in results)
    histograms = [run.gaps.batches().histograms() for run in results]  # type: ignore[union-attr]
    together = np.concatenate(histograms).sum(axis=0)
    reached = np.cumsum(together) / together.sum()
    middles_ms = bin_middles_ps(np.arange(len(together)), BATCH_BIN_BITS) / 1e9
    held = {}
    for percent in (50, 90, 99):
        truth_ms = float(middles_ms[int(np.searchsorted(reached, percent / 100))])
        found = [gap_interval_ms(each, percent) for each in histograms]
        held[percent] = sum(
            f is not None and (f.low or 0.0) * 0.996 <= truth_ms <= (f.high or math.inf) * 1.004
            for f in found
        ) / len(found)
    return held


def test_intervals_of_gaps_hold_the_truth() -> None:
    assert min(held_by_gaps(24, 500).values()) >= 19 / 24


@pytest.mark.slow
def test_intervals_of_gaps_hold_the_truth_in_the_long() -> None:
    assert min(held_by_gaps(200, 1500).values()) >= 0.9


@given(st.integers(1, 400), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_intervals_of_several_percentiles_are_those_of_each(count: int, digits: int, seed: int) -> None:
    values = np.random.default_rng(seed).exponential(size=count).round(digits)
    together = percentile_intervals(values, (50, 90, 99))
    alone = [percentile_interval(values, percent) for percent in (50, 90, 99)]
    lows = [each.low for each in together if each and each.low is not None]
    highs = [each.high for each in together if each and each.high is not None]
    assert lows == sorted(lows)
    assert highs == sorted(highs)
    assert set(lows) <= {each.low for each in alone if each}
    assert set(highs) <= {each.high for each in alone if each}
    assert [(i.low is None, i.high is None) for i in together if i] == [
        (i.low is None, i.high is None) for i in alone if i
    ]


def test_a_percentiles_ends_do_not_lie_below_those_of_a_lower_one() -> None:
    """A drifting load: the batches of one percentile disagree where those of the next happen to agree."""
    rng = np.random.default_rng(5)
    drift = np.repeat(rng.gamma(1.0, 1.0, 20), 60)
    found = percentile_intervals(rng.exponential(1 + drift), (50, 75, 90, 95, 99))
    for ends in ([each.low for each in found if each], [each.high for each in found if each]):
        known = [end for end in ends if end is not None]
        assert known == sorted(known)


@given(st.integers(1, 400), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_percentiles_are_those_of_numpy(count: int, digits: int, seed: int) -> None:
    values = np.random.default_rng(seed).exponential(size=count).round(digits)
    together = percentile_intervals(values, (50, 90, 99))
    assert [interval.value for interval in together if interval] == np.percentile(
        values, (50, 90, 99)
    ).tolist()
