"""Answers that several modules of tests look at."""

from __future__ import annotations

import pytest
from listed_advice import LOAD, MODEL

from capacity import advise
from capacity.planning.variations.advice import AdviceList


@pytest.fixture(scope="session")
def answer() -> AdviceList:
    """Advice on two replicas: a dozen simulations."""
    return advise(MODEL, **LOAD, price_tier="on-demand", replicas=2)
