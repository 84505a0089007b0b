"""One estimate for all its pictures."""

from __future__ import annotations

import pytest

import capacity


@pytest.fixture(scope="session")
def estimate() -> capacity.Estimate:
    return capacity.estimate("llama-3.1-8b", gpu="h100", input_len=1000, output_len=200, batch_size=16)
