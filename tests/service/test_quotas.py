"""CPU time of a session: a sum over a window, in memory that does not grow with the number of jobs."""

from __future__ import annotations

import os
import time

import pytest

from capacity.service import quotas
from capacity.service.quotas import PROC, RecentCpuTime, group_usage


def test_recent_cpu_time_is_a_sum_over_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(quotas.time, "monotonic", lambda: now_s)
    recent = RecentCpuTime(window_s=10.0)
    for _ in range(100):
        recent.add(0.5)
    assert recent.seconds() == 50.0
    assert len(recent._spent) == 1
    now_s = 1005.0
    recent.add(7.0)
    assert recent.seconds() == 57.0
    now_s = 1010.5
    assert recent.seconds() == 7.0
    now_s = 1016.0
    assert recent.seconds() == 0.0


@pytest.mark.skipif(not PROC.exists(), reason="no account of processes here")
def test_group_usage_counts_this_process() -> None:
    group = os.getpgrp()
    before = group_usage({group})[group]
    spent_s = time.process_time()
    while time.process_time() - spent_s < 0.1:
        pass
    after = group_usage({group})[group]
    assert after.cpu_s >= before.cpu_s + 0.08
    assert after.held_bytes > 10 << 20
    assert group_usage({-5})[-5].cpu_s == 0.0
