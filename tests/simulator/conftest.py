"""Fixtures of several test files of the simulator."""

from __future__ import annotations

import pytest
from judged_machine import MACHINE

from capacity.simulator.capacity_probe import probe_capacity


@pytest.fixture(scope="module")
def capacity() -> float:
    found = probe_capacity(MACHINE.requests(1.0, 3000), lambda w: MACHINE.run(w).records, in_flight=32)
    assert found is not None
    return found.requests_per_s
