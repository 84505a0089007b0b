"""Answers that several modules of tests write."""

from __future__ import annotations

import pytest
from quick_plans import quick

from capacity.planning.records import Plan


@pytest.fixture(scope="session")
def small_plan() -> Plan:
    """H100s by the hour, in two formats of weights."""
    return quick(quantizations=(None, "int4"), price="h100=2", objective="cost", num_prompts=60)
