"""Who works on a point: a process by its number and the instant it began, so that a number used again is another."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """The name of this process, on this machine and in this container."""
    return f"{_place()}|{os.getpid()}|{_begun(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Whether that process still runs. One that cannot be looked up, of another machine, say, counts as ended: what
    it may still be doing is done twice, and nothing waits for ever."""
    place, _, rest = owner.partition("|")
    number, _, begun = rest.partition("|")
    if (
        place != _place() or not number.isdigit() or os.name == "nt"
    ):  # there, asking with signal 0 would end it
        return False
    try:
        os.kill(int(number), 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return _begun(int(number)) == begun


def _place() -> str:
    try:
        container = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        container = ""
    return f"{socket.gethostname()} {container}".replace("|", " ")


def _begun(number: int) -> str:
    """When a process began, in the kernel's ticks; nothing where the system does not say. A zombie has ended."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "ended" if fields[0] == "Z" else fields[19]
