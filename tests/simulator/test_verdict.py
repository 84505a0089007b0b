"""The verdict on a run: right on loads whose capacity is known by bisection, and right about what it cannot know."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.capacity_probe import Capacity, capacity_for, probe_capacity
from capacity.simulator.metrics import RequestTable
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.verdict import Verdict, judge
from capacity.step import AffineStepTimes
from capacity.workload import (
    FixedLengths,
    LognormalLengths,
    PeriodicArrivals,
    SharedPrefixes,
    SteadyArrivals,
    ThinkTime,
    Workload,
    conversations,
    on_off,
    synthetic,
)

STEPS = AffineStepTimes(0.01, 1e-4, per_context_token_s=2e-8)
PROMPT = LognormalLengths(100, 0.5, highest_tokens=1500)
OUTPUT = LognormalLengths(20, 0.5, highest_tokens=600)


@dataclass(frozen=True)
class Machine:
    """An engine and the lengths of its requests."""

    blocks: int = 2000
    seqs: int = 32
    budget: int = 512
    prompt: LognormalLengths = PROMPT
    output: LognormalLengths = OUTPUT
    policy: str = "vllm-v1"

    @classmethod
    def random(cls, rng: np.random.Generator) -> Machine:
        def lengths(means: list[int], highest: int) -> LognormalLengths:
            return LognormalLengths(int(rng.choice(means)), float(rng.choice([0.0, 0.5, 1.0])), 1, highest)

        return cls(
            blocks=int(rng.choice([300, 600, 2000])),
            seqs=int(rng.choice([4, 8, 32, 128])),
            budget=int(rng.choice([256, 512, 2048])),
            prompt=lengths([30, 100, 300], 1500),
            output=lengths([1, 10, 60], 600),
            policy=str(rng.choice(["vllm-v1", "vllm-v1-async"])),
        )

    def requests(self, rate: float, count: int, seed: int = 0, burstiness: float = 1.0) -> Workload:
        return synthetic(
            num_requests=count,
            arrivals=SteadyArrivals(rate, burstiness),
            prompt=self.prompt,
            output=self.output,
            seed=seed,
        )

    def run(self, workload: Workload) -> SimulationResult:
        limits = SchedulerLimits(
            max_num_seqs=self.seqs, max_num_batched_tokens=self.budget, max_model_len=2200
        )
        return simulate(
            workload, EngineSetup(step_times=STEPS, num_blocks=self.blocks, policy=self.policy, limits=limits)
        )

    def verdict(self, workload: Workload) -> Verdict:
        return judge(self.run(workload).records, workload, capacity=self.capacity(workload, capacity_for))

    def capacity(self, workload: Workload, probe: Callable[..., Capacity | None]) -> Capacity | None:
        in_flight = min(self.seqs, self.blocks * 16 / (self.prompt.mean_tokens + self.output.mean_tokens))
        return probe(workload, lambda w: self.run(w).records, in_flight=in_flight)


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


MACHINE = Machine()


@pytest.fixture(scope="module")
def capacity() -> float:
    found = probe_capacity(MACHINE.requests(1.0, 3000), lambda w: MACHINE.run(w).records, in_flight=32)
    assert found is not None
    return found.requests_per_s


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


def test_the_probe_keeps_what_prompts_share() -> None:
    """A shared prefix stays shared in the backlog, private text stays private: capacity with caching is higher."""
    requests = synthetic(
        num_requests=100,
        arrivals=SteadyArrivals(1.0),
        prompt=FixedLengths(64),
        output=FixedLengths(4),
        shared_prefixes=SharedPrefixes(512),
    )
    rates = []
    for workload in (requests, replace(requests, content=None)):
        found = probe_capacity(workload, lambda w: MACHINE.run(w).records, in_flight=32)
        assert found is not None
        rates.append(found.requests_per_s)
    assert rates[0] == pytest.approx(rates[1] * (512 + 64) / 64, rel=0.25)


def test_warm_up_is_left_out(capacity: float) -> None:
    found = MACHINE.verdict(MACHINE.requests(0.8 * capacity, 3000))
    assert found.verdict == "stable"
    assert 1500 <= found.measured_requests < 3000
    interval = found.intervals_ms["p50_e2el_ms"]
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < interval.value < interval.high


@pytest.mark.parametrize(("load", "longer"), [(0.3, False), (0.95, True), (1.2, True), (2.0, False)])
def test_a_load_far_from_capacity_needs_a_short_probe(capacity: float, load: float, longer: bool) -> None:
    """It says that it knows less, and what it says agrees with the long probe."""
    workload = MACHINE.requests(load * capacity, 2000)
    sent: list[int] = []

    def run(backlog: Workload) -> RequestTable:
        sent.append(len(backlog))
        return MACHINE.run(backlog).records

    found = capacity_for(workload, run, in_flight=32)
    assert found is not None
    assert (max(sent) > 1400) == longer
    assert sum(sent) <= 2100 if longer else sum(sent) <= 550
    assert found.requests_per_s == pytest.approx(capacity, rel=max(found.error_fraction, 0.06))


def test_short_probes_are_right_within_the_error_that_they_claim() -> None:
    rng = np.random.default_rng(11)
    for _ in range(8):
        machine = Machine.random(rng)
        workload = machine.requests(1e-3, 2000, int(rng.integers(1 << 30)))
        short, long = (machine.capacity(workload, probe) for probe in (capacity_for, probe_capacity))
        assert short is not None
        assert long is not None
        assert short.requests_per_s == pytest.approx(long.requests_per_s, rel=short.error_fraction)


def test_a_busy_hour_calls_for_the_long_probe(capacity: float) -> None:
    """The mean is far below capacity, an hour is not."""
    busy = on_off(0.95 * capacity, on_s=60, off_s=200, off_rate_per_s=0.05 * capacity)
    workload = synthetic(
        num_requests=int(520 * busy.mean_rate_per_s),
        arrivals=busy,
        prompt=MACHINE.prompt,
        output=MACHINE.output,
    )
    found = MACHINE.capacity(workload, capacity_for)
    assert found is not None
    assert found.error_fraction < 0.1


def test_what_was_not_served_is_said(capacity: float) -> None:
    workload = MACHINE.requests(0.4 * capacity, 400)
    records = MACHINE.run(workload).records
    nothing = np.full(len(records), -1)
    lost = judge(
        replace(records, finish_ps=nothing),
        workload,
        capacity=MACHINE.capacity(workload, capacity_for),
        losses={"timed out": 400, "turned away": 0},
    )
    assert lost.verdict == "too short to tell"
    assert lost.reason == "none of the 400 requests was completed (400 timed out): nothing was served"
    some = judge(
        replace(records, finish_ps=np.where(np.arange(400) % 10, records.finish_ps, -1)),
        workload,
        losses={"timed out": 40},
    )
    assert some.verdict == "stable"
    assert some.reason.endswith("; 40 of 400 requests were not completed (40 timed out)")
    flood = MACHINE.requests(3 * capacity, 400)
    drowned = judge(
        replace(MACHINE.run(flood).records, finish_ps=nothing),
        flood,
        capacity=MACHINE.capacity(flood, capacity_for),
    )
    assert drowned.verdict == "overloaded"
    assert "none of the 400 requests" in drowned.reason
