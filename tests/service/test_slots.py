"""A slot counts the CPU time of its job, without that of the process before it."""

from __future__ import annotations

import threading
import time

import pytest

from capacity.service.jobs import Job, Task
from capacity.service.quotas import PROC, QUOTA, group_usage
from capacity.service.slots import Slot

WAIT_S = 120.0


@pytest.mark.skipif(not PROC.exists(), reason="no account of processes here")
def test_cpu_time_is_counted_from_the_start_of_the_job() -> None:
    counted: list[float] = []
    done = threading.Event()

    def freed(_: Slot, owner: str, cpu_s: float) -> None:
        assert owner == "a"
        counted.append(cpu_s)
        done.set()

    slot = Slot(freed, QUOTA)
    try:
        for _ in range(3):
            done.clear()
            job = Job(Task(function="capacity:fit", arguments={"model": "llama-3.1-8b", "gpu": "h100"}), "a")
            called = threading.Event()
            job.call_when_ended(called.set)
            slot.assign(job)
            assert done.wait(WAIT_S)
            assert called.wait(WAIT_S)
            assert job.result().fits
            time.sleep(0.05)
        whole_s = group_usage({slot.group})[slot.group].cpu_s
        assert sum(counted) <= whole_s + 0.05
        assert counted[2] < counted[0]  # imports belong to the first job
    finally:
        slot.kill()
