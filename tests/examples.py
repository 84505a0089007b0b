"""How many examples a property is tried on: a few in CI, ten times as many, and new ones, in the nightly profile."""

from __future__ import annotations

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
_TIMES = {"nightly": 10}


def examples(in_ci: int) -> int:
    """As many as CI tries, or ten times as many where `HYPOTHESIS_PROFILE=nightly` is set."""
    return in_ci * _TIMES.get(PROFILE, 1)
