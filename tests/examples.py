"""How many examples a property is tried on: a quarter in every run, all with `--slow`, new ones in the nightly one."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("short", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("nightly", deadline=None, max_examples=1000)


def load_profile(*, slow: bool) -> None:
    """Load the profile that `HYPOTHESIS_PROFILE` names, else that of the short or of the long form."""
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if slow else "short"))


def examples(in_ci: int) -> int:
    """As many as CI tries, or the share of them that the profile tries of a hundred."""
    return max(1, in_ci * settings.default.max_examples // 100)
