"""What tests share without fixtures: where the optional reference library is, and how a child heeds Ctrl-C."""

from __future__ import annotations

import os
import signal
from pathlib import Path

_beside = Path(__file__).parent.parent.parent / "shared"
SHARED: Path | None = next(
    (
        p
        for p in (Path(os.environ["CAPACITY_SHARED"]) if "CAPACITY_SHARED" in os.environ else None, _beside)
        if p and p.is_dir()
    ),
    None,
)


def heed_interrupts() -> None:
    """In a child: Ctrl-C and a hang-up end it, though whoever runs the tests in the background ignores them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
