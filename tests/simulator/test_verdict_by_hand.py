"""Verdicts on requests whose times are written down, compared with values worked out by hand and with plain loops."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import fmean, linear_regression, median, variance
from typing import Any

import numpy as np
import pytest

from capacity.simulator.capacity_probe import Capacity
from capacity.simulator.metrics import MISSING, RequestTable
from capacity.simulator.verdict import FrontEndLimit, Verdict, judge
from capacity.step import PS_PER_S
from capacity.workload import Workload


def make_records(
    arrival_s: Sequence[float],
    stay_s: float | Sequence[float],
    wait_s: float = 0.0,
    completed: Sequence[bool] | None = None,
) -> RequestTable:
    """Return a table of requests that stay `stay_s`, wait `wait_s` of it, and get all their tokens at the end."""
    count = len(arrival_s)
    arrival = np.round(np.asarray(arrival_s) * PS_PER_S).astype(np.int64)
    finish = arrival + np.round(np.broadcast_to(stay_s, count) * PS_PER_S).astype(np.int64)
    zeros = np.zeros(count, dtype=np.int64)
    return RequestTable(
        arrival_ps=arrival,
        first_scheduled_ps=arrival + round(wait_s * PS_PER_S),
        first_token_ps=finish,
        finish_ps=finish if completed is None else np.where(completed, finish, MISSING),
        prompt_tokens=zeros + 1,
        output_tokens=zeros + 1,
        cached_tokens=zeros,
        preemptions=zeros,
    )


def judge_open(arrival_s: Sequence[float], stay_s: float | Sequence[float], **more: Any) -> Verdict:
    """Judge an open loop. `capacity` is the rate, `error` its relative error."""
    completed = more.pop("completed", None)
    rate, error = more.pop("capacity", None), more.pop("error", 0.0)
    capacity = None if rate is None else Capacity(requests_per_s=rate, error_fraction=error)
    records = make_records(arrival_s, stay_s, completed=completed)
    return judge(records, make_workload(arrival_s), capacity=capacity, **more)


def judge_closed(
    count: int, concurrency: int | None, wait_s: float, stay_s: float = 10.0, **more: Any
) -> Verdict:
    """Judge a closed loop of requests that arrive every second; without `concurrency`, of two-turn sessions."""
    arrival_s = np.arange(float(count))
    workload = make_workload(arrival_s, concurrency=concurrency) if concurrency else make_sessions(arrival_s)
    return judge(make_records(arrival_s, stay_s, wait_s), workload, **more)


def make_workload(arrival_s: Sequence[float], **more: Any) -> Workload:
    ones = np.ones(len(arrival_s), dtype=np.int64)
    return Workload(arrival_s=np.asarray(arrival_s), prompt_tokens=ones, output_tokens=ones, **more)


def make_sessions(arrival_s: Sequence[float]) -> Workload:
    """Return a workload whose second request is a second turn, so that it is a closed loop."""
    after = [-1, 0] + [-1] * (len(arrival_s) - 2)
    return make_workload(arrival_s, after_request=after, think_s=np.zeros(len(arrival_s)))


def every(gap_s: float, count: int) -> list[float]:
    return [gap_s * number for number in range(count)]


@pytest.mark.parametrize(
    ("count", "stay_s", "verdict", "reason"),
    [
        (100, 9.9, "stable", "1.01 requests/s offered; no backlog forms"),
        (
            100,
            9.91,
            "too short to tell",
            "100 requests over 99 s; a steady-state estimate needs 100 requests over at least 99.1 s "
            "(10 times the latency)",
        ),
        (
            99,
            1.0,
            "too short to tell",
            "99 requests over 98 s; a steady-state estimate needs 100 requests over at least 10 s "
            "(10 times the latency)",
        ),
    ],
)
def test_a_steady_state_needs_100_requests_and_10_residence_times(
    count: int, stay_s: float, verdict: str, reason: str
) -> None:
    found = judge_open(every(1.0, count), stay_s)
    assert (found.verdict, found.reason) == (verdict, reason)
    assert (found.steady is not None) == found.is_stable == (verdict == "stable")


@pytest.mark.parametrize("stay_s", [9.5, 10.0])
def test_a_run_that_begins_later_has_the_same_verdict(stay_s: float) -> None:
    early = judge_open(every(1.0, 100), stay_s, capacity=1.5)
    late = judge_open([1000 + at for at in every(1.0, 100)], stay_s, capacity=1.5)
    assert (late.verdict, late.reason, late.load_fraction) == (
        early.verdict,
        early.reason,
        early.load_fraction,
    )
    assert late.measured_s == (1000 + early.measured_s[0], 1000 + early.measured_s[1])


@pytest.mark.parametrize(
    ("load", "error", "verdict", "reason"),
    [
        (0.5, 0.0, "stable", "2 requests/s offered, 50% of the capacity of 4 requests/s"),
        (0.9499, 0.0, "stable", "2 requests/s offered, 95% of the capacity of 2.11 requests/s"),
        (
            0.9501,
            0.0,
            "saturated",
            "2 requests/s offered, 95% of the capacity of 2.11 requests/s; waiting times this close to the capacity "
            "are not reliable",
        ),
        (
            1.0999,
            0.05,
            "saturated",
            "2 requests/s offered, 110% of the capacity of 1.82 requests/s; waiting times this close to the capacity "
            "are not reliable",
        ),
        (
            1.1001,
            0.05,
            "overloaded",
            "2 requests/s offered, 110% of the capacity of 1.82 requests/s; the queue grows without bound",
        ),
    ],
)
def test_load_decides_within_twice_the_error_of_the_capacity(
    load: float, error: float, verdict: str, reason: str
) -> None:
    """128 requests over 64 s; gaps of equal length have no variance, so only the capacity has an error."""
    found = judge_open(every(64 / 127, 128), 0.01, capacity=2 / load, error=error)
    assert (found.verdict, found.reason) == (verdict, reason)
    assert found.offered_requests_per_s == 2.0
    assert found.capacity_requests_per_s == 2 / load
    assert (found.load_fraction, found.capacity_error_fraction) == (pytest.approx(load), error)
    assert (found.is_stable, found.steady is not None) == (verdict == "stable", verdict != "overloaded")


@pytest.mark.parametrize(("margin", "verdict"), [(-1e-3, "saturated"), (1e-3, "overloaded")])
def test_variance_of_the_gaps_is_an_error_of_the_load(margin: float, verdict: str) -> None:
    """Twice the root of (capacity error² + squared coefficient of variation of the gaps / requests)."""
    gaps = [0.25, 0.75] * 200
    part = gaps[:25]
    error = math.hypot(0.03, math.sqrt(variance(part) / fmean(part) ** 2 / 401))
    arrival_s = [0.0, *np.cumsum(gaps).tolist()]
    load = 1 + 2 * error + margin
    found = judge_open(arrival_s, 0.01, capacity=401 / 200 / load, error=0.03)
    assert found.verdict == verdict


def test_rates_from_100_on_are_whole_numbers() -> None:
    arrival_s = every(1 / 1280, 1281)
    assert (
        "1,281 requests/s offered, 13% of the capacity of 10,000"
        in judge_open(arrival_s, 1e-6, capacity=1e4).reason
    )
    assert "of 99.5 requests/s" in judge_open(arrival_s, 1e-6, capacity=99.5).reason
    assert "of 100 requests/s" in judge_open(arrival_s, 1e-6, capacity=100.0).reason
    assert judge_open(every(100 / 99, 100), 0.1).reason.startswith("1 requests/s")


def test_requests_that_arrive_at_once_have_no_rate() -> None:
    unknown, known = (judge_open([0.0] * 200, 1.0, capacity=capacity) for capacity in (None, 2.0))
    assert (unknown.verdict, unknown.reason) == (
        "too short to tell",
        "all requests arrive at once, and no backlog forms",
    )
    assert (known.verdict, known.reason) == (
        "overloaded",
        "all requests arrive at once, capacity of 2 requests/s; the queue grows without bound",
    )
    assert known.load_fraction == math.inf
    evidence: Any = known.to_dict()["evidence"]
    assert (evidence["load_fraction"], evidence["offered_requests_per_s"]) == (None, None)
    assert (evidence["peak_s"], evidence["measured_s"], evidence["steady"]) == (None, [0.0, 0.0], None)
    assert evidence["capacity_requests_per_s"] == 2.0


def add_burst(starts_s: Sequence[int], length_s: int, per_s: int, calm_s: int) -> list[float]:
    """Return arrivals of one request per second, and of `per_s` in the bursts."""
    arrival_s = []
    for second in range(calm_s):
        inside = any(start <= second < start + length_s for start in starts_s)
        parts = per_s if inside else 1
        arrival_s += [second + part / parts for part in range(parts)]
    return [*arrival_s, float(calm_s)]


def test_a_short_burst_leaves_the_run_stable() -> None:
    """8 s of 40 requests/s at 20: 160 too many, served in 8 s at the capacity, and in 8.6 s beside the others."""
    found = judge_open(add_burst([256], 8, 40, 1024), 0.1, capacity=20.0)
    assert (found.verdict, found.is_stable) == ("stable with bursts", True)
    assert found.reason == (
        "1.31 requests/s offered, 7% of the capacity of 20 requests/s; from 256 s to 264 s the offered load is 2.00 "
        "times the capacity: serving the 160 excess requests takes 8 s"
    )
    assert (found.peak_s, found.peak_load_fraction) == ((256.0, 264.0), 2.0)
    evidence: Any = found.to_dict()["evidence"]
    assert evidence["peak_s"] == [256.0, 264.0]
    assert evidence["steady"]["requests"] == found.measured_requests


def test_several_bursts_are_counted() -> None:
    found = judge_open(add_burst([256, 512, 768], 8, 40, 1024), 0.1, capacity=20.0)
    assert found.verdict == "stable with bursts"
    assert found.reason.endswith("takes 8 s; 2 more intervals of this length exceed the capacity")


@pytest.mark.parametrize(("per_s", "verdict"), [(57, "stable with bursts"), (58, "overloaded")])
def test_a_burst_and_its_drain_of_a_tenth_of_the_run_is_an_overload(per_s: int, verdict: str) -> None:
    """8 s of 57 requests/s at 20: 296 / (20 * (1 - load)) to serve the excess, 25.2 of 256 s. 25.7 s with 58."""
    arrival_s = add_burst([64], 8, per_s, 256)
    load = len(arrival_s) / 256 / 20
    lasts_s = 8 + 8 * (per_s - 20) / (20 * (1 - load))
    assert (lasts_s > 25.6) == (verdict == "overloaded")
    assert judge_open(arrival_s, 0.1, capacity=20.0).verdict == verdict


def test_growth_alone_makes_an_overload() -> None:
    """One server takes 1.1 s for a request, one comes every second: 1 of 11 accumulates. At 1.04 s it is 1 of 26."""
    overloaded, stable = (
        judge_open(every(1.0, 400), [service * (number + 1) - number for number in range(400)])
        for service in (1.1, 1.04)
    )
    assert overloaded.growth_fraction == pytest.approx(1 / 11, rel=0.02)
    assert (overloaded.verdict, overloaded.reason) == (
        "overloaded",
        "1 requests/s offered; 9% of the requests accumulate in the queue",
    )
    assert stable.growth_fraction == pytest.approx(1 / 26, rel=0.05)
    assert stable.verdict == "stable"


def present_at_arrivals(arrival_s: Sequence[float], finish_s: Sequence[float]) -> list[int]:
    ends = sorted(finish_s)
    return [number + 1 - bisect_right(ends, at) for number, at in enumerate(arrival_s)]


def slope_of_queue(arrival_s: Sequence[float], finish_s: Sequence[float]) -> float | None:
    """Return the growth as `Verdict` defines it, with a table's quantile of Student's t (8 degrees, 99.9 %)."""
    begin = arrival_s[0] + (arrival_s[-1] - arrival_s[0]) / 4
    width = (arrival_s[-1] - begin) / 10
    windows: list[list[int]] = [[] for _ in range(10)]
    for at, count in zip(arrival_s, present_at_arrivals(arrival_s, finish_s), strict=True):
        if at >= begin:
            windows[min(int((at - begin) / width), 9)].append(count)
    if not all(windows):
        return None
    means = [fmean(window) for window in windows]
    slope, start = linear_regression(range(10), means)
    squares = sum((mean - start - slope * place) ** 2 for place, mean in enumerate(means))
    error = math.sqrt(squares / 8 / 82.5)
    assert abs(slope / error - 5.041) > 0.005, "too close to the limit for a table of four digits"
    return slope * 10 / sum(map(len, windows)) if slope > 5.041 * error else 0.0


def steady_rows(
    arrival_s: Sequence[float], stay_s: Sequence[float], first_wave: int, peak_s: float
) -> list[int]:
    """Return the rows of the steady part: MSER-5 (White, 1997) by a loop, then the drain."""
    count = len(arrival_s)
    left_out = first_wave if 2 * first_wave <= count else 0
    batches = [fmean(stay_s[at : at + 5]) for at in range(0, count - 4, 5)]
    if len(batches) >= 10:

        def squared_error(omitted: int) -> float:
            rest = batches[omitted:]
            mean = fmean(rest)
            return sum((each - mean) ** 2 for each in rest) / len(rest) ** 2

        warm_up = min(range(len(batches) // 2 + 1), key=squared_error)
        left_out = max(left_out, min(5 * warm_up, bisect_left(arrival_s, peak_s)))
    kept = range(left_out, count)
    before_drain = [row for row in kept if arrival_s[row] <= arrival_s[-1] - median(stay_s)]
    return before_drain if 2 * len(before_drain) >= len(kept) else list(kept)


def draw_run(rng: random.Random) -> tuple[list[float], list[float]]:
    """Draw arrivals and stays in whole milliseconds, in some runs with a warm-up, a trend or waves of arrivals."""
    count = rng.randint(20, 400)
    step = rng.choice((0.1, 1.0, 4.0))
    digits = rng.choice((0, 3))
    arrival_s = sorted(round(rng.random() * count * step, digits) for _ in range(count - 1))
    wave = rng.choice((1, 1, count * 2 // 5, count // 2, count * 3 // 5))
    arrival_s[:wave] = arrival_s[:1] * wave
    arrival_s.append(arrival_s[-1] + 0.777)  # no arrival is at the edge of a window
    warm_up, trend = rng.choice((0, 10, 60)), rng.choice((0.0, 0.0, 0.02, 0.1)) * step
    level = rng.choice((0.1, 1.0, 10.0, 100.0))
    stay_s = [
        round(0.001 + level * rng.random() * (3 if number < warm_up else 1) + trend * number, 3)
        for number in range(count)
    ]
    return arrival_s, stay_s


@pytest.mark.parametrize("closed", [False, True])
def test_growth_and_steady_part_equal_plain_loops(closed: bool) -> None:
    rng = random.Random(int(closed))
    growths, left_out = set(), set()
    for _ in range(100):
        arrival_s, stay_s = draw_run(rng)
        finish_s = [round(at + stay, 3) for at, stay in zip(arrival_s, stay_s, strict=True)]
        workload = make_workload(arrival_s, concurrency=4 if closed else None)
        found = judge(make_records(arrival_s, stay_s), workload)
        growth = slope_of_queue(arrival_s, finish_s) if len(arrival_s) >= 100 else None
        assert found.growth_fraction == (None if growth is None else pytest.approx(growth, rel=1e-9))
        first_wave = arrival_s.count(arrival_s[0]) if closed else 0
        rows = steady_rows(arrival_s, stay_s, first_wave, math.inf)
        assert found.measured_requests == len(rows)
        assert found.measured_s == pytest.approx((arrival_s[rows[0]], arrival_s[rows[-1]]))
        growths.add(None if growth is None else growth > 0)
        left_out.add(rows[0] > first_wave)
        if found.steady is not None:
            assert found.steady.e2e_s == pytest.approx(fmean(stay_s[row] for row in rows))
    assert growths == {None, False, True}
    assert left_out == {False, True}


@pytest.mark.parametrize(("rising", "is_significant"), [(28, False), (27, True)])
def test_growth_within_the_noise_of_its_windows_is_none(rising: int, is_significant: bool) -> None:
    """Latencies alternate by 4 s every 30 requests and rise by 1 s every 28 requests: 4.92 standard errors, and the
    limit is 5.041. With a rise every 27 requests, it is 5.21."""
    arrival_s = every(1.0, 400)
    stay_s = [2.5 + number // rising + 4 * (number // 30 % 2) for number in range(400)]
    finish_s = [at + stay for at, stay in zip(arrival_s, stay_s, strict=True)]
    growth = slope_of_queue(arrival_s, finish_s)
    assert growth is not None
    assert (growth > 0) == is_significant
    assert judge_open(arrival_s, stay_s).growth_fraction == pytest.approx(growth)


def test_the_warm_up_ends_before_the_burst() -> None:
    """Requests are slow until the burst ends, so the mean of the later ones alone would be the most precise."""
    arrival_s = add_burst([256], 8, 40, 1024)
    stay_s = [0.5 if at < 264 else 0.1 for at in arrival_s]
    found = judge_open(arrival_s, stay_s, capacity=20.0)
    assert found.peak_s == (256.0, 264.0)
    assert found.measured_s[0] == 256.0
    assert found.measured_requests == len(steady_rows(arrival_s, stay_s, 0, 256.0))


def test_rows_of_the_steady_part_are_in_order_of_arrival() -> None:
    """Records in another order have the same verdict; the first requests are slow, so the warm-up is left out."""
    arrival_s = every(1.0, 300)
    stay_s = [9.0 if number < 50 else 1.0 + number % 2 for number in range(300)]
    order = random.Random(0).sample(range(300), 300)
    sorted_run = judge_open(arrival_s, stay_s)
    records = make_records(arrival_s, stay_s).rows(np.array(order))
    shuffled = judge(records, make_workload(arrival_s))
    assert sorted_run.measured_s == (50.0, 297.0)
    assert sorted_run == shuffled
    assert sorted_run.steady is not None
    assert sorted_run.steady.e2e_s == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("count", "concurrency", "wait_s", "verdict", "reason"),
    [
        (150, 30, 1.0, "stable", "of 30 concurrent requests: requests spend 10% of their latency waiting"),
        (150, 1, 1.01, "saturated", "of 1 concurrent request: requests spend 10% of their latency waiting"),
        (100, 20, 6.0, "saturated", "of 20 concurrent requests: requests spend 60% of their latency waiting"),
        (149, 30, 1.0, "too short to tell", "of 30 concurrent requests: 149 requests; {needs} 150"),
        (99, 4, 1.0, "too short to tell", "of 4 concurrent requests: 99 requests; {needs} 100"),
        (101, None, 0.0, "stable", ": requests spend 0% of their latency waiting"),
        (
            100,
            None,
            0.0,
            "too short to tell",
            ": {needs} a run of at least 10 times the latency of a request",
        ),
    ],
)
def test_a_closed_loop_is_saturated_if_requests_wait_a_tenth_of_their_time(
    count: int, concurrency: int | None, wait_s: float, verdict: str, reason: str
) -> None:
    found = judge_closed(count, concurrency, wait_s)
    expected = "a closed loop" + (" " if concurrency else "") + reason
    assert found.reason == expected.format(needs="a steady-state estimate needs")
    assert found.verdict == verdict
    assert (found.offered_requests_per_s, found.load_fraction, found.peak_s) == (None, None, None)


def test_latency_to_the_engine_is_not_waiting() -> None:
    found = judge_closed(100, 4, 4.0, way_s=1.5)
    assert found.reason.endswith("requests spend 25% of their latency waiting")
    assert judge_closed(100, 4, 1.0, way_s=1.5).reason.endswith("spend 0% of their latency waiting")


def test_sessions_that_start_faster_than_they_end_are_an_overload() -> None:
    arrival_s = every(1.0, 400)
    workload = make_sessions(arrival_s)
    for service, verdict in ((1.1, "overloaded"), (1.04, "stable")):
        stay_s = [service * (number + 1) - number for number in range(400)]
        found = judge(make_records(arrival_s, stay_s), workload)
        assert found.verdict == verdict
        if verdict == "overloaded":
            assert found.reason == (
                "sessions start faster than they end; 9% of the requests accumulate in the queue"
            )


@pytest.mark.parametrize(
    ("lost", "losses", "verdict", "end"),
    [
        (2, {"timed out": 2}, "stable", "; 2 of 200 requests did not complete (2 timed out)"),
        (
            3,
            {"timed out": 1, "rejected": 2, "lost": 0},
            "not all served",
            "3 of 200 requests (2%) did not complete (1 timed out, 2 rejected); the others: stable, 1.01 requests/s "
            "offered; no backlog forms",
        ),
        (3, None, "not all served", "3 of 200 requests (2%) did not complete; the others: stable"),
        (200, {"rejected": 200}, "too short to tell", "none of the 200 requests completed (200 rejected)"),
    ],
)
def test_more_than_one_percent_of_losses_are_not_all_served(
    lost: int, losses: dict[str, int] | None, verdict: str, end: str
) -> None:
    completed = [number >= lost for number in range(200)]
    found = judge_open(every(1.0, 200), 1.0, completed=completed, losses=losses)
    assert found.verdict == verdict
    assert end in found.reason
    assert found.is_stable == (lost < 200)
    assert found.measured_requests <= 200 - lost


def test_an_overload_stays_an_overload_whatever_was_lost() -> None:
    completed = [number % 2 == 0 for number in range(200)]
    for served, count in (
        (completed, "100 of 200 requests did"),
        ([False] * 200, "none of the 200 requests"),
    ):
        found = judge_open(every(1.0, 200), 1.0, completed=served, capacity=0.5)
        assert found.verdict == "overloaded"
        assert f"; the queue grows without bound; {count}" in found.reason
        assert found.steady is None


def test_saturated_runs_with_losses_have_means_and_no_intervals() -> None:
    completed = [number % 2 == 0 for number in range(200)]
    found = judge_open(every(1.0, 200), 1.0, completed=completed, capacity=1.03)
    assert (found.verdict, found.is_stable) == ("not all served", False)
    assert found.steady is not None
    assert set(found.intervals_ms.values()) == {None}


BOUND = "; bound by the API server: at most 1,234 output tokens/s"


@pytest.mark.parametrize(
    ("capacity", "server", "verdict", "limit", "bound"),
    [
        (4.0, 2.1, "saturated", 2.1, True),  # 2 requests/s are 95.2 % of the API server's rate
        (4.0, 2.2, "stable", 2.2, False),
        (2.1, 2.2, "saturated", 2.1, False),
        (None, 2.1, "saturated", 2.1, True),
        (4.0, 1.0, "overloaded", 1.0, True),
        (None, None, "stable", None, False),
        (4.0, 4.0, "stable", 4.0, False),
    ],
)
def test_the_lower_capacity_is_that_of_engines_or_api_servers(
    capacity: float | None, server: float | None, verdict: str, limit: float | None, bound: bool
) -> None:
    front_end = None if server is None else FrontEndLimit(requests_per_s=server, output_tokens_per_s=1234.0)
    found = judge_open(every(64 / 127, 128), 0.01, capacity=capacity, error=0.01, front_end=front_end)
    assert (found.verdict, found.capacity_requests_per_s) == (verdict, limit)
    expected_error = None if limit is None else 0.0 if limit == server != capacity else 0.01
    assert found.capacity_error_fraction == expected_error
    assert (found.bound_by is not None) == found.reason.endswith(BOUND) == bound


@pytest.mark.parametrize(("server", "bound"), [(106 / 99, False), (104 / 99, True)])
def test_utilisation_of_the_api_servers_from_first_to_last_token_bounds_a_closed_loop(
    server: float, bound: bool
) -> None:
    """100 requests end 1 s apart, in 99 s: 100 / 106 is 94.3 % of the rate, and 100 / 104 is 96.2 %."""
    front_end = FrontEndLimit(requests_per_s=server, output_tokens_per_s=1234.0)
    found = judge_closed(100, 4, 0.0, front_end=front_end)
    assert found.verdict == ("saturated" if bound else "stable")
    assert found.reason.endswith(BOUND) == bound
    assert (found.capacity_requests_per_s, found.load_fraction) == (None, None)


def test_api_servers_may_be_busy_below_95_percent_of_their_rate() -> None:
    """190 requests over 100 s. Their ends are 95 s apart if the first ones stay longer, and 110 s if the last does."""
    arrival_s = every(100 / 189, 190)
    for rate, stay_s, bound in (
        (2.05, [5.01 - 5 * number / 189 for number in range(190)], True),
        (2.0, [*[0.01] * 189, 10.0], False),
    ):
        front_end = FrontEndLimit(requests_per_s=rate, output_tokens_per_s=1234.0)
        found = judge_open(arrival_s, stay_s, capacity=4.0, front_end=front_end)
        assert found.load_fraction is not None
        assert found.load_fraction <= 0.95
        assert (found.verdict, found.bound_by is not None) == ("stable", bound)
    front_end = FrontEndLimit(requests_per_s=1.0, output_tokens_per_s=1234.0)
    short = judge_closed(99, 4, 0.0, front_end=front_end)
    assert short.verdict == "too short to tell"
    assert short.reason.endswith(BOUND)


def test_one_instant_or_no_answer_leaves_the_api_servers_idle() -> None:
    front_end = FrontEndLimit(requests_per_s=1e-9, output_tokens_per_s=1234.0)
    arrival_s = [0.0] * 120
    workload = make_workload(arrival_s, concurrency=4)
    for records in (make_records(arrival_s, 1.0), make_records(arrival_s, 1.0, completed=[False] * 120)):
        assert judge(records, workload, front_end=front_end).bound_by is None
