"""Capacity by a probe: short where the load is far from it, right within the error that it states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from judged_machine import MACHINE, Machine

from capacity.simulator.capacity_probe import capacity_for, probe_capacity
from capacity.simulator.metrics import RequestTable
from capacity.workload import FixedLengths, SharedPrefixes, SteadyArrivals, Workload, on_off, synthetic


@pytest.mark.parametrize("requests", [10, 5000])
def test_the_probe_keeps_what_clients_ask_for(requests: int) -> None:
    """Whether it sends all requests several times, or stretches of them."""
    workload = replace(MACHINE.requests(1.0, requests), max_tokens=np.arange(1, requests + 1))
    sent: list[Workload] = []

    def run(backlog: Workload) -> RequestTable:
        sent.append(backlog)
        return MACHINE.run(backlog).records

    probe_capacity(workload, run, in_flight=32)
    (backlog,) = sent
    assert backlog.max_tokens is not None
    assert (workload.prompt_tokens[backlog.max_tokens - 1] == backlog.prompt_tokens).all()


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
