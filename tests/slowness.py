"""How busy the machine is: what a limit of time in a test is multiplied by."""

from __future__ import annotations

import time


def slowness() -> float:
    """How many times longer than its CPU time a computation takes here now: 1 on an idle machine."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    while time.process_time() - cpu_s < 0.3:
        pass
    return (time.perf_counter() - wall_s) / (time.process_time() - cpu_s)
