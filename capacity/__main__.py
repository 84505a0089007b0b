"""`capacity` and `python -m capacity`: entry point of the command, and its handling of signals.

Ctrl-C ends the command with one line, also while it is still loading. SIGTERM and SIGHUP are handled as Ctrl-C is: the
command prints its results so far, and then ends by the signal that was received. A second signal ends it at once.
"""

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130
_asked: list[int] = []  # the signal that ends this command


def main() -> None:
    """Run the `capacity` command."""
    atexit.register(_die)  # first of all, so that it runs last
    loads = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where the caller ignores it
    if loads:
        signal.signal(signal.SIGINT, _leave)
    from capacity.cli.main import main as run

    if loads:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _end_when_asked()
    run()


def _end_when_asked() -> None:
    """Handle SIGTERM and SIGHUP from now on. While modules load, their default action ends the process silently."""
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
    """Exit at once on Ctrl-C while the command is still loading, when there are no results to print."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
