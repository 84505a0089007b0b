"""Capacity by a probe: it sends what clients send, whatever their rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from judged_machine import MACHINE

from capacity.simulator.capacity_probe import probe_capacity
from capacity.simulator.metrics import RequestTable
from capacity.workload import FixedLengths, SharedPrefixes, SteadyArrivals, Workload, synthetic


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


def test_the_capacity_does_not_depend_on_the_offered_rate() -> None:
    """Loads far below, close to and far above the capacity are all compared with one value."""
    drawn = MACHINE.requests(1.0, 2000)
    first, *others = (
        MACHINE.capacity(drawn.set_rate(rate), probe_capacity) for rate in (1e-3, 1.0, 5.0, 100.0)
    )
    assert others == [first] * 3
