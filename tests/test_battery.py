"""Bad and hostile inputs by the thousand: each ends soon, small, in a few clean lines, with the right exit code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from battery import cases

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and waits by descriptor"),
]
LEAST = 3000


def test_the_battery_is_large_and_the_same_every_time() -> None:
    names = [f"{case.name} {case.words}" for case in cases()]
    assert len(names) >= LEAST
    assert names == [f"{case.name} {case.words}" for case in cases()]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no descriptors of processes")
@pytest.mark.parametrize(
    ("every", "offset"), [(80, 5), *(pytest.param(4, n, marks=pytest.mark.slow) for n in range(4))]
)
def test_every_input_is_answered_or_refused_cleanly(every: int, offset: int) -> None:
    program = [sys.executable, str(Path(__file__).parent / "battery.py"), str(every), str(offset)]
    done = subprocess.run(
        program, capture_output=True, text=True, check=False
    )  # forks: none of pytest's threads
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert int(re.search(r"^(\d+) cases, 0 at fault", done.stdout, re.MULTILINE)[1]) >= LEAST // every  # type: ignore[index]
