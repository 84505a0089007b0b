"""`capacity` and `python -m capacity`: the command, which also ends in one line while it is still being loaded."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

INTERRUPTED = 130


def main() -> None:
    """The `capacity` command."""
    loads = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where the caller ignores it
    if loads:
        signal.signal(signal.SIGINT, _leave)
    from capacity.cli.main import main as run

    if loads:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    """Nothing has begun, so nothing is left to be done."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
