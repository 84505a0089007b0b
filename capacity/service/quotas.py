"""Limits of CPU time and memory per job and per session: a browser tab, or a client of the service."""

import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
MIN_BYTES = GIB
PROC = Path("/proc")


def _memory_bytes() -> int:
    """Return the memory of this machine, or 16 GiB if unknown."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 16 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of CPU time and memory. The limits of a job include the processes that it starts."""

    job_cpu_s: float = 900.0
    job_bytes: int = max(MIN_BYTES, min(4 * GIB, _memory_bytes() // 4))
    session_cpu_s: float = 1800.0  # within `window_s`
    window_s: float = 3600.0
    session_running: int = 2
    session_waiting: int = 16
    heavy_after_s: float = 2.0  # CPU seconds until a job gets a lower priority
    grace_s: float = 10.0  # seconds that a tab may be disconnected

    def reason_to_stop(self, cpu_s: float, held_bytes: int) -> str | None:
        """Return the message for a job that exceeds its CPU time or memory limit; None if it exceeds neither."""
        if cpu_s > self.job_cpu_s:
            return (
                f"stopped after {cpu_s:,.0f} s of CPU time (limit {self.job_cpu_s:,.0f} s); use fewer requests or a "
                "smaller search space, or run the command in a terminal"
            )
        if held_bytes > self.job_bytes:
            return self.memory_message(held_bytes)
        return None

    def memory_message(self, held_bytes: int | None = None) -> str:
        """Return the message for a job that uses too much memory. `held_bytes`: memory in use; None if unknown."""
        needs = "more memory" if held_bytes is None else f"{held_bytes / GIB:.1f} GiB of memory"
        return (
            f"stopped because it needs {needs} (limit {self.job_bytes / GIB:.1f} GiB); use fewer requests or a smaller "
            "search space, or run the command in a terminal"
        )


QUOTA = Quota()


class RecentCpuTime:
    """CPU seconds that one session's jobs have used within the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._total_s = 0.0
        self._spent: deque[tuple[int, float]] = deque()  # CPU seconds by second

    def add(self, cpu_s: float) -> None:
        second, before_s = int(time.monotonic()), 0.0
        if self._spent and self._spent[-1][0] == second:
            before_s = self._spent.pop()[1]
        self._spent.append((second, before_s + cpu_s))
        self._total_s += cpu_s

    def seconds(self) -> float:
        """Return the CPU seconds that jobs used in the last `window_s` seconds."""
        while self._spent and self._spent[0][0] < time.monotonic() - self._window_s:
            self._total_s -= self._spent.popleft()[1]
        return self._total_s if self._spent else 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds and memory in use of a process group; zero if unknown."""

    cpu_s: float = 0.0
    held_bytes: int = 0


def group_usage(groups: set[int]) -> dict[int, Usage]:
    """Return the usage of each process group; CPU time includes that of ended child processes."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    found = dict.fromkeys(groups, Usage())
    for entry in PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # the process has ended
            fields = entry.read_text().rpartition(")")[2].split()
            group = int(fields[2])
            if group in found:
                cpu_s = sum(map(int, fields[11:15])) / ticks
                held_bytes = int(fields[21]) * page
                so_far = found[group]
                found[group] = Usage(so_far.cpu_s + cpu_s, so_far.held_bytes + held_bytes)
    return found


def lower_priority(group: int, niceness: int) -> None:
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PGRP, group, niceness)


def limit_memory(most_bytes: int) -> None:
    """Limit this process's memory; allocations above it raise MemoryError."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, hard))
