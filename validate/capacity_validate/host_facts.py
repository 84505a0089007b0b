"""What the operating system says of this machine's CPU and memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cpu_name() -> str:
    """The CPU's model, as the system calls it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def host_memory_bytes() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    free = os.sysconf("SC_AVPHYS_PAGES") * page
    return os.sysconf("SC_PHYS_PAGES") * page, free


def cpu_cache_bytes(*, level: int) -> int:
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if int((entry / "level").read_text()) == level:
                size = (entry / "size").read_text().strip()
                return int(size.rstrip("KM")) * (2**20 if size.endswith("M") else 2**10)
        except (OSError, ValueError):
            continue
    return 2**20
