"""`capacity` and `python -m capacity`: the command, and how signals end it.

Ctrl-C ends it in one line, while it is still being loaded too. Who asks it to end otherwise (SIGTERM, SIGHUP) gets what
Ctrl-C gets, the answer so far, and then the death by that signal that was asked for; a second time ends it at once.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130
_asked: list[int] = []  # the signal that ends this command


def main() -> None:
    """The `capacity` command."""
    _end_when_asked()
    loads = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where the caller ignores it
    if loads:
        signal.signal(signal.SIGINT, _leave)
    from capacity.cli.main import main as run

    if loads:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end_when_asked() -> None:
    atexit.register(_die)  # first of all, so that it runs last
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", None)):
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, _end)


def _end(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    signal.signal(number, signal.SIG_DFL)
    _asked.append(number)
    raise KeyboardInterrupt


def _die() -> None:
    for number in _asked:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os.kill(os.getpid(), number)


def _leave(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    """Nothing has begun, so nothing is left to be done."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
