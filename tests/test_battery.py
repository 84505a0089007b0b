"""Bad and hostile inputs by the thousand: each ends soon, small, in a few clean lines, with the right exit code."""

from __future__ import annotations

import os
import sys

import pytest
from battery import battery, cases

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and waits by descriptor")
LEAST = 3000


def test_the_battery_is_large_and_the_same_every_time() -> None:
    names = [f"{case.name} {case.words}" for case in cases()]
    assert len(names) >= LEAST
    assert names == [f"{case.name} {case.words}" for case in cases()]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no descriptors of processes")
@pytest.mark.parametrize(
    ("every", "offset"), [(12, 5), *(pytest.param(4, n, marks=pytest.mark.slow) for n in range(4))]
)
def test_every_input_is_answered_or_refused_cleanly(every: int, offset: int) -> None:
    count, faults = battery(every, offset)
    assert count >= LEAST // every
    assert faults == [], "\n".join(faults)
