"""Where the optional reference library is, if it is at hand: tests use it, and must pass without it."""

from __future__ import annotations

import os
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
