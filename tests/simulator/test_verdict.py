"""The verdict on a run: right on loads whose capacity is known by bisection, and right about what it cannot know."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from judged_machine import MACHINE, Machine

from capacity.simulator.capacity_probe import probe_capacity
from capacity.simulator.metrics import MISSING
from capacity.simulator.verdict import judge
from capacity.workload import (
    FixedLengths,
    LognormalLengths,
    PeriodicArrivals,
    SteadyArrivals,
    ThinkTime,
    Workload,
    conversations,
    on_off,
    synthetic,
)


def piles_up(machine: Machine, rate: float) -> bool:
    """Whether requests at constant gaps pile up: more of them are in the system at the end than in the middle."""
    count = 3000
    records = machine.run(machine.requests(rate, count, 991, math.inf)).records
    ended = np.searchsorted(np.sort(records.finish_ps), records.arrival_ps, side="right")
    present = np.arange(1, count + 1) - ended
    third, half, end = (
        present[at : at + count // 10].mean() for at in (count // 3, count // 2, count * 9 // 10)
    )
    return bool(end > 1.15 * half + 2 and end > 1.3 * third + 2)


def capacity_by_bisection(machine: Machine) -> float:
    low, high = 0.01, 1.0
    while not piles_up(machine, high):
        low, high = high, 2 * high
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if piles_up(machine, middle) else (middle, high)
    return math.sqrt(low * high)


def check_loads(machines: int, loads: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    below, stable = 0, 0
    for _ in range(machines):
        machine = Machine.random(rng)
        capacity = capacity_by_bisection(machine)
        for load in rng.uniform(0.3, 1.5, loads):
            found = machine.verdict(machine.requests(load * capacity, 2000, int(rng.integers(1 << 30))))
            assert load <= 1 or found.verdict != "stable", f"{machine} at {load:.3f}: {found.reason}"
            if load < 0.9:
                below += 1
                stable += found.verdict == "stable"
    assert stable >= 0.95 * below


def test_no_overload_is_called_stable() -> None:
    check_loads(machines=2, loads=6, seed=7)


@pytest.mark.slow
def test_no_overload_is_called_stable_on_200_loads() -> None:
    check_loads(machines=20, loads=10, seed=1)


def test_what_is_offered_above_capacity_is_said(capacity: float) -> None:
    found = MACHINE.verdict(MACHINE.requests(1.3 * capacity, 1500))
    assert found.verdict == "overloaded"
    assert found.load_fraction == pytest.approx(1.3, rel=0.1)
    assert set(found.intervals_ms.values()) == {None}, "no steady state, so no steady percentile"


@pytest.mark.parametrize("load", [0.99, 1.0, 1.01])
def test_at_capacity_nothing_is_stable(capacity: float, load: float) -> None:
    assert MACHINE.verdict(MACHINE.requests(load * capacity, 1500)).verdict in ("saturated", "overloaded")


def test_a_few_requests_are_too_few(capacity: float) -> None:
    assert MACHINE.verdict(MACHINE.requests(0.5 * capacity, 60)).verdict == "too short to tell"


def test_all_at_once_is_an_overload() -> None:
    assert MACHINE.verdict(MACHINE.requests(math.inf, 1000)).verdict == "overloaded"


def test_an_hour_of_overload_is_not_averaged_away(capacity: float) -> None:
    """On average 0.75 of capacity, but for a part of the time 1.4: never stable, and the evidence says when."""
    machine = MACHINE
    busy = on_off(1.4 * capacity, on_s=60, off_s=80, off_rate_per_s=0.2 * capacity)
    workload = synthetic(
        num_requests=int(140 * busy.mean_rate_per_s),
        arrivals=busy,
        prompt=machine.prompt,
        output=machine.output,
    )
    found = machine.verdict(workload)
    assert found.load_fraction is not None
    assert found.load_fraction < 0.85
    assert found.verdict == "overloaded"
    assert found.peak_s is not None
    assert found.peak_s[0] < 30
    assert found.peak_s[1] <= 75


def test_a_mild_day_is_stable(capacity: float) -> None:
    day = PeriodicArrivals((60.0, 60.0), (0.5 * capacity, 0.7 * capacity))
    workload = synthetic(
        num_requests=int(240 * day.mean_rate_per_s),
        arrivals=day,
        prompt=MACHINE.prompt,
        output=MACHINE.output,
    )
    assert MACHINE.verdict(workload).verdict == "stable"


def test_growth_alone_tells_a_heavy_overload(capacity: float) -> None:
    workload = MACHINE.requests(1.6 * capacity, 6000)
    found = judge(MACHINE.run(workload).records, workload)
    assert found.growth_fraction == pytest.approx(1 - 1 / 1.6, abs=0.1)
    assert found.verdict in ("overloaded", "too short to tell")
    calm = MACHINE.requests(0.6 * capacity, 3000)
    assert judge(MACHINE.run(calm).records, calm).verdict == "stable"


def test_closed_loops_are_stable_until_requests_wait() -> None:
    workload = MACHINE.requests(math.inf, 600)
    assert MACHINE.verdict(workload.in_closed_loop(8)).verdict == "stable"
    assert MACHINE.verdict(workload.in_closed_loop(100)).verdict == "saturated"
    assert MACHINE.verdict(workload.head(50).in_closed_loop(8)).verdict == "too short to tell"


def test_the_way_to_the_engine_is_no_waiting() -> None:
    workload = MACHINE.requests(math.inf, 600).in_closed_loop(100)
    records = MACHINE.run(workload).records
    assert judge(records, workload).verdict == "saturated"
    longest_s = float((records.first_scheduled_ps - records.arrival_ps).max()) / 1e12
    told = judge(records, workload, way_s=longest_s)
    assert (told.verdict, told.reason) == (
        "stable",
        "a closed loop of 100 concurrent requests: requests spend 0% of their latency waiting",
    )


def test_many_losses_are_the_verdict_of_a_short_run_too() -> None:
    workload = MACHINE.requests(math.inf, 40).in_closed_loop(8)
    records = MACHINE.run(workload).records
    assert judge(records, workload).verdict == "too short to tell"
    lost = replace(records, finish_ps=np.where(np.arange(40) < 10, records.finish_ps, MISSING))
    found = judge(lost, workload, losses={"timed out": 30})
    assert (found.verdict, found.is_stable, found.steady) == ("not all served", False, None)
    assert found.reason.startswith(
        "30 of 40 requests (75%) did not complete (30 timed out); the others: too short"
    )


def test_a_run_of_months_is_judged_as_the_same_run_in_seconds() -> None:
    """The requests' stays add up to more picoseconds than 64 bits hold."""
    workload = MACHINE.requests(math.inf, 600).in_closed_loop(100)
    records = MACHINE.run(workload).records
    longer = (1 << 62) // int(records.finish_ps.max())
    names = ("arrival_ps", "first_scheduled_ps", "first_token_ps", "finish_ps")
    slow = replace(records, **{name: getattr(records, name) * longer for name in names})
    own, found = judge(records, workload), judge(slow, workload)
    assert (found.verdict, found.reason) == (own.verdict, own.reason)
    assert own.steady is not None
    assert found.steady is not None
    assert found.steady.in_flight == pytest.approx(own.steady.in_flight)


def test_the_steady_part_of_a_closed_loop_begins_after_its_first_wave() -> None:
    """All of the first wave prefill together; later a prompt finds one step's worth of others at most."""
    machine = Machine(budget=1024, prompt=LognormalLengths(100, 0.0), output=LognormalLengths(200, 0.5))
    workload = machine.requests(math.inf, 600).in_closed_loop(30)
    run = machine.run(workload)
    found = judge(run.records, workload)
    assert found.verdict == "stable"
    assert found.measured_s[0] > 0
    together = run.records.arrival_ps == 0
    first_ms = (run.records.first_token_ps - run.records.arrival_ps)[together].mean() / 1e9
    tail = found.intervals_ms["p99_ttft_ms"]
    assert tail is not None
    assert tail.value < first_ms / 2


def test_sessions_are_judged_by_growth() -> None:
    talks = conversations(
        num_sessions=300,
        arrivals=SteadyArrivals(2.0),
        turns=FixedLengths(3),
        user_tokens=FixedLengths(20),
        output=FixedLengths(10),
        think_time=ThinkTime(1.0),
    )
    assert MACHINE.verdict(talks).verdict == "stable"


def bursting(capacity: float, burst_s: float) -> Workload:
    """A twentieth of the capacity for 2,000 s, and three times the capacity from 300 s on for `burst_s`."""
    calm = MACHINE.requests(0.05 * capacity, round(0.05 * capacity * 2000), 1)
    burst = MACHINE.requests(3 * capacity, round(3 * capacity * burst_s), 2)
    return Workload.sort_arrivals(
        arrival_s=np.concatenate((calm.arrival_s, 300 + burst.arrival_s)),
        prompt_tokens=np.concatenate((calm.prompt_tokens, burst.prompt_tokens)),
        output_tokens=np.concatenate((calm.output_tokens, burst.output_tokens)),
    )


def test_a_burst_does_not_make_an_hour_overloaded(capacity: float) -> None:
    found = MACHINE.verdict(bursting(capacity, 15))
    assert found.verdict == "stable with bursts"
    assert found.is_stable
    assert found.peak_s is not None
    assert 280 < found.peak_s[0] < found.peak_s[1] < 330
    assert "excess requests" in found.reason
    assert found.measured_s[0] < 300, "what the burst did to latencies is in them"
    assert found.intervals_ms["p50_e2el_ms"] is not None


def test_a_burst_that_takes_a_good_part_of_the_run_is_what_it_is_about(capacity: float) -> None:
    found = MACHINE.verdict(bursting(capacity, 100))
    assert found.verdict == "overloaded"
    assert not found.is_stable
    assert found.steady is None


def test_warm_up_is_left_out(capacity: float) -> None:
    found = MACHINE.verdict(MACHINE.requests(0.8 * capacity, 3000))
    assert found.verdict == "stable"
    assert 1500 <= found.measured_requests < 3000
    interval = found.intervals_ms["p50_e2el_ms"]
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < interval.value < interval.high


def test_what_was_not_served_is_said(capacity: float) -> None:
    workload = MACHINE.requests(0.4 * capacity, 400)
    records = MACHINE.run(workload).records
    nothing = np.full(len(records), -1)
    lost = judge(
        replace(records, finish_ps=nothing),
        workload,
        capacity=MACHINE.capacity(workload, probe_capacity),
        losses={"timed out": 400, "turned away": 0},
    )
    assert lost.verdict == "too short to tell"
    assert lost.reason == "none of the 400 requests completed (400 timed out)"
    some = judge(
        replace(records, finish_ps=np.where(np.arange(400) % 10, records.finish_ps, MISSING)),
        workload,
        losses={"timed out": 40},
    )
    assert some.verdict == "not all served"
    assert some.reason.startswith(
        "40 of 400 requests (10%) did not complete (40 timed out); the others: stable"
    )
    assert some.is_stable
    assert some.steady is not None
    few = judge(
        replace(records, finish_ps=np.where(np.arange(400) != 7, records.finish_ps, MISSING)),
        workload,
        losses={"timed out": 1},
    )
    assert few.verdict == "stable"
    assert few.reason.endswith("; 1 of 400 requests did not complete (1 timed out)")
    flood = MACHINE.requests(3 * capacity, 400)
    drowned = judge(
        replace(MACHINE.run(flood).records, finish_ps=nothing),
        flood,
        capacity=MACHINE.capacity(flood, probe_capacity),
    )
    assert drowned.verdict == "overloaded"
    assert "none of the 400 requests" in drowned.reason
