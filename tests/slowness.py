"""How busy the machine is: what a limit of time in a test is multiplied by."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


def slowness() -> float:
    """How many times longer than its CPU time a computation takes here now: 1 on an idle machine."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    while time.process_time() - cpu_s < 0.3:
        pass
    return (time.perf_counter() - wall_s) / (time.process_time() - cpu_s)


SOURCE = "total = [first(part, second=(1.5 * each + 2)) for part, each in zip(parts, counts) if each]\n" * 150
COMPILE_S = 0.0095  # 2026-11-29


def cpu_slowness() -> float:
    """How many times more CPU time compiling `SOURCE` takes here now than `COMPILE_S`, its time on an idle machine.

    A busy neighbour on the same core slows it by 1.8, a rerun of a page by 1.7 and plain calls by 2.3 (2026-11-29).
    """
    times = []
    for _ in range(3):
        start_s = time.thread_time()
        compile(SOURCE, "source", "exec")
        times.append(time.thread_time() - start_s)
    return min(times) / COMPILE_S


@contextmanager
def cpu_limit(limit_s: float) -> Iterator[None]:
    """Fail if the block takes more CPU time than `limit_s`, times `cpu_slowness` where that is above 1."""
    slow_before, start_s = cpu_slowness(), time.process_time()
    yield
    taken_s = time.process_time() - start_s
    slow = max(1.0, slow_before, cpu_slowness())
    assert taken_s < limit_s * slow, (
        f"{taken_s:.3g} s of CPU, limit {limit_s:g} s on a machine {slow:.1f} x slower"
    )
