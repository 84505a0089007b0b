"""Workloads: columns that are checked, processes against their closed forms, prefixes against their tokens."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.workload import (
    ArrivalProcess,
    EmpiricalLengths,
    FixedLengths,
    GammaLengths,
    Lengths,
    LognormalLengths,
    PeriodicArrivals,
    PromptContent,
    RampArrivals,
    RampUpArrivals,
    RandomOnOffArrivals,
    SharedPrefixes,
    SteadyArrivals,
    ThinkTime,
    UniformLengths,
    Workload,
    conversations,
    diurnal,
    on_off,
    random_requests,
    random_stream,
    rank_correlated,
    synthetic,
)

MANY = 100_000


def times_s(process: ArrivalProcess, count: int, seed: int = 0) -> np.ndarray:
    return process.times_s(count, random_stream(seed, "arrivals"))


def cv(values: np.ndarray) -> float:
    return float(values.std() / values.mean())


# arrivals


@given(
    count=st.integers(1, 300),
    rate=st.floats(1e-3, 1e4),
    burstiness=st.floats(0.05, 50),
    seed=st.integers(0, 2**64),
)
def test_the_last_request_is_sent_at_exactly_count_over_rate(
    count: int, rate: float, burstiness: float, seed: int
) -> None:
    arrival_s = times_s(SteadyArrivals(rate, burstiness), count, seed)
    assert arrival_s[-1] == count / rate
    assert (np.diff(arrival_s) >= 0).all()
    assert arrival_s[0] >= 0


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_burstiness_says(burstiness: float) -> None:
    gaps_s = np.diff(times_s(SteadyArrivals(2.0, burstiness), MANY))
    # the cv of n gaps has a standard error below 1/sqrt(n) * (1 + cv²); five of them
    assert cv(gaps_s) == pytest.approx(
        1 / math.sqrt(burstiness), abs=5 * (1 + 1 / burstiness) / math.sqrt(MANY)
    )


def test_extremes_of_burstiness_and_rate() -> None:
    assert times_s(SteadyArrivals(4.0, math.inf), 5).tolist() == [0.25, 0.5, 0.75, 1.0, 1.25]
    assert times_s(SteadyArrivals(math.inf), 3).tolist() == [0, 0, 0]
    assert times_s(SteadyArrivals(math.inf, 7.0), 3).tolist() == [0, 0, 0]
    assert times_s(SteadyArrivals(1.0, 1e-6), 1).tolist() in ([1.0], [0.0])  # a gap of 0 cannot be rescaled


def test_poisson_gaps_are_exponential() -> None:
    gaps_s = np.diff(times_s(SteadyArrivals(10.0), MANY)) * 10
    for quantile in (0.1, 0.5, 0.9, 0.99):
        expected = -math.log1p(-quantile)
        # standard error of a sample quantile: sqrt(q(1-q)/n)/density, and the density is 1-q
        error = math.sqrt(quantile * (1 - quantile) / MANY) / (1 - quantile)
        assert np.quantile(gaps_s, quantile) == pytest.approx(expected, abs=5 * error)


@given(start=st.floats(0, 50), end=st.floats(0.01, 50), ramp_s=st.floats(0.1, 1e4), count=st.integers(1, 200))
def test_a_ramp_inverts_its_integral(start: float, end: float, ramp_s: float, count: int) -> None:
    arrival_s = times_s(RampArrivals(start, end, ramp_s, burstiness=math.inf), count)
    inside_s = np.minimum(arrival_s, ramp_s)
    expected = start * inside_s + (end - start) * inside_s**2 / (2 * ramp_s) + end * (arrival_s - inside_s)
    np.testing.assert_allclose(expected, np.arange(1, count + 1), rtol=1e-6)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_ramp_up_by_request_is_vllms(strategy: str) -> None:
    gaps_s = np.diff(times_s(RampUpArrivals(2.0, 8.0, strategy, math.inf), 5), prepend=0)  # type: ignore[arg-type]
    progress = np.arange(5) / 4
    rates = 2 + 6 * progress if strategy == "linear" else 2 * 4**progress
    np.testing.assert_allclose(gaps_s, 1 / rates)


def test_on_off_is_silent_when_off() -> None:
    process = on_off(10.0, on_s=2.0, off_s=3.0)
    arrival_s = times_s(process, 10_000)
    assert ((arrival_s % 5.0 <= 2.0 + 1e-9) | (arrival_s % 5.0 > 5.0 - 1e-9)).all()
    assert process.mean_rate_per_s == 4.0
    assert len(arrival_s) / arrival_s[-1] == pytest.approx(4.0, rel=5 / math.sqrt(10_000))
    metronome_s = times_s(replace(process, burstiness=math.inf), 40)
    np.testing.assert_allclose(metronome_s[:20], np.arange(1, 21) / 10)
    np.testing.assert_allclose(metronome_s[20:], 5 + np.arange(1, 21) / 10)


def test_a_day_peaks_when_it_should_and_keeps_its_mean() -> None:
    process = diurnal(2.0, peak_to_mean=1.8, period_s=3600, peak_at_s=900)
    assert process.mean_rate_per_s == pytest.approx(2.0)
    arrival_s = times_s(process, 200_000)
    phase = np.exp(2j * np.pi * (arrival_s[arrival_s < 25 * 3600] - 900) / 3600).mean()
    # the first Fourier moment of density (1 + a cos)/T is a/2, here 0.4; standard error 1/sqrt(2n)
    assert phase.real == pytest.approx(0.4, abs=5 / math.sqrt(2 * 180_000))
    assert phase.imag == pytest.approx(0.0, abs=5 / math.sqrt(2 * 180_000))
    flat = times_s(diurnal(2.0, peak_to_mean=1.0, period_s=3600, burstiness=math.inf), 100)
    np.testing.assert_allclose(flat, np.arange(1, 101) / 2)


def test_random_bursts_have_the_moments_of_an_interrupted_poisson_process() -> None:
    on_rate, on_s, off_s = 5.0, 2.0, 8.0
    arrival_s = times_s(RandomOnOffArrivals(on_rate, on_s, off_s), 400_000, seed=3)
    gaps_s = np.diff(arrival_s)
    assert 1 / gaps_s.mean() == pytest.approx(on_rate * on_s / (on_s + off_s), rel=0.03)
    assert times_s(RandomOnOffArrivals(100.0, 1e6, 1e9), 10)[-1] < 1.0  # a burst comes first
    squared_cv = 1 + 2 * on_rate * on_s * (off_s / (on_s + off_s)) ** 2
    assert cv(gaps_s) ** 2 == pytest.approx(
        squared_cv, rel=0.05
    )  # 40,000 bursts: heavy-tailed sampling error


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: SteadyArrivals(0.0), "above 0 requests/s, not 0.0"),
        (lambda: SteadyArrivals(-1.0), "above 0 requests/s, not -1.0"),
        (lambda: SteadyArrivals(math.nan), "not nan"),
        (lambda: SteadyArrivals(1.0, 0.0), "burstiness must be above 0"),
        (lambda: SteadyArrivals(1.0, math.nan), "burstiness must be above 0"),
        (lambda: RampArrivals(0.0, 0.0, 1.0), "ramp end rate"),
        (lambda: RampArrivals(1.0, math.inf, 1.0), "must be finite"),
        (lambda: RampUpArrivals(0.0, 1.0), "ramp-up start rate"),
        (lambda: on_off(1.0, on_s=0.0, off_s=1.0), "finite time above 0 s"),
        (lambda: PeriodicArrivals((1.0,), (0.0,)), "at some time of its period"),
        (lambda: PeriodicArrivals((1.0, 2.0), (1.0,)), "a rate for each duration"),
        (lambda: diurnal(1.0, peak_to_mean=2.5), "from 1 (flat) to 2"),
        (lambda: RandomOnOffArrivals(1.0, math.inf, 1.0), "finite time"),
        (lambda: FixedLengths(0), "is below 1"),
        (lambda: UniformLengths(100, 1.0), "below 1, not 1.0"),
        (lambda: UniformLengths(100, -0.1), "at least 0"),
        (lambda: LognormalLengths(math.nan, 1.0), "mean length"),
        (lambda: LognormalLengths(100.0, -1.0), "coefficient of variation"),
        (lambda: LognormalLengths.from_percentiles(p50_tokens=9, p99_tokens=8), "must rise"),
        (lambda: GammaLengths(100.0, 1.0, lowest_tokens=9, highest_tokens=8), "not from 9 to 8"),
        (lambda: EmpiricalLengths(np.asarray([], dtype=int)), "at least one is needed"),
        (lambda: SharedPrefixes(10, 0), "shared prefixes must be at least 1"),
        (lambda: ThinkTime(-1.0), "think time"),
        (lambda: random_stream(-1, "arrivals"), "seed must be"),
        (lambda: random_stream(True, "arrivals"), "seed must be"),
        (lambda: random_requests(num_requests=0, input_len=1, output_len=1), "number of requests"),
        (lambda: random_requests(num_requests=1, input_len=0, output_len=1), "is below 1"),
        (lambda: random_requests(num_requests=1, input_len=1, output_len=1, prefix_len=-1), "prefix length"),
        (
            lambda: random_requests(num_requests=1, input_len=1, output_len=1, concurrency=0),
            "concurrency must be",
        ),
        (lambda: random_requests(num_requests=10**9, input_len=1, output_len=1), "at most 20,000,000"),
    ],
)
def test_impossible_parameters_are_refused_in_one_line(build: object, part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        build()  # type: ignore[operator]
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


# lengths


@pytest.mark.parametrize(
    "lengths",
    [
        LognormalLengths(1000.0, 1.2),
        GammaLengths(1000.0, 0.7),
        GammaLengths(1000.0, 0.0),
        UniformLengths(1000, 0.3),
    ],
)
def test_lengths_have_the_mean_and_variation_asked_for(lengths: Lengths) -> None:
    drawn = lengths.draw(MANY, random_stream(1, "lengths"))
    expected_cv = getattr(lengths, "cv", 0.3 / math.sqrt(3))
    assert drawn.mean() == pytest.approx(lengths.mean_tokens, rel=5 * expected_cv / math.sqrt(MANY) + 1e-9)
    # a lognormal of cv 1.2 has a kurtosis of 60: its variance estimate is that much noisier
    assert cv(drawn) == pytest.approx(expected_cv, rel=0.05, abs=1e-9)
    assert drawn.min() >= 1


def test_uniform_has_vllms_ends() -> None:
    lengths = UniformLengths(1000, 0.1234)
    drawn = lengths.draw(MANY, random_stream(0, "lengths"))
    assert (drawn.min(), drawn.max()) == (math.floor(1000 * (1 - 0.1234)), math.ceil(1000 * (1 + 0.1234)))
    assert UniformLengths(1, 0.9).lowest_tokens == 1


def test_a_lognormal_goes_through_its_percentiles() -> None:
    lengths = LognormalLengths.from_percentiles(p50_tokens=1020, p99_tokens=4142)
    drawn = lengths.draw(MANY, random_stream(0, "lengths"))
    np.testing.assert_allclose(np.percentile(drawn, [50, 99]), [1020, 4142], rtol=0.03)


def test_lengths_are_clipped_to_their_bounds() -> None:
    drawn = LognormalLengths(100.0, 2.0, lowest_tokens=50, highest_tokens=200).draw(
        10_000, random_stream(0, "lengths")
    )
    assert (drawn.min(), drawn.max()) == (50, 200)


def test_empirical_lengths_are_observed_ones() -> None:
    drawn = EmpiricalLengths(np.asarray([7, 7, 7, 900])).draw(10_000, random_stream(0, "lengths"))
    assert set(drawn.tolist()) == {7, 900}
    assert (drawn == 7).mean() == pytest.approx(0.75, abs=5 * math.sqrt(0.75 * 0.25 / 10_000))


@pytest.mark.parametrize("rho", [-1.0, -0.6, 0.0, 0.35, 0.9, 1.0])
def test_rank_correlation_is_what_was_asked_and_marginals_stay(rho: float) -> None:
    rng = random_stream(5, "lengths")
    first, second = LognormalLengths(5000.0, 1.0).draw(MANY, rng), GammaLengths(3000.0, 2.0).draw(MANY, rng)
    one, two = rank_correlated(first, second, rank_correlation=rho, rng=random_stream(5, "correlation"))
    assert (np.sort(one) == np.sort(first)).all()
    assert (np.sort(two) == np.sort(second)).all()
    ranks = [np.argsort(np.argsort(column)) for column in (one, two)]
    # Spearman's standard error is at most 1/sqrt(n); ties of whole tokens move it by less
    assert np.corrcoef(*ranks)[0, 1] == pytest.approx(rho, abs=5 / math.sqrt(MANY) + 2e-3)


def test_rank_correlation_beyond_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="from -1 to 1"):
        rank_correlated(
            np.ones(2, int), np.ones(2, int), rank_correlation=1.1, rng=random_stream(0, "correlation")
        )


# the columns


def small(**changes: object) -> Workload:
    columns: dict[str, object] = {
        "arrival_s": [0.0, 1.0, 1.0],
        "prompt_tokens": [10, 20, 30],
        "output_tokens": [1, 2, 3],
    }
    return Workload(**{**columns, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"arrival_s": []}, "has no requests"),
        ({"arrival_s": [0.0, math.nan, 1.0]}, "arrival_s of request 1 is not finite: nan"),
        ({"arrival_s": [0.0, 1.0, math.inf]}, "arrival_s of request 2 is not finite: inf"),
        ({"arrival_s": [-1.0, 0.0, 1.0]}, "arrival_s of request 0 is below 0: -1.0"),
        ({"arrival_s": [0.0, 2.0, 1.0]}, "arrival_s of request 2 is before its predecessor's"),
        ({"arrival_s": [0.0, 1.0, 1e300]}, "is above 1e+09"),
        ({"arrival_s": ["a", "b", "c"]}, "arrival_s must be numbers"),
        ({"arrival_s": [[0.0], [1.0], [2.0]]}, "2-dimensional"),
        ({"prompt_tokens": [10, 0, 30]}, "prompt_tokens of request 1 is below 1: 0"),
        ({"prompt_tokens": [10, 20]}, "prompt_tokens has 2 values for 3 requests"),
        ({"output_tokens": [1.0, 2.5, 3.0]}, "output_tokens of request 1 is not a whole number: 2.5"),
        ({"output_tokens": [1, 2, 2**70]}, "output_tokens must be whole numbers"),
        ({"output_tokens": [1, 2, 2**40]}, "is above 16777216"),
        ({"output_tokens": [True, True, True]}, "output_tokens must be whole numbers"),
        ({"output_tokens": [1, [2], 3]}, "flat sequence"),
        (
            {"after_request": [-1, 1, 0], "think_s": [0, 0, 0]},
            "after_request of request 1 must be an earlier one",
        ),
        ({"after_request": [-1, 0, 0]}, "belong together"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"concurrency": 1.5}, "concurrency must be"),
        ({"content": PromptContent.from_segments([[(0, 10)]])}, "content has 1 prompts for 3"),
        (
            {"content": PromptContent.from_segments([[(0, 10)], [(1, 21)], [(2, 30)]])},
            "content of request 1 has 21",
        ),
    ],
)
def test_columns_are_checked(changes: dict[str, object], part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        small(**changes)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_are_copies_that_cannot_be_written() -> None:
    arrival_s = np.asarray([0.0, 1.0, 2.0])
    workload = small(arrival_s=arrival_s)
    arrival_s[0] = 5.0
    assert workload.arrival_s[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        workload.prompt_tokens[0] = 5


def test_sorting_is_stable_remarks_and_carries_links() -> None:
    workload = Workload.sorted(
        arrival_s=[5.0, 0.0, 5.0, 0.0],
        prompt_tokens=[1, 2, 3, 4],
        output_tokens=[1, 1, 1, 1],
        after_request=[1, -1, 3, 1],
        think_s=[0.5, 0, 0.7, 0.1],
        content=PromptContent.from_segments([[(0, 1)], [(1, 2)], [(2, 3)], [(3, 4)]]),
    )
    assert workload.prompt_tokens.tolist() == [2, 4, 1, 3]
    assert workload.after_request is not None
    assert workload.think_s is not None
    assert workload.after_request.tolist() == [-1, 0, 0, 1]
    assert workload.think_s.tolist() == [0, 0.1, 0.5, 0.7]
    assert workload.notices == ("arrivals were not in order: sorted, 4 of 4 requests moved",)
    many = Workload.sorted(
        arrival_s=[1.0, 0.0] * 500, prompt_tokens=np.arange(1000) + 1, output_tokens=[1] * 1000
    )
    assert (np.diff(many.prompt_tokens) == 2).sum() == 998  # equal arrivals kept their order
    with pytest.raises(InvalidInput, match="names request 7 of 1"):
        Workload.sorted(arrival_s=[0], prompt_tokens=[1], output_tokens=[1], after_request=[7], think_s=[0])


def test_facts() -> None:
    workload = small()
    assert (len(workload), workload.span_s, workload.request_rate_per_s) == (3, 1.0, 2.0)
    assert workload.arrival_cv == 1.0  # gaps 1 and 0
    at_once = workload.all_at_once()
    assert at_once.request_rate_per_s == math.inf
    assert at_once.arrival_cv is None
    assert not workload.is_closed_loop
    assert workload.in_closed_loop(2).is_closed_loop


def test_retiming() -> None:
    workload = random_requests(num_requests=500, input_len=10, output_len=5, request_rate_per_s=3.0)
    assert (workload.at_rate_factor(4.0).arrival_s * 4 == workload.arrival_s).all()
    assert workload.at_rate(17.0).request_rate_per_s == pytest.approx(17.0, rel=1e-12)
    assert workload.at_rate(17.0).arrival_cv == pytest.approx(workload.arrival_cv, rel=1e-9)
    assert (workload.time_scaled(0.5).arrival_s == workload.arrival_s / 2).all()
    assert workload.from_zero().arrival_s[0] == 0
    with pytest.raises(InvalidInput, match="all requests of random arrive at once"):
        workload.all_at_once().at_rate(1.0)
    for factor in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidInput, match="finite and above 0"):
            workload.at_rate_factor(factor)
        with pytest.raises(InvalidInput, match="finite and above 0"):
            workload.at_rate(factor)
        with pytest.raises(InvalidInput, match="finite and above 0"):
            workload.time_scaled(factor)


def test_scaling_the_rate_leaves_people_thinking_as_long() -> None:
    workload = small(after_request=[-1, 0, 1], think_s=[0, 3, 4])
    assert workload.at_rate_factor(2.0).think_s.tolist() == [0, 3, 4]  # type: ignore[union-attr]
    assert workload.time_scaled(2.0).think_s.tolist() == [0, 6, 8]  # type: ignore[union-attr]
    assert workload.in_open_loop().after_request is None


def test_parts() -> None:
    workload = small()
    assert len(workload.head(2)) == 2
    assert workload.head(9) is workload
    assert workload.between(0.5, 1.5).prompt_tokens.tolist() == [20, 30]
    with pytest.raises(InvalidInput, match="at least 1, not 0"):
        workload.head(0)
    with pytest.raises(InvalidInput, match="arrivals run from 0 s to 1 s"):
        workload.between(5.0, 6.0)


def test_a_request_left_out_passes_its_trigger_on() -> None:
    workload = Workload(
        arrival_s=np.zeros(5),
        prompt_tokens=np.asarray([1, 100, 1, 100, 1]),
        output_tokens=np.ones(5),
        after_request=np.asarray([-1, 0, 1, -1, 3]),
        think_s=np.ones(5),
    )
    kept = workload.fit_to(50)
    assert kept.after_request.tolist() == [-1, 0, -1]  # type: ignore[union-attr]
    assert kept.notices == ("2 of 5 requests dropped: longer than 50 tokens",)


def test_fit_to_a_context() -> None:
    content = PromptContent.from_segments([[(0, 4), (1, 6)], [(0, 20)], [(0, 4), (2, 26)]])
    workload = small(output_tokens=[1, 2, 30], content=content)
    clipped = workload.fit_to(22, how="clip")
    assert clipped.prompt_tokens.tolist() == [10, 20, 21]
    assert clipped.output_tokens.tolist() == [1, 2, 1]
    assert clipped.content is not None
    assert clipped.content.segments_of(2) == [(0, 4), (2, 17)]
    assert clipped.notices == ("1 of 3 requests clipped to 22 tokens",)
    assert workload.fit_to(60) is workload
    with pytest.raises(InvalidInput, match="the shortest has 11"):
        workload.fit_to(5)
    with pytest.raises(InvalidInput, match="at least 2 tokens"):
        workload.fit_to(1)


def test_ticks_are_spread_evenly_and_in_order() -> None:
    workload = Workload(arrival_s=[0, 0, 0, 3, 6, 6], prompt_tokens=[1, 2, 3, 4, 5, 6], output_tokens=[1] * 6)  # type: ignore[arg-type]
    spread = workload.spread_within_ticks(3.0)
    assert spread.arrival_s.tolist() == [0, 1, 2, 3, 6, 7.5]
    assert spread.prompt_tokens.tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InvalidInput, match="the tick must be"):
        workload.spread_within_ticks(0.0)


# determinism


def test_components_draw_from_streams_of_their_own() -> None:
    one = synthetic(
        num_requests=50, arrivals=SteadyArrivals(1.0), prompt=FixedLengths(5), output=FixedLengths(5), seed=3
    )
    two = synthetic(
        num_requests=50,
        arrivals=SteadyArrivals(1.0),
        prompt=GammaLengths(50.0, 1.0),
        output=GammaLengths(50.0, 1.0),
        rank_correlation=0.5,
        shared_prefixes=SharedPrefixes(100, 4),
        seed=3,
    )
    assert (one.arrival_s == two.arrival_s).all()
    faster = synthetic(
        num_requests=50,
        arrivals=SteadyArrivals(9.0, 0.3),
        prompt=GammaLengths(50.0, 1.0),
        output=GammaLengths(50.0, 1.0),
        rank_correlation=0.5,
        shared_prefixes=SharedPrefixes(100, 4),
        seed=3,
    )
    assert (faster.prompt_tokens == two.prompt_tokens).all()
    assert (faster.output_tokens == two.output_tokens).all()


_BUILD = """
from capacity.workload import *
print(conversations(num_sessions=30, arrivals=SteadyArrivals(1.0, 0.5), turns=UniformLengths(4, 0.7),
    user_tokens=LognormalLengths(90.0, 1.0), output=GammaLengths(60.0, 1.0), think_time=ThinkTime(10.0),
    system_prompt_tokens=100, seed=7).fingerprint())
print(random_requests(num_requests=30, input_len=100, output_len=9, request_rate_per_s=2, range_ratio=.5,
    prefix_len=64, seed=7).fingerprint())
"""


def test_same_seed_same_bytes_whatever_the_hash_seed() -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-c", _BUILD],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    ]
    assert printed[0] == printed[1]
    assert len(set(printed[0].split())) == 2


def test_the_fingerprint_sees_every_column() -> None:
    workload = small(priority=[0, 0, 1], session=[0, 0, 1], after_request=[-1, 0, -1], think_s=[0, 1, 0])
    changed = [
        workload,
        replace(workload, arrival_s=[0.0, 0.5, 1.0]),
        replace(workload, prompt_tokens=[10, 20, 31]),
        replace(workload, output_tokens=[1, 2, 4]),
        replace(workload, priority=[0, 1, 1]),
        replace(workload, session=[0, 1, 1]),
        replace(workload, after_request=[-1, 0, 1]),
        replace(workload, think_s=[0, 2, 0]),
        replace(workload, concurrency=2),
        replace(workload, content=PromptContent.from_segments([[(0, 10)], [(0, 20)], [(1, 30)]])),
        replace(workload, content=PromptContent.from_segments([[(0, 10)], [(0, 20)], [(0, 30)]])),
    ]
    assert len({each.fingerprint() for each in changed}) == len(changed)
    assert replace(workload, name="other", notices=("x",)).fingerprint() == workload.fingerprint()


# content

FEW = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 4)), min_size=1, max_size=4
)  # texts that often coincide
SEGMENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=5)


def tokens_of(segments: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(text, position) for text, length in segments for position in range(length)]


@example(prompts=[[(1, 2), (0, 6)], [(1, 2), (0, 2), (0, 4)]], block_tokens=4, partial=False, answer_tokens=0)
@example(
    prompts=[[(1, 2), (0, 4), (1, 2)], [(1, 2), (0, 2), (0, 2), (1, 2)]],
    block_tokens=4,
    partial=False,
    answer_tokens=0,
)
@given(
    prompts=st.lists(FEW | SEGMENTS, min_size=1, max_size=8),
    block_tokens=st.integers(1, 4) | st.integers(1, 7),
    partial=st.booleans(),
    answer_tokens=st.integers(0, 8),
)
def test_blocks_are_equal_exactly_where_all_tokens_through_them_are(
    prompts: list[list[tuple[int, int]]], block_tokens: int, partial: bool, answer_tokens: int
) -> None:
    answer_ids = [row % 4 for row in range(len(prompts))]
    content = PromptContent.from_segments(prompts, answer_ids=answer_ids)
    answers = np.full(len(prompts), answer_tokens)
    blocks = content.block_runs(block_tokens, output_tokens=answers, partial=partial)
    prefix_of_id: dict[int, tuple[tuple[int, int], ...]] = {}
    id_of_prefix: dict[tuple[tuple[int, int], ...], int] = {}
    for row, prompt in enumerate(prompts):
        tokens = tokens_of([*prompt, (answer_ids[row], answer_tokens)])
        ids = blocks.ids_of(row)
        assert len(ids) == (-(-len(tokens) // block_tokens) if partial else len(tokens) // block_tokens)
        for index, block in enumerate(ids):
            prefix = tuple(tokens[: (index + 1) * block_tokens])
            assert prefix_of_id.setdefault(block, prefix) == prefix
            assert id_of_prefix.setdefault(prefix, block) == block


@given(prompts=st.lists(SEGMENTS, min_size=1, max_size=6), data=st.data())
def test_parts_of_content(prompts: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    content = PromptContent.from_segments(prompts)
    lengths = [sum(length for _, length in prompt) for prompt in prompts]
    assert content.prompt_tokens.tolist() == lengths
    order = data.draw(st.lists(st.sampled_from(range(len(prompts))), min_size=1, max_size=8))
    taken = content.take(np.asarray(order))
    assert [taken.segments_of(row) for row in range(len(order))] == [prompts[row] for row in order]
    kept = [data.draw(st.integers(1, length)) for length in lengths]
    clipped = content.clipped(np.asarray(kept))
    for row, prompt in enumerate(prompts):
        assert tokens_of(clipped.segments_of(row)) == tokens_of(prompt)[: kept[row]]


def test_fresh_answers_are_shared_with_nobody() -> None:
    content = PromptContent.from_segments([[(5, 16)], [(5, 16)]])
    first, second = (content.block_runs(16, output_tokens=np.asarray([16, 16])).ids_of(row) for row in (0, 1))
    assert first[0] == second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"offsets": np.asarray([0, 2])}, "offsets must rise"),
        ({"offsets": np.asarray([1, 1])}, "offsets must rise"),
        ({"offsets": np.asarray([0])}, "offsets has 1 values for 2"),
        ({"segment_tokens": np.asarray([0])}, "segment_tokens of request 0 is below 1"),
        ({"segment_tokens": np.asarray([1, 2])}, "has 2 values for 1"),
    ],
)
def test_content_is_checked(changes: dict[str, np.ndarray], part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(PromptContent.from_segments([[(0, 5)]]), **changes)
    assert part in str(caught.value)


def test_block_size_is_checked() -> None:
    with pytest.raises(InvalidInput, match="block_tokens must be"):
        PromptContent.from_segments([[(0, 5)]]).block_runs(0)


# synthetic


def test_random_requests_are_vllms_random_data_set() -> None:
    workload = random_requests(
        num_requests=2000,
        input_len=1000,
        output_len=100,
        request_rate_per_s=8.0,
        range_ratio=0.25,
        prefix_len=64,
    )
    assert workload.arrival_s[-1] == 250.0
    assert workload.prompt_tokens.min() >= 750 + 64
    assert workload.prompt_tokens.max() <= 1250 + 64
    assert (workload.output_tokens.min(), workload.output_tokens.max()) == (75, 125)
    blocks = workload.block_runs(16)
    assert blocks is not None
    assert {tuple(blocks.ids_of(row)[:4]) for row in range(50)} == {tuple(blocks.ids_of(0)[:4])}
    assert len({blocks.ids_of(row)[4] for row in range(50)}) == 50
    assert random_requests(num_requests=5, input_len=7, output_len=3).block_runs(16) is None


def test_popular_prefixes_are_picked_more_often() -> None:
    picked = SharedPrefixes(10, 3, zipf=1.0).pick(MANY, random_stream(0, "sessions"))
    weights = np.asarray([1, 1 / 2, 1 / 3]) / (11 / 6)
    np.testing.assert_allclose(np.bincount(picked) / MANY, weights, atol=5 * 0.5 / math.sqrt(MANY))


def test_a_turn_begins_with_all_that_was_said_before() -> None:
    workload = conversations(
        num_sessions=20,
        arrivals=SteadyArrivals(0.5),
        turns=UniformLengths(5, 0.8),
        user_tokens=LognormalLengths(80.0, 1.0),
        output=GammaLengths(40.0, 1.0),
        think_time=ThinkTime(20.0, 0.5),
        system_prompt_tokens=33,
        seed=2,
    )
    assert workload.content is not None
    assert workload.after_request is not None
    assert workload.session is not None
    assert workload.think_s is not None
    assert not workload.notices
    openings = 0
    for row, before in enumerate(workload.after_request.tolist()):
        said = tokens_of(workload.content.segments_of(row))
        assert said[:33] == [(0, position) for position in range(33)]
        if before < 0:
            openings += 1
            continue
        assert workload.session[before] == workload.session[row]
        answer = (int(workload.content.answer_ids[before]), int(workload.output_tokens[before]))
        earlier = tokens_of([*workload.content.segments_of(before), answer])
        assert said[: len(earlier)] == earlier
        assert len(said) > len(earlier)
        gap_s = workload.arrival_s[row] - workload.arrival_s[before]
        assert gap_s == pytest.approx(workload.think_s[row], abs=1e-9)
    assert openings == 20


def test_think_time_has_its_mean() -> None:
    drawn_s = ThinkTime(12.0, 0.5).draw_s(MANY, random_stream(0, "thinking"))
    assert drawn_s.mean() == pytest.approx(12.0, rel=5 * 0.5 / math.sqrt(MANY))
    assert ThinkTime(3.0, 0.0).draw_s(2, random_stream(0, "thinking")).tolist() == [3, 3]
